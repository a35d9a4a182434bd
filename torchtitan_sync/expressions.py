"""What expressions stand for: names, attributes, subscripts and the rest."""

import ast

from torchtitan_sync import inference
from torchtitan_sync.calls import Calls
from torchtitan_sync.program import Found, Missing, Result
from torchtitan_sync.records import Scope
from torchtitan_sync.values import (
    Absent,
    Class,
    External,
    Group,
    Instance,
    Module,
    Registry,
    Text,
    Value,
    any_of,
)


class Expressions(Calls):
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
                before, asked = dict(self._narrowed), asked_for(test)
                self._asked += asked
                self._narrow(test, scope, positive=True)
                first = self.value(body, scope)
                self._narrowed = before
                del self._asked[len(self._asked) - len(asked) :]
                return any_of([first, self.value(other, scope)])
            case ast.NamedExpr(target=target, value=inner):
                value = self.value(inner, scope)
                self.bind(target, value, scope)
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
                self._asked += asked_for(part)
        del self._asked[count:]
        self._narrowed = before
        return any_of(found) if isinstance(node.op, ast.Or) else found[-1]

    def _comprehension(
        self, generators: list[ast.comprehension], results: list[ast.expr], scope: Scope
    ) -> Value | None:
        inner = Scope(above=scope, cls=scope.cls)
        for generator in generators:
            self.bind(generator.target, self._element(self.value(generator.iter, inner)), inner)
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

    def _narrow(self, test: ast.expr, scope: Scope, *, positive: bool) -> None:
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                self._narrow(inner, scope, positive=not positive)
            case ast.BoolOp(op=ast.And(), values=parts) if positive:
                for part in parts:
                    self._narrow(part, scope, positive=True)
            case ast.Call(func=ast.Name(id="isinstance"), args=[subject, kinds]) if positive:
                options = kinds.elts if isinstance(kinds, ast.Tuple) else [kinds]
                value = any_of([inference.instance_of(self.quiet(option, scope)) for option in options])
                if value is not None:
                    self._narrowed[ast.unparse(subject)] = value


def _all_arguments(arguments: ast.arguments) -> list[ast.arg]:
    found = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return found + [extra for extra in (arguments.vararg, arguments.kwarg) if extra is not None]


def asked_for(test: ast.expr) -> list[str]:
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
