"""Moves and renames applied to one Python file with libcst: comments, formatting and line endings stay.

Where a name is, is known from the analysis; what has to change there depends on what stands there. Whatever would need
a guess is refused with the reason, for a person.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import libcst as cst
from libcst import metadata

from torchtitan_sync.model import Rename, Use

_Node = TypeVar("_Node", bound=cst.CSTNode)

Split = Callable[[str], tuple[str, str]]
"""A dotted upstream name as its module and the rest (which is empty for a module)."""

_WHOLE_NAME = r"(?<![\w.]){}(?![\w])"


@dataclass(frozen=True)
class Edit:
    """A rename to apply at one place."""

    use: Use
    rename: Rename


@dataclass
class Result:
    source: bytes
    done: list[Edit] = field(default_factory=list)
    refused: list[tuple[Edit, str]] = field(default_factory=list)
    """With the reason."""


_Moves = dict[cst.ImportAlias, tuple[str, str, bool]]
"""By imported name: its module now, its name now, and whether the old name has to stay as an alias."""


class Refused(Exception):
    """An edit that is not mechanical; the message says why."""


def apply(
    source: bytes, edits: Sequence[Edit], split: Split, imported_elsewhere: frozenset[str] = frozenset()
) -> Result:
    """Apply edits to a Python file.

    Args:
        split: of names in the new upstream.
        imported_elsewhere: names that other modules of the plugin import from each other. They keep their name here.
    """
    try:
        wrapper = metadata.MetadataWrapper(cst.parse_module(source))
    except cst.ParserSyntaxError as error:
        return Result(source, refused=[(edit, f"the file cannot be parsed: {error.message}") for edit in edits])
    plan = _Plan(wrapper, split, imported_elsewhere)
    result = Result(source)
    # Imports first: what hangs on a module's name depends on whether its import moves.
    for edit, node in sorted(((e, plan.find(e)) for e in edits), key=lambda pair: not plan.in_import(pair[1])):
        try:
            plan.add(edit, node)
            result.done.append(edit)
        except Refused as reason:
            result.refused.append((edit, str(reason)))
    result.source = plan.apply().bytes
    return result


def apply_to_text(source: bytes, edits: Sequence[Edit]) -> Result:
    """Apply edits to a file that is not Python: flags in a script or a document, keys of a TOML file."""
    result = Result(source)
    lines = source.decode("utf-8", errors="surrogateescape").split("\n")
    for edit in sorted(edits, key=lambda e: (e.use.line, e.use.column), reverse=True):  # columns before stay right
        line, use = lines[edit.use.line - 1], edit.use
        try:
            start, end = (use.column, use.end_column) if use.end_column > use.column else (0, len(line))
            lines[use.line - 1] = line[:start] + _in_string(line[start:end], edit.rename) + line[end:]
            result.done.append(edit)
        except Refused as reason:
            result.refused.append((edit, str(reason)))
    result.source = "\n".join(lines).encode("utf-8", errors="surrogateescape")
    return result


class _Plan:
    """Which nodes of a file become what."""

    def __init__(self, wrapper: metadata.MetadataWrapper, split: Split, imported_elsewhere: frozenset[str]) -> None:
        self.module = wrapper.module
        self._split = split
        self._keep = imported_elsewhere
        self._parents = wrapper.resolve(metadata.ParentNodeProvider)
        self._scopes = wrapper.resolve(metadata.ScopeProvider)
        self._ranges = wrapper.resolve(metadata.PositionProvider)
        self._tokens: dict[int, list[tuple[metadata.CodeRange, cst.Name | cst.SimpleString]]] = {}
        for node, position in self._ranges.items():
            if isinstance(node, cst.Name | cst.SimpleString):
                for line in range(position.start.line, position.end.line + 1):
                    self._tokens.setdefault(line, []).append((position, node))
        self._bound = {node.value for node in self._ranges if isinstance(node, cst.Name)}
        self._replace: dict[cst.CSTNode, cst.CSTNode] = {}
        self._moved: dict[cst.ImportFrom, _Moves] = {}
        self._new_imports: dict[tuple[str, str], None] = {}

    def find(self, edit: Edit) -> cst.Name | cst.SimpleString | None:
        """The token at an edit's place, the last one in it, or the only one of the line that has the old name."""
        start, end = (edit.use.line, edit.use.column), (edit.use.line, edit.use.end_column)
        tokens = self._tokens.get(edit.use.line, [])
        if start < end:
            spans = [((p.start.line, p.start.column), (p.end.line, p.end.column), node) for p, node in tokens]
            around = [node for first, last, node in spans if first <= start and end <= last]
            within = [node for first, last, node in spans if start <= first and last <= end]
            if around or within:
                return (around or within)[-1]
        name = edit.rename.old.rpartition(".")[2]
        named = [node for _, node in tokens if isinstance(node, cst.Name) and node.value == name]
        return named[0] if len(named) == 1 else None

    def in_import(self, node: cst.CSTNode | None) -> bool:
        return bool(self._above(node, cst.Import) or self._above(node, cst.ImportFrom))

    def add(self, edit: Edit, node: cst.Name | cst.SimpleString | None) -> None:
        """Take an edit into the plan. Raises Refused."""
        rename = edit.rename
        old_leaf, new_leaf = rename.old.rpartition(".")[2], rename.new.rpartition(".")[2]
        if node is None:
            raise Refused("what stands there is not a name of its own")
        if isinstance(node, cst.SimpleString):
            self._replace[node] = node.with_changes(value=_in_string(node.value, rename))
            return None
        if from_statement := self._above(node, cst.ImportFrom):
            return self._import_from(from_statement, node, rename)
        if statement := self._above(node, cst.Import):
            return self._import(statement, node, rename)
        parent = self._parents[node]
        if rename.what in ("symbol", "module"):
            if isinstance(parent, cst.Attribute) and parent.attr is node:
                return self._through_module(parent, rename)
            if node.value in self._imported_names():
                return None  # it follows its import
            raise Refused(f"`{node.value}` is not imported by name in this file")
        _check_same_owner(rename)
        if isinstance(parent, cst.Attribute | cst.Arg) and node.value == old_leaf:
            self._replace[node] = node.with_changes(value=new_leaf)
            return None
        if isinstance(parent, cst.FunctionDef) and parent.name is node:
            return self._method(node, new_leaf)
        raise Refused(f"`{node.value}` is declared here: what it means has to be decided")

    def apply(self) -> cst.Module:
        module = self.module.visit(_Rewriter(self._replace, self._moved))
        assert isinstance(module, cst.Module)
        lines = [
            cst.SimpleStatementLine([cst.ImportFrom(_dotted(path), [cst.ImportAlias(cst.Name(name))])])
            for path, name in self._new_imports
        ]
        if not lines:
            return module
        where = _after_imports(module.body)
        return module.with_changes(body=[*module.body[:where], *lines, *module.body[where:]])

    def _import_from(self, statement: cst.ImportFrom, node: cst.Name, rename: Rename) -> None:
        if statement.relative or statement.module is None:
            raise Refused("a relative import is the plugin's own")
        if isinstance(statement.names, cst.ImportStar):
            raise Refused("what `import *` brings in has to be named first")
        module = _text(statement.module)
        moves = self._moved.setdefault(statement, {})
        alias = self._above(node, cst.ImportAlias)
        if alias is not None:
            # What is asked for by this name, maybe re-exported: where it is defined does not matter here.
            path, name = self._importable(rename.new)
            moves[alias] = (path, name, False)
            self._follow(statement, alias, name)
        elif module == rename.old or module.startswith(f"{rename.old}."):
            path = rename.new + module[len(rename.old) :]
            for other in statement.names:
                moves.setdefault(other, (path, _text(other.name), False))
        else:
            raise Refused(f"`{module}` is not `{rename.old}`")

    def _import(self, statement: cst.Import, node: cst.Name, rename: Rename) -> None:
        alias = self._above(node, cst.ImportAlias)
        assert alias is not None
        module = _text(alias.name)
        if module != rename.old and not module.startswith(f"{rename.old}."):
            raise Refused(f"`{module}` is not `{rename.old}`")
        path = rename.new + module[len(rename.old) :]
        self._replace[alias.name] = _dotted(path)
        if alias.asname is None:
            for other in self._ranges:
                if isinstance(other, cst.Attribute) and _text(other) == module and not self.in_import(other):
                    self._replace[other] = _dotted(path)

    def _through_module(self, use: cst.Attribute, rename: Rename) -> None:
        """`module.name`, the module being imported."""
        path, name = self._importable(rename.new)
        base = _text(use.value)
        if not base:
            raise Refused("it is reached through a value, not through a module")
        if self._module_named(base) == path:
            self._replace[use.attr] = cst.Name(name)
            return
        for other, target in self._modules().items():
            if target == path:
                self._replace[use] = cst.Attribute(_dotted(other), cst.Name(name), lpar=use.lpar, rpar=use.rpar)
                return
        if name in self._bound and (path, name) not in self._new_imports:
            raise Refused(f"the file uses the name `{name}` for something else: import {rename.new} under another name")
        self._new_imports[path, name] = None
        self._replace[use] = cst.Name(name, lpar=use.lpar, rpar=use.rpar)

    def _method(self, node: cst.Name, new: str) -> None:
        """An override whose base method was renamed: its definition, and calls through `self` and `super()`."""
        calls = [n for n in self._ranges if isinstance(n, cst.Attribute) and n.attr.value == node.value]
        if any(self.module.code_for_node(call.value) not in ("self", "cls", "super()") for call in calls):
            raise Refused(f"`{node.value}` is called in this file through other objects than `self`")
        self._replace[node] = cst.Name(new)
        self._replace |= {call.attr: cst.Name(new) for call in calls}

    def _follow(self, statement: cst.ImportFrom, alias: cst.ImportAlias, name: str) -> None:
        """Rename what refers to an import with another name now; where that is unsafe, keep the old one as an alias."""
        old = _text(alias.name)
        if alias.asname is not None or name == old:
            return
        scope = self._scopes.get(statement)
        assignments = list(scope[old]) if scope is not None else []
        references = [access.node for a in assignments for access in getattr(a, "references", ())]
        names = [_leftmost(reference) for reference in references]
        quoted = any(isinstance(n, cst.SimpleString) and re.search(rf"\b{old}\b", n.value) for n in self._ranges)
        safe = (
            len(assignments) == 1
            and not quoted
            and name not in self._bound
            and old not in self._keep
            and all(n is not None and n in self._ranges for n in names)
        )
        if safe:
            self._replace |= {n: n.with_changes(value=name) for n in names if n is not None}
        else:
            self._moved[statement][alias] = (*self._moved[statement][alias][:2], True)

    def _importable(self, dotted: str) -> tuple[str, str]:
        """The module and the name of `from MODULE import NAME`."""
        module, rest = self._split(dotted)
        if "." in rest:
            raise Refused(f"{dotted} is a member of a class now")
        if not rest:
            module, _, rest = module.rpartition(".")
        if not module:
            raise Refused(f"{dotted} is not in a module")
        return module, rest

    def _modules(self) -> dict[str, str]:
        """Modules by the expression that means them in this file: `import a.b`, `import a.b as c`."""
        found = {}
        for node in self._ranges:
            if isinstance(node, cst.Import):
                for alias in node.names:
                    target = _text(self._replace.get(alias.name, alias.name))
                    name = alias.asname.name if alias.asname else None
                    found[name.value if isinstance(name, cst.Name) else target] = target
        return found

    def _module_named(self, expression: str) -> str:
        """The module that an expression means once the plan is carried out; empty if it is none."""
        modules = self._modules()
        if expression in modules:
            return modules[expression]
        for node in self._ranges:
            if isinstance(node, cst.ImportFrom) and not isinstance(node.names, cst.ImportStar) and node.module:
                for alias in node.names:
                    name = alias.asname.name if alias.asname else alias.name
                    if _text(name) == expression:
                        stays = _text(node.module), _text(alias.name), False
                        path, leaf, _ = self._moved.get(node, {}).get(alias, stays)
                        return f"{path}.{leaf}"
        return ""

    def _imported_names(self) -> set[str]:
        aliases = (alias for moves in self._moved.values() for alias in moves)
        return {_text(alias.asname.name if alias.asname else alias.name) for alias in aliases}

    def _above(self, node: cst.CSTNode | None, *kinds: type[_Node]) -> _Node | None:
        while node is not None:
            if isinstance(node, kinds):
                return node
            node = self._parents.get(node)
        return None


class _Rewriter(cst.CSTTransformer):
    """Puts a plan's nodes in the place of the file's, and takes import statements apart where names part ways."""

    def __init__(self, replace: dict[cst.CSTNode, cst.CSTNode], moved: dict[cst.ImportFrom, _Moves]) -> None:
        super().__init__()
        self._replace = replace
        self._moved = moved
        self._alone: cst.CSTNode | None = None

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> Any:
        if original_node in self._replace:
            return self._replace[original_node]
        if isinstance(original_node, cst.SimpleStatementLine) and isinstance(updated_node, cst.SimpleStatementLine):
            if len(original_node.body) == 1 and original_node.body[0] in self._moved:
                return self._lines(original_node, updated_node)
        elif isinstance(original_node, cst.ImportFrom) and original_node in self._moved.keys() - {self._alone}:
            parts = _parts(original_node, self._moved[original_node])  # one of several statements on a line
            return cst.FlattenSentinel([part for part, _ in parts])
        return super().on_leave(original_node, updated_node)

    def visit_SimpleStatementLine(self, node: cst.SimpleStatementLine) -> None:
        self._alone = node.body[0] if len(node.body) == 1 else None

    def _lines(self, original: cst.SimpleStatementLine, updated: cst.SimpleStatementLine) -> Any:
        statement = original.body[0]
        assert isinstance(statement, cst.ImportFrom)
        (first, lost), *others = _parts(statement, self._moved[statement])
        behind = updated.trailing_whitespace
        if lost and not behind.comment:
            behind = behind.with_changes(whitespace=cst.SimpleWhitespace("  "), comment=lost)
        lines = [updated.with_changes(body=[first], trailing_whitespace=behind)]
        for other, comment in others:
            behind = cst.TrailingWhitespace(cst.SimpleWhitespace("  " if comment else ""), comment)
            lines.append(cst.SimpleStatementLine([other], trailing_whitespace=behind))
        return cst.FlattenSentinel(lines)


def _parts(statement: cst.ImportFrom, moves: _Moves) -> list[tuple[cst.ImportFrom, cst.Comment | None]]:
    """An import statement as one for each module that its names are in now; what stays comes first.

    Each with the comment that was behind its first name, where that name leaves.
    """
    assert statement.module is not None and not isinstance(statement.names, cst.ImportStar)
    groups: dict[str, list[cst.ImportAlias]] = {}
    for alias in statement.names:
        path, name, keep = moves.get(alias, (_text(statement.module), _text(alias.name), False))
        asname = cst.AsName(cst.Name(_text(alias.name))) if keep else alias.asname
        renamed = alias.with_changes(name=cst.Name(name), asname=asname)
        groups.setdefault(path, []).append(renamed)
    if len(groups) == 1:
        ((path, aliases),) = groups.items()
        return [(statement.with_changes(module=_dotted(path), names=aliases), None)]
    stays = _text(statement.module)
    parts: list[tuple[cst.ImportFrom, cst.Comment | None]] = []
    for path in sorted(groups, key=lambda path: path != stays):
        aliases = groups[path]
        if path == stays:
            last = _as_last(aliases[-1], statement.names[-1])
            parts.append((statement.with_changes(names=[*aliases[:-1], last]), None))
        else:
            plain = [alias.with_changes(comma=cst.MaybeSentinel.DEFAULT) for alias in aliases]
            comments = [comment for alias in aliases if (comment := _comment(alias))]
            parts.append((cst.ImportFrom(_dotted(path), plain), comments[0] if comments else None))
    return parts


def _as_last(alias: cst.ImportAlias, last: cst.ImportAlias) -> cst.ImportAlias:
    """A name where the statement's last one was: the bracket behind it stays where it is."""
    if not isinstance(last.comma, cst.Comma):
        return alias.with_changes(comma=cst.MaybeSentinel.DEFAULT)
    if alias is last or not isinstance(alias.comma, cst.Comma):
        return alias
    own, end = alias.comma.whitespace_after, last.comma.whitespace_after
    if isinstance(own, cst.ParenthesizedWhitespace) and isinstance(end, cst.ParenthesizedWhitespace):
        end = end.with_changes(first_line=own.first_line)
    return alias.with_changes(comma=alias.comma.with_changes(whitespace_after=end))


def _comment(alias: cst.ImportAlias) -> cst.Comment | None:
    """The comment behind a name in a list of names in parentheses."""
    space = alias.comma.whitespace_after if isinstance(alias.comma, cst.Comma) else None
    return space.first_line.comment if isinstance(space, cst.ParenthesizedWhitespace) else None


def _in_string(literal: str, rename: Rename) -> str:
    """A string with the dotted name in it, however it spells the way there, or with the bare last name."""
    old_leaf, new_leaf = rename.old.rpartition(".")[2], rename.new.rpartition(".")[2]
    if rename.what in ("symbol", "module"):
        exact = re.compile(_WHOLE_NAME.format(re.escape(rename.old)))
        if exact.search(literal):
            return exact.sub(rename.new, literal)
        # Through a re-export.
        root = re.escape(rename.old.partition(".")[0])
        path = re.compile(_WHOLE_NAME.format(rf"{root}\.(?:\w+\.)*{re.escape(old_leaf)}"))
        if path.search(literal):
            return path.sub(rename.new, literal)
        raise Refused("the string builds the name from parts")
    _check_same_owner(rename)
    found = re.findall(rf"\b{re.escape(old_leaf)}\b", literal)
    if len(found) != 1:
        raise Refused(f"the string has `{old_leaf}` {len(found)} times")
    return re.sub(rf"\b{re.escape(old_leaf)}\b", new_leaf, literal)


def _check_same_owner(rename: Rename) -> None:
    """Refuse a member that went to another class: the way to it from here is not known."""
    old, new = rename.old.split("."), rename.new.split(".")
    if old[-1] == new[-1]:
        raise Refused(f"it is in `{'.'.join(new[:-1])}` now: how that is reached from here has to be decided")


def _after_imports(body: Sequence[cst.CSTNode]) -> int:
    """Where a module's imports end: after the last, or after the docstring."""
    where = 0
    for index, node in enumerate(body):
        if not isinstance(node, cst.SimpleStatementLine):
            continue
        if isinstance(node.body[0], cst.Import | cst.ImportFrom) or (index == 0 and isinstance(node.body[0], cst.Expr)):
            where = index + 1
    return where


def _text(node: cst.CSTNode | str) -> str:
    """`a.b.c` of a name or a chain of attributes; empty for anything else."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        base = _text(node.value)
        return f"{base}.{node.attr.value}" if base else ""
    return ""


def _dotted(name: str) -> cst.Name | cst.Attribute:
    first, *rest = name.split(".")
    node: cst.Name | cst.Attribute = cst.Name(first)
    for part in rest:
        node = cst.Attribute(node, cst.Name(part))
    return node


def _leftmost(node: cst.CSTNode) -> cst.Name | None:
    while isinstance(node, cst.Attribute):
        node = node.value
    return node if isinstance(node, cst.Name) else None
