"""The outline of a Python file: what it defines, imports and calls, without the bodies.

An outline depends on the file's contents alone, so it is kept on disk by git blob id: a file that a range leaves alone,
or that an earlier run has seen, is not parsed again. Expressions are kept as source text and parsed when they matter.
"""

import ast
import json
import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torchtitan_sync import parallel

# Raised whenever an outline's form changes; older entries on disk are then not read.
VERSION = 4

_MANY = 200
"""From so many files on, a second process saves more than it costs to start."""


@dataclass(slots=True)
class Param:
    name: str
    kind: str
    """`/` positional only, `a` positional or keyword, `*` variable positional, `k` keyword only, `**`."""
    annotation: str = ""
    default: str = ""
    """Source text; empty where there is none."""


@dataclass(slots=True)
class Call:
    function: str
    """Source text of what is called."""
    positional: int
    keywords: tuple[str, ...]
    star: bool
    """Whether `*args` or `**kwargs` hide some arguments."""
    line: int
    scope: str
    """Qualified name of the function or class around it; empty at module level."""

    @property
    def name(self) -> str:
        return self.function.rpartition(".")[2]


@dataclass(slots=True)
class Symbol:
    name: str
    kind: str
    """`import`, `function`, `class` or `value`."""
    line: int
    end: int
    module: str = ""
    """Of an import: where from, relative dots included."""
    target: str = ""
    """Of `from module import target`; empty for `import module`."""
    typing: bool = False
    """Defined under `if TYPE_CHECKING`."""
    guarded: bool = False
    """Defined under `try` with a handler."""
    params: list[Param] = field(default_factory=list)
    returns: str = ""
    decorators: list[str] = field(default_factory=list)
    raises: list[str] = field(default_factory=list)
    bases: list[str] = field(default_factory=list)
    members: dict[str, "Symbol"] = field(default_factory=dict)
    attributes: dict[str, "Symbol"] = field(default_factory=dict)
    """Of a class: values assigned to `self.name`; `scope` is the method."""
    annotation: str = ""
    value: str = ""
    scope: str = ""
    dynamic: bool = False
    """A class that sets attributes by computed name."""

    def decorated(self, *names: str) -> bool:
        return any(text.partition("(")[0].rpartition(".")[2] in names for text in self.decorators)


@dataclass(slots=True)
class Table:
    names: dict[str, Symbol] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    exported: list[str] = field(default_factory=list)
    """`__all__`, empty where there is none."""
    calls: list[Call] = field(default_factory=list)
    used: dict[str, int] = field(default_factory=dict)
    """How often a name is read, by bare name and as `.attribute`."""
    keys: dict[str, list[str]] = field(default_factory=dict)
    """By module-level name, the string keys that statements of the module put into it."""
    imported: list[tuple[str, str, str, int]] = field(default_factory=list)
    """Every import anywhere in the file: module, target, name it is bound to, line."""
    guarded: set[int] = field(default_factory=set)
    """Lines of imports under `try` with a handler or under TYPE_CHECKING."""
    shadowed: dict[str, Symbol] = field(default_factory=dict)
    """Imports whose name a definition takes over: `class Args(Args)`."""
    broken: bool = False
    """The file is not valid Python."""


def build(source: bytes) -> Table:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return Table(broken=True)
    return _Builder(source).table(tree)


_SETS_ATTRIBUTES = {ast.Assign, ast.AnnAssign, ast.AugAssign, ast.With, ast.AsyncWith, ast.Call}


@dataclass(slots=True)
class _Inside:
    """What is around a node."""

    scope: str = ""
    guarded: bool = False
    raises: list[str] | None = None
    """Exceptions of the function that the outline has."""
    owner: Symbol | None = None
    """The class, in a method of one."""
    me: str = ""
    """Name of the method's first parameter."""
    method: str = ""


class _Builder:
    def __init__(self, source: bytes) -> None:
        self._lines = source.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._table = Table()
        self._functions: dict[ast.AST, Symbol] = {}
        self._owners: dict[ast.AST, Symbol] = {}
        """Classes by the syntax of their methods."""

    def text(self, node: ast.expr | None) -> str:
        if node is None:
            return ""
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        if first == last:
            return self._lines[first][node.col_offset : node.end_col_offset].decode("utf-8", "replace")
        parts = [self._lines[first][node.col_offset :], *self._lines[first + 1 : last]]
        parts.append(self._lines[last][: node.end_col_offset])
        return b"\n".join(parts).decode("utf-8", "replace")

    def table(self, tree: ast.Module) -> Table:
        self._block(tree.body, self._table.names, None)
        self._sweep(tree)
        return self._table

    # Definitions

    def _block(
        self,
        body: list[ast.stmt],
        names: dict[str, Symbol],
        owner: Symbol | None,
        *,
        typing: bool = False,
        guarded: bool = False,
        keep: bool = False,
    ) -> None:
        """`keep`: names that exist already win (the `except` or `else` side of a definition)."""

        def put(symbol: Symbol) -> None:
            symbol.typing, symbol.guarded = typing, guarded
            earlier = names.get(symbol.name)
            if owner is None and earlier is not None and earlier.kind == "import" != symbol.kind:
                self._table.shadowed[symbol.name] = earlier
            if not (keep and symbol.name in names):
                names[symbol.name] = symbol

        for node in body:
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    symbol = self._function(node)
                    earlier = names.get(node.name)
                    accessor = symbol.decorated("setter", "deleter") and earlier is not None
                    if not (accessor or symbol.decorated("overload")):
                        put(symbol)
                    if owner is not None:
                        self._owners[node] = owner
                case ast.ClassDef():
                    put(self._class(node))
                case ast.Import() | ast.ImportFrom():
                    for symbol in self._imports(node):
                        put(symbol)
                case ast.Assign():
                    for target in node.targets:
                        self._assign(target, node, put)
                case ast.AnnAssign(target=ast.Name(id=name)):
                    put(self._value(name, node, self.text(node.annotation), self.text(node.value)))
                case ast.AugAssign(target=ast.Name(id="__all__"), value=value):
                    self._table.exported += _strings(value)
                case ast.If():
                    checking = self.text(node.test).endswith("TYPE_CHECKING")
                    options: dict[str, Any] = {"guarded": guarded, "keep": keep}
                    self._block(node.body, names, owner, typing=typing or checking, **options)
                    self._block(node.orelse, names, owner, typing=typing, guarded=guarded, keep=not checking)
                case ast.Try():
                    covered = guarded or _catches_import(node)
                    self._block(node.body, names, owner, typing=typing, guarded=covered, keep=keep)
                    for handler in node.handlers:
                        self._block(handler.body, names, owner, typing=typing, guarded=guarded, keep=True)
                    self._block(node.orelse, names, owner, typing=typing, guarded=guarded, keep=keep)
                    self._block(node.finalbody, names, owner, typing=typing, guarded=guarded, keep=keep)
                case ast.With() | ast.AsyncWith() | ast.For() | ast.While():
                    self._block(node.body, names, owner, typing=typing, guarded=guarded, keep=keep)
                case _:
                    pass

    def _assign(self, target: ast.expr, node: ast.Assign, put: Any) -> None:
        match target:
            case ast.Name(id=name):
                put(self._value(name, node, "", self.text(node.value)))
                if name == "__all__":
                    self._table.exported = _strings(node.value)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                for index, element in enumerate(elements):
                    if isinstance(element, ast.Name):
                        text = self.text(node.value)
                        put(self._value(element.id, node, "", f"({text})[{index}]"))
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(key))):
                self._table.keys.setdefault(name, []).append(key)

    def _value(self, name: str, node: ast.stmt, annotation: str, value: str) -> Symbol:
        end = node.end_lineno or node.lineno
        return Symbol(name, "value", node.lineno, end, annotation=annotation, value=value)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Symbol:
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        symbol = Symbol(
            node.name,
            "function",
            first,
            node.end_lineno or node.lineno,
            params=self._params(node.args),
            returns=self.text(node.returns),
            decorators=[self.text(decorator) for decorator in node.decorator_list],
        )
        self._functions[node] = symbol
        return symbol

    def _params(self, arguments: ast.arguments) -> list[Param]:
        def param(argument: ast.arg, kind: str, default: ast.expr | None = None) -> Param:
            return Param(argument.arg, kind, self.text(argument.annotation), self.text(default))

        plain = [*arguments.posonlyargs, *arguments.args]
        defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults))
        defaults += arguments.defaults
        only = len(arguments.posonlyargs)
        found = [param(a, "/" if i < only else "a", d) for i, (a, d) in enumerate(zip(plain, defaults, strict=True))]
        if arguments.vararg:
            found.append(param(arguments.vararg, "*"))
        found += [param(a, "k", d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
        if arguments.kwarg:
            found.append(param(arguments.kwarg, "**"))
        return found

    def _class(self, node: ast.ClassDef) -> Symbol:
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        symbol = Symbol(
            node.name,
            "class",
            first,
            node.end_lineno or node.lineno,
            bases=[self.text(base) for base in node.bases]
            + [f"metaclass={self.text(word.value)}" for word in node.keywords if word.arg == "metaclass"],
            decorators=[self.text(decorator) for decorator in node.decorator_list],
        )
        self._block(node.body, symbol.members, symbol)
        return symbol

    def _attribute(self, target: ast.expr, node: ast.stmt, annotation: str, value: str, inside: "_Inside") -> None:
        """A value that a method assigns to an attribute of its object."""
        owner = inside.owner
        assert owner is not None
        match target:
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name == inside.me:
                symbol = self._value(attribute, node, annotation, value)
                symbol.scope = inside.method
                known = owner.attributes.get(attribute)
                if known is None or known.value in ("", "None") or (annotation and not known.annotation):
                    owner.attributes[attribute] = symbol
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                for index, element in enumerate(elements):
                    self._attribute(element, node, "", f"({value})[{index}]", inside)

    def _attributes(self, node: ast.AST, inside: "_Inside") -> None:
        owner = inside.owner
        assert owner is not None
        match node:
            case ast.Assign():
                if any(not isinstance(target, ast.Name) for target in node.targets):
                    text = self.text(node.value)
                    for target in node.targets:
                        self._attribute(target, node, "", text, inside)
            case ast.AnnAssign(target=ast.Attribute()):
                self._attribute(node.target, node, self.text(node.annotation), self.text(node.value), inside)
            case ast.AugAssign(target=ast.Attribute()):
                self._attribute(node.target, node, "", "", inside)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    if item.optional_vars is not None:
                        self._attribute(item.optional_vars, node, "", self.text(item.context_expr), inside)
            case ast.Call(func=ast.Name(id="setattr"), args=[ast.Name(id=name), key, *_]) if name == inside.me:
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    owner.attributes.setdefault(key.value, Symbol(key.value, "value", node.lineno, node.lineno))
                else:
                    owner.dynamic = True
            case ast.Call(func=ast.Attribute(ast.Attribute(ast.Name(id=name), "__dict__"), "update")) if (
                name == inside.me
            ):
                owner.dynamic = True

    def _imports(self, node: ast.Import | ast.ImportFrom) -> Iterator[Symbol]:
        end = node.end_lineno or node.lineno
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                yield Symbol(alias.asname or whole, "import", node.lineno, end, module=whole)
            return
        module = "." * node.level + (node.module or "")
        for alias in node.names:
            if alias.name == "*":
                self._table.stars.append(module)
            else:
                yield Symbol(alias.asname or alias.name, "import", alias.lineno, end, module=module, target=alias.name)

    # Everything that is used, wherever it is

    def _sweep(self, tree: ast.Module) -> None:
        """One pass over every node, in the order of the source."""
        used = self._table.used
        rest: list[tuple[ast.AST, _Inside]] = [(tree, _Inside())]
        while rest:
            node, inside = rest.pop()
            kind = type(node)
            if kind is ast.Name:
                if isinstance(node.ctx, ast.Load):  # type: ignore[attr-defined]
                    used[node.id] = used.get(node.id, 0) + 1  # type: ignore[attr-defined]
                continue
            if kind is ast.Constant:
                continue
            if inside.owner is not None and kind in _SETS_ATTRIBUTES:
                self._attributes(node, inside)
            match node:
                case ast.Attribute(attr=name):
                    used["." + name] = used.get("." + name, 0) + 1
                case ast.Call():
                    self._call(node, inside.scope)
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    inside = self._entered(node, inside)
                case ast.Import() | ast.ImportFrom():
                    self._note_import(node, inside.guarded)
                case ast.Raise():
                    name = _raised(node)
                    if name and inside.raises is not None and name not in inside.raises:
                        inside.raises.append(name)
                case ast.Try():
                    inside = replace(inside, guarded=inside.guarded or _catches_import(node))
                case ast.If():
                    checking = self.text(node.test).endswith("TYPE_CHECKING")
                    inside = replace(inside, guarded=True) if checking else inside
            children: list[tuple[ast.AST, _Inside]] = []
            for name in node._fields:
                value = getattr(node, name, None)
                if isinstance(value, list):
                    children += [(child, inside) for child in value if isinstance(child, ast.AST)]
                elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context | ast.operator):
                    children.append((value, inside))
            rest += reversed(children)
        for symbol in self._functions.values():
            symbol.raises.sort()

    def _entered(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, inside: "_Inside") -> "_Inside":
        scope = f"{inside.scope}.{node.name}" if inside.scope else node.name
        symbol, owner = self._functions.get(node), self._owners.get(node)
        inside = replace(inside, scope=scope)
        if symbol is not None:
            inside = replace(inside, raises=symbol.raises, owner=None)
        if owner is not None and not isinstance(node, ast.ClassDef) and node.args.args:
            inside = replace(inside, owner=owner, me=node.args.args[0].arg, method=node.name)
        return inside

    def _note_import(self, node: ast.Import | ast.ImportFrom, guarded: bool) -> None:
        if guarded:
            self._table.guarded.add(node.lineno)
        if isinstance(node, ast.Import):
            for alias in node.names:
                self._table.imported.append((alias.name, "", alias.asname or alias.name, node.lineno))
            return
        module = "." * node.level + (node.module or "")
        for alias in node.names:
            self._table.imported.append((module, alias.name, alias.asname or alias.name, node.lineno))

    def _call(self, node: ast.Call, scope: str) -> None:
        if not isinstance(node.func, ast.Name | ast.Attribute):
            return
        star = any(isinstance(argument, ast.Starred) for argument in node.args)
        star = star or any(word.arg is None for word in node.keywords)
        words = tuple(word.arg for word in node.keywords if word.arg is not None)
        positional = sum(not isinstance(argument, ast.Starred) for argument in node.args)
        self._table.calls.append(Call(self.text(node.func), positional, words, star, node.lineno, scope))


def _raised(node: ast.AST) -> str:
    if not isinstance(node, ast.Raise) or node.exc is None:
        return ""
    error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    if isinstance(error, ast.Attribute):
        return error.attr
    return error.id if isinstance(error, ast.Name) and error.id[:1].isupper() else ""


def _catches_import(node: ast.Try) -> bool:
    caught = {"ImportError", "ModuleNotFoundError", "AttributeError", "Exception", "BaseException"}
    return any(
        handler.type is None or any(isinstance(n, ast.Name) and n.id in caught for n in ast.walk(handler.type))
        for handler in node.handlers
    )


def _strings(node: ast.AST) -> list[str]:
    return [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]


# On disk


class Cache:
    """Outlines by blob id in one file. A file that cannot be used is done without: the cache only saves time."""

    def __init__(self, path: Path | None) -> None:
        self._known: dict[str, Table] = {}
        self._fresh: dict[str, Table] = {}
        self._rows: dict[str, bytes] = {}
        """Fresh ones that are packed already."""
        self._database = _open(path) if path is not None else None

    def tables(self, sources: dict[str, bytes]) -> dict[str, Table]:
        """Outlines by blob id."""
        cold = self.load(sources)
        made = parallel.each(_row, {blob: sources[blob] for blob in cold}) if len(cold) > _MANY else {}
        for blob, row in made.items():
            self._known[blob], self._rows[blob] = _unpack(row), row
        for blob, source in sources.items():
            if blob not in self._known:
                self._known[blob] = self._fresh[blob] = build(source)
        return {blob: self._known[blob] for blob in sources}

    def load(self, blobs: Iterable[str]) -> set[str]:
        """Read from disk what is there; returns the ids that are not, whose contents are therefore needed."""
        wanted = [blob for blob in blobs if blob not in self._known]
        for start in range(0, len(wanted) if self._database is not None else 0, 500):
            part = wanted[start : start + 500]
            marks = ",".join("?" * len(part))
            assert self._database is not None
            try:
                rows = self._database.execute(f"select blob, data from outline where blob in ({marks})", part)
                for blob, data in rows:
                    self._known[blob] = _unpack(data)
            except (sqlite3.Error, zlib.error, ValueError, TypeError, KeyError):
                break
        return {blob for blob in wanted if blob not in self._known}

    def get(self, blob: str) -> Table:
        return self._known[blob]

    def save(self) -> None:
        if self._database is None or not (self._fresh or self._rows):
            return
        rows = [*self._rows.items(), *((blob, _pack(table)) for blob, table in self._fresh.items())]
        try:
            with self._database:
                self._database.executemany("insert or replace into outline values (?, ?)", rows)
        except sqlite3.Error:
            return
        self._fresh, self._rows = {}, {}


def _open(path: Path) -> sqlite3.Connection | None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(path, timeout=5)
        if database.execute("pragma user_version").fetchone()[0] != VERSION:
            database.execute("drop table if exists outline")
            database.execute(f"pragma user_version = {VERSION}")
        database.execute("create table if not exists outline (blob text primary key, data blob)")
        database.commit()
        return database
    except (OSError, sqlite3.Error):
        return None


def _row(source: bytes) -> bytes:
    """From source to the form on disk: made in another process, it need not be packed again to be kept."""
    return _pack(build(source))


def _pack(table: Table) -> bytes:
    return zlib.compress(json.dumps(_encode(table), separators=(",", ":")).encode(), 1)


def _unpack(data: bytes) -> Table:
    return _decode(json.loads(zlib.decompress(data)))


def _encode(table: Table) -> dict[str, Any]:
    return {
        "names": [_encode_symbol(symbol) for symbol in table.names.values()],
        "stars": table.stars,
        "exported": table.exported,
        "calls": [[c.function, c.positional, c.keywords, c.star, c.line, c.scope] for c in table.calls],
        "used": table.used,
        "keys": table.keys,
        "imported": table.imported,
        "guarded": sorted(table.guarded),
        "shadowed": [_encode_symbol(symbol) for symbol in table.shadowed.values()],
        "broken": table.broken,
    }


def _decode(data: dict[str, Any]) -> Table:
    return Table(
        names={symbol.name: symbol for symbol in map(_decode_symbol, data["names"])},
        stars=data["stars"],
        exported=data["exported"],
        calls=[Call(f, p, tuple(k), s, line, scope) for f, p, k, s, line, scope in data["calls"]],
        used=data["used"],
        keys=data["keys"],
        imported=[(module, target, name, line) for module, target, name, line in data["imported"]],
        guarded=set(data["guarded"]),
        shadowed={symbol.name: symbol for symbol in map(_decode_symbol, data["shadowed"])},
        broken=data["broken"],
    )


_FIELDS = [name for name in Symbol.__slots__ if name not in ("members", "attributes", "params")]
_EMPTY = Symbol("", "", 0, 0)


def _encode_symbol(symbol: Symbol) -> dict[str, Any]:
    """Without the fields that have their default."""
    data = {name: getattr(symbol, name) for name in _FIELDS if getattr(symbol, name) != getattr(_EMPTY, name)}
    if symbol.params:
        data["params"] = [[p.name, p.kind, p.annotation, p.default] for p in symbol.params]
    for nested in ("members", "attributes"):
        if getattr(symbol, nested):
            data[nested] = [_encode_symbol(member) for member in getattr(symbol, nested).values()]
    return data


def _decode_symbol(data: dict[str, Any]) -> Symbol:
    symbol = Symbol(**{name: value for name, value in data.items() if name in _FIELDS})
    symbol.params = [Param(*values) for values in data.get("params", ())]
    for nested in ("members", "attributes"):
        setattr(symbol, nested, {m.name: m for m in map(_decode_symbol, data.get(nested, ()))})
    return symbol
