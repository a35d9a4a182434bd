"""What a plugin asks of upstream, as questions that a Python with upstream on its path can answer.

A second, simpler reading of a plugin than the tool's own, sharing no code with it, so that the two can be compared. It
follows names without regard to flow: what it cannot follow it does not ask about.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Question:
    """Does this resolve, and does this call bind?"""

    start: str
    """A dotted upstream name."""
    instance: bool
    """Whether the steps start at an instance of the class `start`, or at `start` itself."""
    steps: tuple[str, ...] = ()
    call: tuple[int, tuple[str, ...], bool] | None = None
    """Number of positional arguments, keywords, and whether `*` or `**` brings more. None: no call."""
    override: bool = False
    """Whether the last step is a method that the plugin overrides."""

    def path(self) -> tuple[str, ...]:
        return (*self.start.split("."), *self.steps)

    def text(self) -> str:
        text = ".".join([self.start + ("()" if self.instance else ""), *self.steps])
        if self.call:
            words = [f"{self.call[0]} positional", *(f"{name}=" for name in self.call[1])]
            text += f"({', '.join(words)}{', *' if self.call[2] else ''})"
        return text + (" overridden" if self.override else "")


@dataclass(frozen=True)
class Value:
    start: str
    instance: bool = False
    steps: tuple[str, ...] = ()

    def step(self, name: str) -> "Value":
        if not self.instance:
            return Value(f"{self.start}.{name}")
        return Value(self.start, True, (*self.steps, name))


@dataclass
class Scope:
    names: dict[str, Value | None] = field(default_factory=dict)
    """None: bound to something that is not followed."""
    parent: "Scope | None" = None

    def get(self, name: str) -> Value | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return None


def questions(root: Path, folders: list[str], upstream: str) -> Iterator[tuple[str, int, Question]]:
    """Every (file, line, question) of the Python files in these folders of a plugin's repository."""
    for folder in folders:
        base = root / folder
        for path in sorted(base.rglob("*.py")) if base.is_dir() else [base]:
            try:
                tree = ast.parse(path.read_bytes())
            except SyntaxError:
                continue
            reader = _Reader(upstream)
            reader.block(tree.body, Scope())
            name = path.relative_to(root).as_posix()
            yield from ((name, line, question) for line, question in sorted(reader.found, key=lambda pair: pair[0]))


class _Reader:
    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self.found: dict[tuple[int, Question], None] = {}
        self._own: dict[str, set[str]] = {}

    def ask(self, line: int, question: Question) -> None:
        self.found[line, question] = None

    def block(self, body: list[ast.stmt], scope: Scope) -> None:
        for statement in body:
            self.statement(statement, scope)

    def statement(self, node: ast.stmt, scope: Scope) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            self.imports(node, scope)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            scope.names[node.name] = None
            self.function(node, scope, None)
        elif isinstance(node, ast.ClassDef):
            scope.names[node.name] = None
            self.class_(node, scope)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            self.assignment(node, scope)
        else:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.stmt):
                    self.statement(child, scope)
                elif isinstance(child, ast.ExceptHandler | ast.match_case):
                    self.block(child.body, scope)
                elif isinstance(child, ast.withitem):
                    self.value(child.context_expr, scope)
                    if isinstance(child.optional_vars, ast.Name):
                        scope.names[child.optional_vars.id] = None
                elif isinstance(child, ast.expr):
                    if isinstance(node, ast.For | ast.AsyncFor) and child is node.target:
                        self.unknown(child, scope)
                    else:
                        self.value(child, scope)

    def imports(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if not self.ours(alias.name):
                    scope.names[alias.asname or alias.name.partition(".")[0]] = None
                    continue
                self.ask(alias.lineno, Question(alias.name, False))
                name = alias.name if alias.asname else self._upstream
                scope.names[alias.asname or self._upstream] = Value(name)
            return
        for alias in node.names:
            if node.level or not self.ours(node.module or ""):
                scope.names[alias.asname or alias.name] = None
            elif alias.name == "*":
                self.ask(node.lineno, Question(node.module or "", False))
            else:
                value = Value(f"{node.module}.{alias.name}")
                self.ask(alias.lineno, Question(value.start, False))
                scope.names[alias.asname or alias.name] = value

    def ours(self, module: str) -> bool:
        return module.split(".")[0] == self._upstream

    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope, itself: Value | None) -> None:
        for expression in (*node.decorator_list, *node.args.defaults, *node.args.kw_defaults, node.returns):
            if expression is not None:
                self.value(expression, scope)
        inner = Scope(parent=scope)
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for index, argument in enumerate(arguments):
            inner.names[argument.arg] = self.annotated(argument.annotation, scope)
            if index == 0 and itself is not None and argument.arg == "self":
                inner.names["self"] = itself
        for star in (node.args.vararg, node.args.kwarg):
            if star:
                inner.names[star.arg] = None
        self.rebound(node.body, inner)
        self.block(node.body, inner)

    def rebound(self, body: list[ast.stmt], scope: Scope) -> None:
        """A name that a function assigns more than once is not followed."""
        seen: set[str] = set()
        for statement in body:
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    if node.id in seen or node.id in scope.names:
                        scope.names[node.id] = None
                        self._own.setdefault("", set()).add(f"{id(scope)}.{node.id}")
                    seen.add(node.id)

    def annotated(self, annotation: ast.expr | None, scope: Scope) -> Value | None:
        if annotation is None:
            return None
        value = self.value(annotation, scope)
        return Value(value.start, True) if value and not value.instance else None

    def class_(self, node: ast.ClassDef, scope: Scope) -> None:
        bases = [self.value(base, scope) for base in node.bases]
        for expression in (*node.decorator_list, *(keyword.value for keyword in node.keywords)):
            self.value(expression, scope)
        ours = [base for base in bases if base and not base.instance]
        base = ours[0] if len(node.bases) == 1 and ours else None
        own = {n.name for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
        for child in ast.walk(node):
            if isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store | ast.Del):
                own.add(child.attr)
            elif isinstance(child, ast.AnnAssign | ast.Assign):
                targets = child.targets if isinstance(child, ast.Assign) else [child.target]
                own |= {target.id for target in targets if isinstance(target, ast.Name)}
        inner = Scope(parent=scope)
        itself = Value(base.start, True) if base else None
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                if base and not statement.name.startswith("__"):
                    self.ask(statement.lineno, Question(base.start, True, (statement.name,), override=True))
                outer, self._itself, self._mine = (self._itself, self._mine), base, own
                self.function(statement, scope, itself)
                self._itself, self._mine = outer
            else:
                self.statement(statement, inner)

    _itself: Value | None = None
    _mine: set[str] = set()  # noqa: RUF012

    def assignment(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign, scope: Scope) -> None:
        value = self.value(node.value, scope) if node.value is not None else None
        if isinstance(node, ast.AnnAssign):
            value = self.annotated(node.annotation, scope) or value
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name):
                if f"{id(scope)}.{target.id}" not in self._own.get("", ()):
                    scope.names[target.id] = value
            elif isinstance(target, ast.Attribute):
                owner = self.value(target.value, scope)
                if owner and not (isinstance(target.value, ast.Name) and target.value.id == "self"):
                    # Setting an attribute of upstream's is replacing it.
                    self.query(target.lineno, owner.step(target.attr))
            else:
                self.unknown(target, scope)

    def unknown(self, target: ast.expr, scope: Scope) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                scope.names[node.id] = None

    def query(self, line: int, value: Value) -> None:
        self.ask(line, Question(value.start, value.instance, value.steps))

    def value(self, node: ast.expr, scope: Scope) -> Value | None:
        """What an expression is, asking about all that it uses on the way."""
        if isinstance(node, ast.Name):
            return scope.get(node.id)
        if isinstance(node, ast.Attribute):
            return self.attribute(node, scope)
        if isinstance(node, ast.Call):
            return self.call(node, scope)
        if isinstance(node, ast.Constant):
            return self.text(node)
        if isinstance(node, ast.Lambda):
            inner = Scope({argument.arg: None for argument in node.args.args}, scope)
            self.value(node.body, inner)
            return None
        inner = scope
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            inner = Scope(parent=scope)
            for generator in node.generators:
                self.value(generator.iter, inner)
                self.unknown(generator.target, inner)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child, inner)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):  # `Class | None`
            sides = [self.value(node.left, scope), self.value(node.right, scope)]
            known = [side for side in sides if side]
            return known[0] if len(known) == 1 else None
        return None

    def attribute(self, node: ast.Attribute, scope: Scope) -> Value | None:
        if isinstance(node.value, ast.Call) and ast.unparse(node.value) == "super()":
            if self._itself:
                value = Value(self._itself.start, True, (node.attr,))
                self.query(node.end_lineno or node.lineno, value)
                return value
            return None
        base = self.value(node.value, scope)
        if base is None:
            return None
        if isinstance(node.value, ast.Name) and node.value.id == "self" and node.attr in self._mine:
            return None
        value = base.step(node.attr)
        if isinstance(node.ctx, ast.Load):
            self.query(node.end_lineno or node.lineno, value)
        return value

    def call(self, node: ast.Call, scope: Scope) -> Value | None:
        callee = self.value(node.func, scope)
        for argument in node.args:
            self.value(argument.value if isinstance(argument, ast.Starred) else argument, scope)
        for keyword in node.keywords:
            self.value(keyword.value, scope)
        name = ast.unparse(node.func)
        if name in ("getattr", "hasattr", "setattr") and len(node.args) >= 2 and isinstance(node.args[1], ast.Constant):
            owner = self.value(node.args[0], scope)
            soft = name == "hasattr" or (name == "getattr" and len(node.args) == 3)
            if owner and isinstance(node.args[1].value, str) and not soft:
                self.query(node.lineno, owner.step(node.args[1].value))
                return owner.step(node.args[1].value) if name == "getattr" else None
            return None
        if callee is None:
            return None
        star = any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords)
        words = tuple(k.arg for k in node.keywords if k.arg)
        positional = sum(not isinstance(a, ast.Starred) for a in node.args)
        # Each keyword by itself, where it stands, and the call as a whole.
        for keyword in node.keywords:
            if keyword.arg:
                alone = Question(callee.start, callee.instance, callee.steps, (0, (keyword.arg,), True))
                self.ask(keyword.lineno, alone)
        whole = Question(callee.start, callee.instance, callee.steps, (positional, words, star))
        self.ask(node.func.end_lineno or node.lineno, whole)
        looks_like_class = callee.start.rpartition(".")[2][:1].isupper()
        return Value(callee.start, True) if looks_like_class and not callee.instance else None

    def text(self, node: ast.Constant) -> Value | None:
        """A dotted string, as `mock.patch` takes it, or as an annotation."""
        text = node.value
        if not isinstance(text, str) or not self.ours(text) or "." not in text:
            return None
        if not all(part.isidentifier() for part in text.split(".")):
            return None
        self.ask(node.lineno, Question(text, False))
        return Value(text)
