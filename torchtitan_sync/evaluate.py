"""Walks code without running it: what each expression stands for, and every use of upstream on the way.

The same walk reads the plugin (with a `Record`, which collects the uses) and, where a type depends on it, a body of
upstream's (without). Statements are taken in order; both sides of a condition are walked with the same names.
"""

import ast
import contextlib
import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from torchtitan_sync import signatures
from torchtitan_sync.binding import Arguments, Binding, bind
from torchtitan_sync.program import Found, Missing, Outside, Program, Result
from torchtitan_sync.tables import Symbol
from torchtitan_sync.values import (
    Absent,
    AnyOf,
    Class,
    External,
    Function,
    Group,
    Instance,
    Module,
    Partial,
    Registry,
    Super,
    Text,
    Value,
    any_of,
)

_DEEPEST = 12
"""Calls and attributes through which a type is followed."""

_LISTS = {"list", "List", "Sequence", "Iterable", "Iterator", "Generator", "set", "frozenset", "deque", "Collection"}
_LISTS |= {"MutableSequence", "Set", "AsyncIterator", "Reversible", "FrozenSet", "AbstractSet", "ModuleList"}
_DICTS = {"dict", "Dict", "Mapping", "MutableMapping", "defaultdict", "OrderedDict", "ModuleDict"}
_TRANSPARENT = {"Annotated", "ClassVar", "Final", "Required", "NotRequired", "ReadOnly", "InitVar", "Awaitable"}


@dataclass(slots=True)
class Place:
    file: str
    line: int
    column: int
    end_column: int


@dataclass(slots=True)
class Ref:
    """A name that was looked up in upstream."""

    place: Place
    kind: str
    """`import`, `module`, `attribute`, `store`, `key`, `string`, `getattr`, `option`, `name`."""
    name: str
    result: Result
    owner: str
    """Where it was looked up: a module, or the class of the object."""
    guarded: bool = False
    """Its failure is caught, or asked for before."""
    typing: bool = False
    """Only type checkers see it."""


@dataclass(slots=True)
class CallRef:
    place: Place
    signature: signatures.Signature | None
    arguments: Arguments
    binding: Binding | None
    words: dict[str, Place]
    texts: dict[str, str]
    """Constant strings by parameter (or position as `#0`)."""
    functions: dict[str, Value]
    """Functions and classes that are handed over, by parameter."""
    path: str
    guarded: bool
    value: Value | None = None
    unpacked: int = 0
    """Names that the result is unpacked into; 0 where it is not."""
    expects: Place | None = None


@dataclass(slots=True)
class PatchRef:
    place: Place
    owner: str
    """Dotted name of the module or class that is changed."""
    name: str
    result: Result
    replacement: Value | None
    how: str
    """`assignment`, `setattr`, `mock`, `sys.modules`."""


@dataclass(slots=True)
class HandlerRef:
    """Exceptions that are expected around calls."""

    place: Place
    caught: tuple[str, ...]
    calls: list[str] = field(default_factory=list)
    """Dotted names of the functions called inside."""


@dataclass
class Record:
    file: str
    upstream: str
    refs: list[Ref] = field(default_factory=list)
    calls: list[CallRef] = field(default_factory=list)
    patches: list[PatchRef] = field(default_factory=list)
    handlers: list[HandlerRef] = field(default_factory=list)
    wrapped: list[tuple[Place, str]] = field(default_factory=list)
    """Upstream functions that the plugin wraps with `functools.wraps`."""


@dataclass
class Scope:
    names: dict[str, Value | None] = field(default_factory=dict)
    above: "Scope | None" = None
    cls: Class | None = None
    """The class around a method."""
    body: str = ""
    """Qualified name of the class whose body this is: its own names come first."""

    def find(self, name: str) -> "Scope | None":
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope
            scope = scope.above
        return None


Hints = dict[tuple[str, str], tuple[str, str]]
"""A plugin's function (module, name) whose parameters are those of an upstream function: see `Evaluator._param`."""


class Evaluator:
    def __init__(self, program: Program, module: str, record: Record | None = None, hints: Hints | None = None) -> None:
        self.program = program
        self.module = module
        self.record = record
        self.hints = hints or {}
        self._guards = 0
        self._typing = 0
        self._annotations = 0
        self._asked: list[str] = []
        self._deferred: list[tuple[ast.FunctionDef | ast.AsyncFunctionDef, Scope, str]] = []
        self._handlers: list[HandlerRef] = []
        self.returned: list[Value | None] = []
        self._narrowed: dict[str, Value] = {}

    # Entry points

    def module_body(self, tree: ast.Module) -> None:
        scope = Scope()
        self.statements(tree.body, scope, "")
        self._finish()

    def _finish(self) -> None:
        """Function bodies come after the statements around them, whose names they see."""
        while self._deferred:
            node, scope, qualified = self._deferred.pop(0)
            guards, self._guards = self._guards, 0
            narrowed, self._narrowed = self._narrowed, {}
            self._function_body(node, scope, qualified)
            self._guards, self._narrowed = guards, narrowed

    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, cls: Class | None, qualified: str) -> Scope:
        """Walk one function; `returned` then holds what it returns. The scope holds what its names stand for."""
        scope = self._function_body(node, Scope(cls=cls), qualified)
        self._finish()
        return scope

    # Statements

    def statements(self, body: list[ast.stmt], scope: Scope, qualified: str) -> None:
        for node in body:
            self.statement(node, scope, qualified)

    def statement(self, node: ast.stmt, scope: Scope, qualified: str) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._define(node, scope, qualified)
            case ast.ClassDef():
                self._class(node, scope, qualified)
            case ast.Import() | ast.ImportFrom():
                self._import(node, scope)
            case ast.Assign(targets=targets, value=value):
                self._assign(targets, value, scope)
            case ast.AnnAssign(target=target, annotation=annotation, value=value):
                self._expression_in_annotation(annotation, scope)
                found = self.value(value, scope) if value is not None else None
                declared = self.annotated(annotation, scope)
                vague = declared is None or declared == External("typing.Any", instance=True)
                self._bind(target, found if vague else declared, scope, None)
            case ast.AugAssign(target=target, value=value):
                self.value(value, scope)
                if isinstance(target, ast.Attribute):
                    self.value(ast.copy_location(ast.Attribute(target.value, target.attr, ast.Load()), target), scope)
            case ast.Return(value=value):
                self.returned.append(self.value(value, scope) if value is not None else Absent())
            case ast.If():
                self._if(node, scope, qualified)
            case ast.For() | ast.AsyncFor():
                self._bind(node.target, self._element(self.value(node.iter, scope)), scope, None)
                self.statements([*node.body, *node.orelse], scope, qualified)
            case ast.While():
                self.value(node.test, scope)
                self.statements([*node.body, *node.orelse], scope, qualified)
            case ast.With() | ast.AsyncWith():
                self._with(node, scope, qualified)
            case ast.Try():
                self._try(node, scope, qualified)
            case ast.Assert(test=test, msg=message):
                self.value(test, scope)
                if message is not None:
                    self.value(message, scope)
                self._narrow(test, scope, positive=True)
            case ast.Match(subject=subject, cases=cases):
                self._match(subject, cases, scope, qualified)
            case ast.Expr(value=ast.Constant()):
                pass  # a docstring
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self.value(child, scope)

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope, qualified: str) -> None:
        name = f"{qualified}.{node.name}" if qualified else node.name
        if self.record is not None:
            for decorator in node.decorator_list:
                self.value(decorator, scope)
            for default in [*node.args.defaults, *node.args.kw_defaults]:
                if default is not None:
                    self.value(default, scope)
            arguments = node.args
            for argument in [
                *arguments.posonlyargs,
                *arguments.args,
                *arguments.kwonlyargs,
                arguments.vararg,
                arguments.kwarg,
            ]:
                if argument is not None and argument.annotation is not None:
                    self._expression_in_annotation(argument.annotation, scope)
            if node.returns is not None:
                self._expression_in_annotation(node.returns, scope)
        local = self.program.symbol(self.module, name) is None
        if local:  # a function in a function: its value is not in the outline
            scope.names[node.name] = Group("callable", (self.annotated(node.returns, scope),))
        self._deferred.append((node, scope, name))

    def _class(self, node: ast.ClassDef, scope: Scope, qualified: str) -> None:
        name = f"{qualified}.{node.name}" if qualified else node.name
        for child in [*node.decorator_list, *node.bases, *(word.value for word in node.keywords)]:
            self.value(child, scope)
        known = self.program.symbol(self.module, name) is not None
        cls = Class(self.module, name) if known else None
        inner = Scope(above=scope, cls=cls, body=name if known else "")
        self.statements(node.body, inner, name)
        if not known:
            scope.names[node.name] = None

    def _function_body(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope, qualified: str) -> Scope:
        # A class's names are not seen by its methods' bodies, except in annotations.
        above = scope.above if scope.body else scope
        inner = Scope(above=above, cls=scope.cls)
        symbol = self.program.symbol(self.module, qualified)
        method = scope.cls is not None and qualified.rpartition(".")[0] == scope.cls.name
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for index, argument in enumerate(arguments):
            value = self.annotated(argument.annotation, scope)
            if value is None and method and index == 0 and symbol is not None and not symbol.decorated("staticmethod"):
                assert scope.cls is not None
                value = scope.cls if symbol.decorated("classmethod") else Instance(scope.cls)
            if value is None:
                value = self._param(argument.arg, index, qualified, scope.cls if method else None)
            inner.names[argument.arg] = value
        if node.args.vararg is not None:
            item = self.annotated(node.args.vararg.annotation, scope)
            inner.names[node.args.vararg.arg] = Group("list", (item,))
        if node.args.kwarg is not None:
            inner.names[node.args.kwarg.arg] = None
        outer, self.returned = self.returned, []
        self.statements(node.body, inner, qualified)
        if outer:
            self.returned = outer
        return inner

    def _param(self, name: str, index: int, qualified: str, cls: Class | None) -> Value | None:
        """An unannotated parameter has the type it has in the upstream function that this one overrides or replaces."""
        target: Found | None = None
        if cls is not None:
            found = self.program.attribute(cls, qualified.rpartition(".")[2], after=cls, follow=False)
            target = found if isinstance(found, Found) else None
        elif (self.module, qualified) in self.hints:
            owner, function = self.hints[self.module, qualified]
            result = self.program.resolve(f"{owner}.{function}")
            target = result if isinstance(result, Found) else None
        if target is None or target.symbol is None or target.symbol.kind != "function":
            return None
        params = target.symbol.params
        if index == 0 and cls is None and target.owner is not None:
            return Instance(target.owner)
        wanted = next((p for p in params if p.name == name), None)
        if wanted is None or not wanted.annotation:
            return None
        home = target.owner.name if target.owner is not None else ""
        return annotation(self.program, target.module, home, wanted.annotation)

    def _assign(self, targets: list[ast.expr], node: ast.expr, scope: Scope) -> None:
        value = self.value(node, scope)
        call = self.record.calls[-1] if self.record and self.record.calls and isinstance(node, ast.Call) else None
        for target in targets:
            if (
                isinstance(target, ast.Tuple)
                and call is not None
                and not any(isinstance(e, ast.Starred) for e in target.elts)
            ):
                at = call.place
                if at.line == node.lineno or at.line == (node.end_lineno or 0):
                    call.unpacked = len(target.elts)
            self._bind(target, value, scope, node)

    def _bind(self, target: ast.expr, value: Value | None, scope: Scope, node: ast.expr | None) -> None:
        match target:
            case ast.Name(id=name):
                if not (isinstance(value, Absent) and scope.names.get(name) is not None):
                    scope.names[name] = value
                self._narrowed.pop(name, None)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                for index, element in enumerate(elements):
                    inner = element.value if isinstance(element, ast.Starred) else element
                    self._bind(inner, None if inner is not element else self._item(value, index), scope, None)
            case ast.Attribute():
                self._store(target, value, scope)
            case ast.Subscript(value=ast.Attribute(value=base, attr="modules"), slice=ast.Constant(value=str(name))):
                owner = self.value(base, scope)
                if owner == External("sys") and self.record is not None and self._upstream(name):
                    self._patch(target, name.rpartition(".")[0], name.rpartition(".")[2], value, "sys.modules")
            case ast.Subscript():
                self.value(target.value, scope)
                self.value(target.slice, scope)
            case ast.Starred(value=inner):
                self._bind(inner, value, scope, node)

    def _store(self, target: ast.Attribute, value: Value | None, scope: Scope) -> None:
        owner = self.value(target.value, scope)
        if self.record is None:
            return
        text = ast.unparse(target)
        if value is not None:
            self._narrowed[text] = value
        else:
            self._narrowed.pop(text, None)
        match owner:
            case Module(name=name) if self._upstream(name):
                self._patch(target, name, target.attr, value, "assignment")
            case Class() if self._upstream(owner.module):
                self._patch(target, owner.path, target.attr, value, "assignment")
            case Instance(of=cls) if self._upstream(cls.module) or self._inherits(cls):
                if isinstance(target.value, ast.Name) and target.value.id == "self":
                    return  # an object's own attribute, not a use of upstream's
                found = self.program.attribute(cls, target.attr)
                replaces = isinstance(found, Found) and found.symbol is not None and found.symbol.kind == "function"
                if replaces and isinstance(value, Function | Group | Partial):
                    self._patch(target, cls.path, target.attr, value, "assignment")
                else:
                    self._note(target, "store", target.attr, found, cls.path)

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        program = self.program
        top = not scope.above and not scope.cls and scope is not None and self._at_module_level(scope)
        if isinstance(node, ast.Import):
            for alias in node.names:
                result = program.module_result(alias.name)
                self._note_at(alias, "module", alias.name, result, alias.name.rpartition(".")[0], alias.col_offset)
                if not top:
                    whole = alias.name if alias.asname else alias.name.partition(".")[0]
                    name = alias.asname or whole
                    if isinstance(result, Found) and alias.asname:
                        scope.names[name] = Module(result.module)
                    else:
                        scope.names[name] = Module(whole) if program.inside(whole) else External(whole)
            return
        source = program.absolute(self.module, "." * node.level + (node.module or ""))
        origin = program.module_result(source)
        starred = any(alias.name == "*" for alias in node.names)
        if starred or not isinstance(origin, Found) or origin.moved_from:
            self._note_at(node, "module", source, origin, source.rpartition(".")[0], node.col_offset)
        for alias in node.names:
            if alias.name == "*":
                continue
            result = program.lookup(source, alias.name)
            self._note_at(alias, "import", alias.name, result, source, alias.col_offset)
            if not top:
                scope.names[alias.asname or alias.name] = self.found_value(result)

    def _at_module_level(self, scope: Scope) -> bool:
        return not scope.body and scope.cls is None and scope.above is None

    def _if(self, node: ast.If, scope: Scope, qualified: str) -> None:
        checking = ast.unparse(node.test).endswith("TYPE_CHECKING")
        self.value(node.test, scope)
        before = dict(self._narrowed)
        asked = _asked(node.test)
        self._typing += checking
        self._asked += asked
        self._narrow(node.test, scope, positive=True)
        self.statements(node.body, scope, qualified)
        self._typing -= checking
        del self._asked[len(self._asked) - len(asked) :]
        self._narrowed = dict(before)
        self._narrow(node.test, scope, positive=False)
        self.statements(node.orelse, scope, qualified)
        self._narrowed = before
        if node.body and isinstance(node.body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break):
            self._narrow(node.test, scope, positive=False)
            denied = (
                node.test.operand if isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not) else None
            )
            self._asked += _asked(denied) if denied is not None else []

    def _narrow(self, test: ast.expr, scope: Scope, *, positive: bool) -> None:
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                self._narrow(inner, scope, positive=not positive)
            case ast.BoolOp(op=ast.And(), values=parts) if positive:
                for part in parts:
                    self._narrow(part, scope, positive=True)
            case ast.Call(func=ast.Name(id="isinstance"), args=[subject, kinds]) if positive:
                options = kinds.elts if isinstance(kinds, ast.Tuple) else [kinds]
                value = any_of([_instance_of(self.quiet(option, scope)) for option in options])
                if value is not None:
                    self._narrowed[ast.unparse(subject)] = value

    def _with(self, node: ast.With | ast.AsyncWith, scope: Scope, qualified: str) -> None:
        expected: list[HandlerRef] = []
        for item in node.items:
            value = self.value(item.context_expr, scope)
            if item.optional_vars is not None:
                self._bind(item.optional_vars, _entered(self, value), scope, None)
            match item.context_expr:
                case ast.Call(func=ast.Attribute(attr="raises"), args=[kind, *_]):
                    expected.append(HandlerRef(self._place(item.context_expr), _exceptions(kind)))
                case ast.Call(func=ast.Attribute(attr="suppress") | ast.Name(id="suppress"), args=kinds):
                    names = tuple(name for kind in kinds for name in _exceptions(kind))
                    expected.append(HandlerRef(self._place(item.context_expr), names))
        self._handlers += expected
        self.statements(node.body, scope, qualified)
        del self._handlers[len(self._handlers) - len(expected) :]
        if self.record is not None:
            self.record.handlers += expected

    def _try(self, node: ast.Try, scope: Scope, qualified: str) -> None:
        expected = [HandlerRef(self._place(h), _exceptions(h.type)) for h in node.handlers if h.type is not None]
        lookups = {"ImportError", "ModuleNotFoundError", "AttributeError", "Exception", "BaseException", "KeyError"}
        covers = any(h.type is None or set(_exceptions(h.type)) & lookups for h in node.handlers)
        self._guards += covers
        self._handlers += expected
        self.statements(node.body, scope, qualified)
        del self._handlers[len(self._handlers) - len(expected) :]
        self._guards -= covers
        if self.record is not None:
            self.record.handlers += expected
        for handler in node.handlers:
            if handler.type is not None:
                self.value(handler.type, scope)
            if handler.name:
                scope.names[handler.name] = None
            kept = dict(scope.names)
            self.statements(handler.body, scope, qualified)
            for name, value in kept.items():
                if value is not None:
                    scope.names[name] = value
        self.statements([*node.orelse, *node.finalbody], scope, qualified)

    def _match(self, subject: ast.expr, cases: list[ast.match_case], scope: Scope, qualified: str) -> None:
        self.value(subject, scope)
        text = ast.unparse(subject)
        for case in cases:
            before = dict(self._narrowed)
            for child in ast.walk(case.pattern):
                if isinstance(child, ast.MatchClass):
                    kind = _instance_of(self.value(child.cls, scope))
                    if child is case.pattern and kind is not None:
                        self._narrowed[text] = kind
                elif isinstance(child, ast.MatchValue):
                    self.value(child.value, scope)
                elif isinstance(child, ast.MatchAs | ast.MatchStar) and child.name:
                    scope.names[child.name] = None
            if case.guard is not None:
                self.value(case.guard, scope)
            self.statements(case.body, scope, qualified)
            self._narrowed = before

    # Expressions

    def quiet(self, node: ast.expr, scope: Scope) -> Value | None:
        """Without noting uses a second time."""
        record, self.record = self.record, None
        try:
            return self.value(node, scope)
        finally:
            self.record = record

    def value(self, node: ast.expr, scope: Scope) -> Value | None:
        match node:
            case ast.Name(id=name):
                return self._name(node, name, scope)
            case ast.Attribute():
                return self._attribute(node, scope)
            case ast.Call():
                return self._call(node, scope)
            case ast.Constant(value=str(text)):
                if self.record is not None:
                    self._string(node, text)
                return Text(text)
            case ast.Constant(value=None):
                return Absent()
            case ast.Constant():
                return External(f"builtins.{type(node.value).__name__}", instance=True)
            case ast.Subscript():
                return self._subscript(node, scope)
            case ast.BoolOp(values=parts):
                return self._bool(node, parts, scope)
            case ast.IfExp(test=test, body=body, orelse=other):
                self.value(test, scope)
                before, asked = dict(self._narrowed), _asked(test)
                self._asked += asked
                self._narrow(test, scope, positive=True)
                first = self.value(body, scope)
                self._narrowed = before
                del self._asked[len(self._asked) - len(asked) :]
                return any_of([first, self.value(other, scope)])
            case ast.NamedExpr(target=target, value=inner):
                value = self.value(inner, scope)
                self._bind(target, value, scope, None)
                return value
            case ast.Await(value=inner) | ast.Starred(value=inner):
                return self.value(inner, scope)
            case ast.Tuple(elts=elements):
                return Group("tuple", tuple(self.value(element, scope) for element in elements))
            case ast.List(elts=elements) | ast.Set(elts=elements):
                return Group("list", (any_of([self.value(element, scope) for element in elements]),))
            case ast.Dict(keys=keys, values=values):
                for key in keys:
                    if key is not None:
                        self.value(key, scope)
                found = [self.value(value, scope) for value in values]
                return Group("dict", (None, any_of(found)))
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                return Group("list", (self._comprehension(node.generators, [node.elt], scope),))
            case ast.DictComp():
                return Group("dict", (None, self._comprehension(node.generators, [node.key, node.value], scope)))
            case ast.Lambda():
                inner_scope = Scope({a.arg: None for a in _all_arguments(node.args)}, scope, scope.cls)
                return Group("callable", (self.value(node.body, inner_scope),))
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self.value(child, scope)
                return None

    def _bool(self, node: ast.BoolOp, parts: list[ast.expr], scope: Scope) -> Value | None:
        before, found, count = dict(self._narrowed), [], len(self._asked)
        for part in parts:
            found.append(self.value(part, scope))
            if isinstance(node.op, ast.And):
                self._narrow(part, scope, positive=True)
                self._asked += _asked(part)
        del self._asked[count:]
        self._narrowed = before
        return any_of(found) if isinstance(node.op, ast.Or) else found[-1]

    def _comprehension(
        self, generators: list[ast.comprehension], results: list[ast.expr], scope: Scope
    ) -> Value | None:
        inner = Scope(above=scope, cls=scope.cls)
        for generator in generators:
            self._bind(generator.target, self._element(self.value(generator.iter, inner)), inner, None)
            for test in generator.ifs:
                self.value(test, inner)
                self._narrow(test, inner, positive=True)
        return [self.value(result, inner) for result in results][-1]

    def _name(self, node: ast.Name, name: str, scope: Scope) -> Value | None:
        if name in self._narrowed:
            return self._narrowed[name]
        holder = scope.find(name)
        if holder is not None:
            return holder.names[name]
        around: Scope | None = scope
        while around is not None:
            if around.body:
                symbol = self.program.symbol(self.module, f"{around.body}.{name}")
                if symbol is not None and symbol.kind != "import":
                    return self.found_value(Found(self.module, f"{around.body}.{name}", symbol, around.cls))
            around = around.above
        result = self.program.lookup(self.module, name)
        if isinstance(result, Missing):
            return External(f"builtins.{name}")
        if self.record is not None:
            self._note(node, "name", name, result, self.module)
        return self.found_value(result)

    def _attribute(self, node: ast.Attribute, scope: Scope) -> Value | None:
        owner = self.value(node.value, scope)
        text = ast.unparse(node) if self._narrowed else ""
        if text and text in self._narrowed:
            self._member(node, owner, node.attr, "attribute")
            return self._narrowed[text]
        return self._member(node, owner, node.attr, "attribute")

    def _member(self, node: ast.expr, owner: Value | None, name: str, kind: str) -> Value | None:
        """Looks an attribute up and notes it."""
        if isinstance(owner, AnyOf):  # of several possible owners one that has the attribute is enough
            looks = [self._look(option, name) for option in owner.options]
            good = [look for look in looks if isinstance(look[0], Found)]
            if not good and not all(isinstance(look[0], Missing) for look in looks):
                return None
            result, place, _ = (good or looks)[0]
            self._note(node, kind, name, result, place)
            return any_of([look[2] for look in good])
        result, place, value = self._look(owner, name)
        if place:
            self._note(node, kind, name, result, place)
        return value

    def _look(self, owner: Value | None, name: str) -> tuple[Result, str, Value | None]:
        """What the lookup gives, the dotted name of where it was made (empty: nowhere), and what it stands for."""
        program = self.program
        match owner:
            case Module(name=module):
                result = program.lookup(module, name)
                return result, module, self.found_value(result)
            case Class():
                result = program.attribute(owner, name)
                return result, owner.path, self.found_value(result, via=owner)
            case Instance(of=cls):
                result = program.attribute(cls, name)
                if isinstance(result, Missing) and program.formerly is not None:
                    return result, cls.path, program.formerly(cls.path, name)
                return result, cls.path, self.found_value(result, via=owner)
            case Super(after=cls):
                result = program.attribute(cls, name, after=cls)
                value = self.found_value(result, via=Instance(cls) if owner.instance else cls)
                return result, _first_upstream(self, cls), value
            case External(path=path, instance=False):
                return None, "", External(f"{path}.{name}")
            case Function() if name == "__wrapped__":
                return None, "", owner
            case Partial(function=function) if name == "func":
                return None, "", function
            case Group(kind="list", items=(item,)) if name in ("pop", "__getitem__"):
                return None, "", Group("callable", (item,))
            case Group(kind="dict", items=(key, item)):
                shapes: dict[str, Value | None] = {
                    "values": Group("list", (item,)),
                    "keys": Group("list", (key,)),
                    "items": Group("list", (Group("tuple", (key, item)),)),
                    "get": item,
                    "pop": item,
                    "setdefault": item,
                }
                return None, "", Group("callable", (shapes[name],)) if name in shapes else None
            case Registry(item=item):
                return self._look(Group("dict", (None, item)), name)
        return None, "", None

    def _subscript(self, node: ast.Subscript, scope: Scope) -> Value | None:
        before = len(self.record.refs) if self.record is not None else 0
        owner = self.value(node.value, scope)
        self._index(node, before)
        index = self.value(node.slice, scope)
        match owner, index:
            case Registry(), Text(value=key):
                found: Result = (
                    Found(owner.module, owner.name)
                    if key in owner.keys
                    else Missing(f"{owner.module}.{owner.name}", key)
                )
                self._note(node.slice, "key", key, found, f"{owner.module}.{owner.name}")
                return owner.item
            case Registry(), _:
                return owner.item
            case Class(), _:
                return owner  # Generic[T]
            case External(path="sys.modules"), Text(value=name):
                return Module(name) if self.program.has_module(name) else None
            case Group(kind="dict", items=(_, item)), _:
                return item
            case Group(kind="list"), _ if isinstance(node.slice, ast.Slice):
                return owner
            case Group(kind="list", items=(item,)), _:
                return item
            case Group(kind="tuple"), _ if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
                return self._item(owner, node.slice.value)
            case Instance(of=cls), _:
                return self._result_of_method(cls, "__getitem__")
        return None

    def _index(self, node: ast.Subscript, before: int) -> None:
        """A string that picks a part of something that an upstream object gave: a dimension of its mesh."""
        if self.record is None or len(self.record.refs) == before:
            return
        match node.slice:
            case ast.Constant(value=str(word)):
                source = self.record.refs[-1]
                if source.kind == "attribute" and isinstance(source.result, Found) and source.result.owner is not None:
                    self._note(node.slice, "index", word, source.result, source.owner)

    def _result_of_method(self, cls: Class, name: str) -> Value | None:
        found = self.program.attribute(cls, name, follow=False)
        value = self.found_value(found, via=Instance(cls))
        return returned(self.program, value) if isinstance(value, Function) else None

    def _element(self, value: Value | None) -> Value | None:
        """What iterating gives."""
        match value:
            case Group(kind="list" | "iter", items=(item,)):
                return item
            case Group(kind="dict", items=(key, _)):
                return key
            case Group(kind="tuple", items=items):
                return any_of(list(items))
            case Instance(of=cls):
                iterated = self._result_of_method(cls, "__iter__")
                return self._element(iterated) if not isinstance(iterated, Instance) else None
        return None

    def _item(self, value: Value | None, index: int) -> Value | None:
        match value:
            case Group(kind="tuple", items=items) if -len(items) <= index < len(items):
                return items[index]
            case Group(kind="list", items=(item,)):
                return item
        return None

    # Calls

    def _call(self, node: ast.Call, scope: Scope) -> Value | None:
        special = self._special(node, scope)
        if special is not _ORDINARY:
            return special
        function = self.value(node.func, scope)
        values = [self.value(argument, scope) for argument in node.args]
        words = {word.arg: self.value(word.value, scope) for word in node.keywords if word.arg is not None}
        for word in node.keywords:
            if word.arg is None:
                self.value(word.value, scope)
        return self._apply(node, function, values, words)

    def _apply(
        self, node: ast.Call, function: Value | None, values: list[Value | None], words: dict[str, Value | None]
    ) -> Value | None:
        match function:
            case Function() | Class():
                return self._bound(node, function, values, words)
            case Instance(of=cls):
                for name in ("__call__", "forward"):
                    found = self.program.attribute(cls, name, follow=False)
                    if isinstance(found, Found):
                        return self._bound(node, signatures.method(cls, found), values, words)
            case Partial(function=inner):
                return self._apply(node, inner, values, words) if inner is None else returned(self.program, inner)
            case Group(kind="callable", items=(item,)):
                return item
            case External(path=path):
                self._external(node, path, values, words)
                return _external_result(path, values)
            case AnyOf(options=options):
                # Called alike whatever it is: the first one that is known stands for all.
                results = [self._apply(node, options[0], values, words)]
                results += [returned(self.program, option) for option in options[1:]]
                return any_of(results)
        return None

    def _bound(
        self, node: ast.Call, function: Function | Class, values: list[Value | None], words: dict[str, Value | None]
    ) -> Value | None:
        result = returned(self.program, function)
        result = _special_result(self.program, function, result)
        if self.record is None:
            return result
        self._note_call(node, function, values, words, result, partial=False)
        for handler in self._handlers:
            handler.calls.append(function.path)
        return result

    def _note_call(
        self,
        node: ast.Call,
        function: Function | Class,
        values: list[Value | None],
        words: dict[str, Value | None],
        result: Value | None,
        *,
        partial: bool,
        skip: int = 0,
    ) -> None:
        assert self.record is not None
        program = self.program
        built = _built_class(program, function)
        is_class = isinstance(function, Class)
        signature = signatures.of_class(program, function) if is_class else signatures.of_function(program, function)  # type: ignore[arg-type]
        if built is not None:
            signature = signatures.of_class(program, built)
            if signature is not None:
                params = tuple(param for param in signature.params if param.name != "config")
                signature = signatures.Signature(signature.path, params, signature.home)
        given = [argument for argument in node.args if not isinstance(argument, ast.Starred)][skip:]
        star = len(given) + skip != len(node.args) or any(word.arg is None for word in node.keywords)
        arguments = Arguments(len(given), tuple(words), star)
        binding = bind(signature.params, arguments, partial=partial) if signature is not None else None
        keys = [binding.met.get(i, f"#{i}") if binding else f"#{i}" for i in range(len(given))]
        named = [*zip(keys, values[skip:], strict=False), *words.items()]
        self.record.calls.append(
            CallRef(
                place=self._name_place(node.func),
                signature=signature,
                arguments=arguments,
                binding=binding,
                words={word.arg: self._word_place(word) for word in node.keywords if word.arg is not None},
                texts={key: value.value for key, value in named if isinstance(value, Text)},
                functions={key: value for key, value in named if isinstance(value, Function | Class | Partial)},
                path=signature.path if signature is not None else function.path,
                guarded=self._guards > 0,
                value=result,
            )
        )

    def _special(self, node: ast.Call, scope: Scope) -> Any:
        """Calls that mean something by their name."""
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name and scope.find(name) is not None:
            return _ORDINARY
        match name, node.args:
            case "super", []:
                return Super(scope.cls) if scope.cls is not None else None
            case "super", [first, second]:
                cls = self.value(first, scope)
                self.value(second, scope)
                return Super(cls) if isinstance(cls, Class) else None
            case (("getattr" | "hasattr"), [subject, ast.Constant(value=str(attribute)) as text, *default]):
                owner = self.value(subject, scope)
                asks = name == "hasattr" or bool(default)
                self._guards += asks
                value = self._member(text, owner, attribute, "getattr")
                self._guards -= asks
                for other in default:
                    self.value(other, scope)
                return value if name == "getattr" else None
            case (("setattr" | "delattr"), [subject, ast.Constant(value=str(attribute)), *rest]):
                new = self.value(rest[0], scope) if rest else None
                self._set(node, self.value(subject, scope), attribute, new, "setattr")
                return Absent()
            case "type", [subject]:
                value = self.value(subject, scope)
                return value.of if isinstance(value, Instance) else None
            case (("list" | "tuple" | "set" | "sorted" | "reversed" | "iter" | "frozenset"), [subject, *_]):
                value = self.value(subject, scope)
                for word in node.keywords:
                    self.value(word.value, scope)
                return Group("list", (self._element(value),))
            case (("next" | "min" | "max"), [subject, *rest]):
                value = self.value(subject, scope)
                for other in rest:
                    self.value(other, scope)
                return self._element(value)
            case "enumerate", [subject, *_]:
                return Group("list", (Group("tuple", (None, self._element(self.value(subject, scope)))),))
            case "zip", parts:
                return Group("list", (Group("tuple", tuple(self._element(self.value(p, scope)) for p in parts)),))
        return _ORDINARY

    def _external(self, node: ast.Call, path: str, values: list[Value | None], words: dict[str, Value | None]) -> None:
        """Functions of other packages that make or change uses of upstream."""
        last = path.rpartition(".")[2]
        match last, values:
            case "import_module", [Text(value=name), *_] if self.record is not None and self._upstream(name):
                pass  # the string itself was noted
            case "replace", [Instance(of=cls), *_] if path in ("dataclasses.replace", "copy.replace"):
                if self.record is not None and (self._upstream(cls.module) or self._inherits(cls)):
                    self._replace(node, cls, values, words)
            case "partial" | "partialmethod", [(Function() | Class()) as function, *_]:
                if self.record is not None:
                    self._note_call(node, function, values, words, None, partial=True, skip=1)
            case (("wraps" | "update_wrapper"), [*_, Function() as function]) if self.record is not None:
                if self._upstream(function.module):
                    self.record.wrapped.append((self._place(node), function.path))
            case "patch", [Text(value=name), *_] if self.record is not None and self._upstream(name):
                owner, _, attribute = name.rpartition(".")
                self._patch(node.args[0], owner, attribute, values[1] if len(values) > 1 else words.get("new"), "mock")
            case "object", [owner, Text(value=attribute), *rest] if "patch" in path:
                self._set(node, owner, attribute, rest[0] if rest else words.get("new"), "mock")

    def _replace(self, node: ast.Call, cls: Class, values: list[Value | None], words: dict[str, Value | None]) -> None:
        assert self.record is not None
        params = signatures.of_class(self.program, cls)
        if params is None:
            return
        arguments = Arguments(0, tuple(words), True)
        places = {word.arg: self._word_place(word) for word in node.keywords if word.arg is not None}
        self.record.calls.append(
            CallRef(
                self._name_place(node.func),
                params,
                arguments,
                bind(params.params, arguments, partial=True),
                places,
                {key: value.value for key, value in words.items() if isinstance(value, Text)},
                {},
                cls.path,
                self._guards > 0,
            )
        )

    def _set(self, node: ast.Call, owner: Value | None, name: str, value: Value | None, how: str) -> None:
        if self.record is None:
            return
        match owner:
            case Module(name=module) if self._upstream(module):
                self._patch(node, module, name, value, how)
            case Class() if self._upstream(owner.module):
                self._patch(node, owner.path, name, value, how)
            case Instance(of=cls) if self._upstream(cls.module):
                found = self.program.attribute(cls, name)
                self._note(node, "store", name, found, cls.path)
            case Text(value=path) if self._upstream(path):  # monkeypatch.setattr("a.b", value)
                self._patch(node, path.rpartition(".")[0], path.rpartition(".")[2], value, how)

    def _patch(self, node: ast.expr, owner: str, name: str, value: Value | None, how: str) -> None:
        assert self.record is not None
        if how == "sys.modules":
            result: Result = self.program.module_result(f"{owner}.{name}")
        else:
            result = self.program.resolve(f"{owner}.{name}")
        place = self._name_place(node) if isinstance(node, ast.Attribute) else self._place(node)
        self.record.patches.append(PatchRef(place, owner, name, result, value, how))

    def _string(self, node: ast.Constant, text: str) -> None:
        """A dotted name of upstream in a string: a patch's target, an import, a table of declarations."""
        assert self.record is not None
        if self._annotations or len(text) > 200 or not _DOTTED.fullmatch(text):
            return
        path = text.replace(":", ".")
        if "." in path and self._upstream(path):
            owner, _, name = path.rpartition(".")
            self._note(node, "string", name, self.program.resolve(path), owner)

    # Notes

    def _upstream(self, module: str) -> bool:
        return self.record is not None and module.partition(".")[0] == self.record.upstream

    def _inherits(self, cls: Class) -> bool:
        return any(self._upstream(base.module) for base in self.program.mro(cls)[0])

    def _note(self, node: ast.expr, kind: str, name: str, result: Result, owner: str) -> None:
        if self.record is None:
            return
        asked = bool(self._asked) and isinstance(node, ast.Attribute) and ast.unparse(node) in self._asked
        place = self._name_place(node)
        self._append(Ref(place, kind, name, result, owner, self._guards > 0 or asked, self._typing > 0))

    def _note_at(self, node: Any, kind: str, name: str, result: Result, owner: str, column: int) -> None:
        if self.record is None:
            return
        place = Place(self.record.file, node.lineno, column, column + len(name))
        self._append(Ref(place, kind, name, result, owner, self._guards > 0, self._typing > 0))

    def _append(self, ref: Ref) -> None:
        assert self.record is not None
        # What is missing from a class of the plugin may have come from upstream: the comparison knows.
        target = ref.result.path if isinstance(ref.result, Found) else ""
        if self._upstream(target) or self._upstream(ref.owner) or isinstance(ref.result, Missing):
            self.record.refs.append(ref)

    def _place(self, node: Any) -> Place:
        file = self.record.file if self.record is not None else ""
        end = node.end_col_offset if node.end_lineno == node.lineno else node.col_offset
        return Place(file, node.lineno, node.col_offset, end or node.col_offset)

    def _name_place(self, node: ast.expr) -> Place:
        if isinstance(node, ast.Attribute):
            file = self.record.file if self.record is not None else ""
            end = node.end_col_offset or 0
            return Place(file, node.end_lineno or node.lineno, end - len(node.attr.encode()), end)
        return self._place(node)

    def _word_place(self, word: ast.keyword) -> Place:
        file = self.record.file if self.record is not None else ""
        return Place(file, word.lineno, word.col_offset, word.col_offset + len((word.arg or "").encode()))

    # Types

    def annotated(self, node: ast.expr | None, scope: Scope) -> Value | None:
        """What an object annotated so is."""
        if node is None:
            return None
        record, self.record = self.record, None
        try:
            return self._type(node, scope)
        finally:
            self.record = record

    def _expression_in_annotation(self, node: ast.expr, scope: Scope) -> None:
        """Notes the names in an annotation; a quoted or postponed one is for type checkers only."""
        if self.record is None:
            return
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            inner = copy.deepcopy(parse_expression(node.value))
            if inner is None:
                return
            self._typing += 1
            for child in ast.walk(inner):
                if isinstance(child, ast.expr):
                    child.lineno, child.col_offset = node.lineno, node.col_offset
                    child.end_lineno, child.end_col_offset = node.end_lineno, node.end_col_offset
            self.value(inner, scope)
            self._typing -= 1
            return
        postponed = self._postponed()
        self._typing += postponed
        self._annotations += 1
        self.value(node, scope)
        self._annotations -= 1
        self._typing -= postponed

    def _postponed(self) -> bool:
        table = self.program.table(self.module)
        return table is not None and "annotations" in table.names and table.names["annotations"].module == "__future__"

    def _type(self, node: ast.expr, scope: Scope) -> Value | None:
        match node:
            case ast.Constant(value=None):
                return Absent()
            case ast.Constant(value=str(text)):
                inner = parse_expression(text)
                return self._type(inner, scope) if inner is not None else None
            case ast.BinOp(op=ast.BitOr(), left=left, right=right):
                return any_of([self._type(left, scope), self._type(right, scope)])
            case ast.Subscript(value=head, slice=index):
                return self._generic(head, index, scope)
            case ast.Name(id="Self") | ast.Attribute(attr="Self"):
                return Instance(scope.cls) if scope.cls is not None else None
        return _instance_of(self.value(node, scope))

    def _generic(self, head: ast.expr, index: ast.expr, scope: Scope) -> Value | None:
        name = head.attr if isinstance(head, ast.Attribute) else head.id if isinstance(head, ast.Name) else ""
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        if name == "Optional":
            return any_of([self._type(parts[0], scope), Absent()])
        if name == "Union":
            return any_of([self._type(part, scope) for part in parts])
        if name in _TRANSPARENT:
            return self._type(parts[0], scope)
        if name in ("type", "Type"):
            value = self._type(parts[0], scope)
            return value.of if isinstance(value, Instance) else None
        if name == "Callable":
            return Group("callable", (self._type(parts[-1], scope),))
        if name in ("tuple", "Tuple"):
            if len(parts) == 2 and isinstance(parts[1], ast.Constant) and parts[1].value is Ellipsis:
                return Group("list", (self._type(parts[0], scope),))
            return Group("tuple", tuple(self._type(part, scope) for part in parts))
        if name in _LISTS:
            return Group("list", (self._type(parts[0], scope),))
        if name in _DICTS and len(parts) == 2:
            return Group("dict", (self._type(parts[0], scope), self._type(parts[1], scope)))
        if name == "Literal":
            return External("builtins.str", instance=True)
        return _instance_of(self.value(head, scope))

    def found_value(self, result: Result, via: Value | None = None) -> Value | None:
        """What a name that was looked up stands for; `via` is the class or object it was taken from."""
        if isinstance(result, Outside):
            return External(result.path)
        if not isinstance(result, Found):
            return None
        return symbol_value(self.program, result, via)


_ORDINARY = object()
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.\w+)+(:\w+(\.\w+)*)?")


# What symbols stand for


def symbol_value(program: Program, found: Found, via: Value | None = None) -> Value | None:
    symbol = found.symbol
    if not found.name:
        return Module(found.module)
    if symbol is None:
        return None
    if symbol.kind == "class":
        return Class(found.module, found.name)
    if symbol.kind == "function":
        if symbol.decorated("property", "cached_property") and isinstance(via, Instance):
            return returned(program, Function(found.module, found.name, via))
        bound = via if isinstance(via, Instance) or (via is not None and symbol.decorated("classmethod")) else None
        return Function(found.module, found.name, bound)
    with _deeper(program, (found.module, found.name, symbol.line)) as memo:
        if memo.known:
            return memo.value
        memo.value = _value_symbol(program, found, symbol)
        return memo.value


class _Memo:
    def __init__(self) -> None:
        self.known = False
        self.value: Value | None = None


@contextlib.contextmanager
def _deeper(program: Program, key: Any) -> Iterator[_Memo]:
    """What was worked out before; nothing, when it is being worked out just now or lies too deep."""
    memo = _Memo()
    memos = program.memo
    depth = memos.get("depth", 0)
    if key in memos:
        memo.known, memo.value = True, memos[key]
        yield memo
        return
    if depth > _DEEPEST:
        memo.known = True
        yield memo
        return
    memos[key] = None
    memos["depth"] = depth + 1
    try:
        yield memo
    finally:
        memos[key] = memo.value
        memos["depth"] = depth


def _value_symbol(program: Program, found: Found, symbol: Symbol) -> Value | None:
    owner = found.owner
    scope = owner.name if owner is not None else ""
    if symbol.annotation:
        if symbol.annotation.rpartition(".")[2] == "TypeAlias":
            return None
        value = annotation(program, found.module, scope, symbol.annotation)
        if value is not None and value != Absent():
            return value
    if not symbol.value:
        return None
    node = parse_expression(symbol.value)
    if node is None:
        return None
    evaluator = Evaluator(program, found.module)
    if symbol.scope and owner is not None:
        names = _method_names(program, owner, symbol.scope)
        return evaluator.value(node, Scope(names, cls=owner))
    if owner is None and isinstance(node, ast.Dict):
        return _registry(evaluator, found, node)
    value = evaluator.value(node, Scope(cls=owner, body=scope))
    if isinstance(value, Class) and owner is None:
        return value
    return value


def _registry(evaluator: Evaluator, found: Found, node: ast.Dict) -> Value | None:
    keys = [key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
    values = [evaluator.value(value, Scope()) for value in node.values[:3]]
    item = any_of(values)
    if len(keys) != len(node.keys) or not keys:
        return Group("dict", (None, item))
    table = evaluator.program.table(found.module)
    added = table.keys.get(found.name, []) if table is not None else []
    return Registry(found.module, found.name, frozenset([*keys, *added]), item)


def _method_names(program: Program, cls: Class, method: str) -> dict[str, Value | None]:
    """What the names in a method stand for at its end."""
    key = ("names", cls, method)
    if key not in program.memo:
        program.memo[key] = {}
        node = function_node(program, cls.module, f"{cls.name}.{method}")
        if node is not None:
            evaluator = Evaluator(program, cls.module)
            program.memo[key] = evaluator.function(node, cls, f"{cls.name}.{method}").names
    return program.memo[key]


def function_node(program: Program, module: str, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The syntax tree of one function, parsed from its lines; line numbers are the file's."""
    symbol = program.symbol(module, name)
    if symbol is None or symbol.kind != "function":
        return None
    lines = program.lines(module)[symbol.line - 1 : symbol.end]
    indent = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
    # A block around it makes the indentation right whatever it is.
    text = ("if 1:\n" if indent else "\n") + "\n".join(lines)
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return None
    ast.increment_lineno(tree, symbol.line - 2)
    body = tree.body[0].body if isinstance(tree.body[0], ast.If) else tree.body
    node = body[0] if body else None
    return node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None


def annotation(program: Program, module: str, scope: str, text: str) -> Value | None:
    """What an object is that is annotated so in a class (`scope`) or at the top of a module."""
    key = ("annotation", module, scope, text)
    with _deeper(program, key) as memo:
        if not memo.known:
            node = parse_expression(text)
            cls = Class(module, scope) if scope else None
            if node is not None:
                memo.value = Evaluator(program, module).annotated(node, Scope(cls=cls, body=scope))
        return memo.value


def returned(program: Program, function: Value | None) -> Value | None:
    """What calling gives."""
    match function:
        case Class():
            return Instance(function)
        case Partial(function=inner):
            return returned(program, inner)
        case Group(kind="callable", items=(item,)):
            return item
        case Function():
            pass
        case _:
            return None
    symbol = program.symbol(function.module, function.name)
    if symbol is None:
        return None
    scope = function.name.rpartition(".")[0]
    if symbol.returns:
        bound = function.bound
        if symbol.returns.strip("\"'").rpartition(".")[2] == "Self" and bound is not None:
            return bound if isinstance(bound, Instance) else Instance(bound) if isinstance(bound, Class) else None
        value = annotation(program, function.module, scope, symbol.returns)
        if symbol.decorated("contextmanager"):
            return value
        return value
    with _deeper(program, ("returned", function.module, function.name)) as memo:
        if not memo.known:
            node = function_node(program, function.module, function.name)
            if node is not None:
                cls = Class(function.module, scope) if program.class_symbol(Class(function.module, scope)) else None
                evaluator = Evaluator(program, function.module)
                evaluator.function(node, cls, function.name)
                memo.value = any_of(evaluator.returned)
        return memo.value


def _built_class(program: Program, function: Function | Class) -> Class | None:
    """`X.Config(...).build(...)` constructs X: torchtitan's convention, wired at run time."""
    match function:
        case Function(bound=Instance(of=config)) if function.name.rpartition(".")[2] == "build":
            owner = Class(config.module, config.name.rpartition(".")[0])
            symbol = program.symbol(function.module, function.name)
            if owner.name and program.class_symbol(owner) and symbol is not None and not symbol.returns:
                # A `build` of a Config's own that says what it returns is taken at its word.
                return owner
    return None


def _special_result(program: Program, function: Function | Class, result: Value | None) -> Value | None:
    built = _built_class(program, function)
    return Instance(built) if built is not None else result


def _instance_of(value: Value | None) -> Value | None:
    match value:
        case Class():
            return Instance(value)
        case External(path=path, instance=False):
            last = path.rpartition(".")[2]
            if last in _LISTS:
                return Group("list", (None,))
            return External(path, instance=True)
        case AnyOf(options=options):
            return any_of([_instance_of(option) for option in options])
        case Absent():
            return value
        case Group():  # an alias of a generic type
            return value
    return None


def _external_result(path: str, values: list[Value | None]) -> Value | None:
    """What some functions of other packages give."""
    last = path.rpartition(".")[2]
    match last, values:
        case (
            ("deepcopy" | "copy" | "replace" | "no_grad" | "compile" | "fully_shard" | "lru_cache" | "wraps"),
            [value, *_],
        ):
            return value
        case (("partial" | "partialmethod"), [function, *_]):
            return Partial(function) if function is not None else None
        case "cast", [kind, *_]:
            return _instance_of(kind)
        case "import_module", [Text(value=name), *_]:
            return Module(name)
    return External(path, instance=True) if last[:1].isupper() else None


def _entered(evaluator: Evaluator, value: Value | None) -> Value | None:
    if isinstance(value, Instance):
        found = evaluator.program.attribute(value.of, "__enter__", follow=False)
        function = evaluator.found_value(found, via=value)
        result = returned(evaluator.program, function) if isinstance(function, Function) else None
        return result if result is not None else value
    return value.items[0] if isinstance(value, Group) and value.kind == "list" and value.items else value


def _first_upstream(evaluator: Evaluator, cls: Class) -> str:
    """The class behind `super()` that a missing attribute is missed in."""
    for base in evaluator.program.mro(cls)[0][1:]:
        if evaluator._upstream(base.module):
            return base.path
    return cls.path


def _all_arguments(arguments: ast.arguments) -> list[ast.arg]:
    found = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return found + [extra for extra in (arguments.vararg, arguments.kwarg) if extra is not None]


def _asked(test: ast.expr) -> list[str]:
    """Attributes that a condition makes sure of: `hasattr(x, "a")` gives `x.a`."""
    return [
        f"{ast.unparse(call.args[0])}.{call.args[1].value}"
        for call in ast.walk(test)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "hasattr"
        and len(call.args) == 2
        and isinstance(call.args[1], ast.Constant)
        and isinstance(call.args[1].value, str)
    ]


def _exceptions(node: ast.expr | None) -> tuple[str, ...]:
    if isinstance(node, ast.Tuple):
        return tuple(name for element in node.elts for name in _exceptions(element))
    if isinstance(node, ast.Attribute):
        return (node.attr,)
    return (node.id,) if isinstance(node, ast.Name) else ()


@lru_cache(maxsize=16384)
def parse_expression(text: str) -> ast.expr | None:
    try:
        return ast.parse(f"({text}\n)", mode="eval").body
    except (SyntaxError, ValueError, MemoryError):
        return None
