"""Walks code without running it: what each expression stands for, and every use of upstream on the way.

The same walk reads the plugin (with a `Record`, which collects the uses) and, where a type depends on it, a body of
upstream's (without). Statements are taken in order; both sides of a condition are walked with the same names.
"""

import ast

from torchtitan_sync import inference
from torchtitan_sync.expressions import Expressions, asked_for
from torchtitan_sync.program import Found
from torchtitan_sync.records import HandlerRef, Scope
from torchtitan_sync.values import (
    Absent,
    Class,
    External,
    Function,
    Group,
    Instance,
    Module,
    Partial,
    Value,
)


class Evaluator(Expressions):
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
        # The annotations of a method see the names in its class, such as a nested `Config`.
        body = cls.name if cls is not None and qualified == f"{cls.name}.{node.name}" else ""
        scope = self._function_body(node, Scope(cls=cls, body=body), qualified)
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
                self.bind(target, found if vague else declared, scope)
            case ast.AugAssign(target=target, value=value):
                self.value(value, scope)
                if isinstance(target, ast.Attribute):
                    self.value(ast.copy_location(ast.Attribute(target.value, target.attr, ast.Load()), target), scope)
            case ast.Return(value=value):
                self.returned.append(self.value(value, scope) if value is not None else Absent())
            case ast.If():
                self._if(node, scope, qualified)
            case ast.For() | ast.AsyncFor():
                self.bind(node.target, self._element(self.value(node.iter, scope)), scope)
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
        self._constructor = self.hints.get((self.module, qualified), ("", ""))[1] == "__init__"
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
        return inference.annotation(self.program, target.module, home, wanted.annotation)

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
            self.bind(target, value, scope)

    def bind(self, target: ast.expr, value: Value | None, scope: Scope) -> None:
        """See `Noting.bind`."""
        match target:
            case ast.Name(id=name):
                if not (isinstance(value, Absent) and scope.names.get(name) is not None):
                    scope.names[name] = value
                self._narrowed.pop(name, None)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                for index, element in enumerate(elements):
                    inner = element.value if isinstance(element, ast.Starred) else element
                    self.bind(inner, None if inner is not element else self._item(value, index), scope)
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
                self.bind(inner, value, scope)

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
                    if self._constructor:
                        self.record.given.add((cls.path, target.attr))
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
        asked = asked_for(node.test)
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
            self._asked += asked_for(denied) if denied is not None else []

    def _with(self, node: ast.With | ast.AsyncWith, scope: Scope, qualified: str) -> None:
        expected: list[HandlerRef] = []
        for item in node.items:
            value = self.value(item.context_expr, scope)
            if item.optional_vars is not None:
                self.bind(item.optional_vars, _entered(self, value), scope)
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
                    kind = inference.instance_of(self.value(child.cls, scope))
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


def _entered(evaluator: Evaluator, value: Value | None) -> Value | None:
    if isinstance(value, Instance):
        found = evaluator.program.attribute(value.of, "__enter__", follow=False)
        function = evaluator.found_value(found, via=value)
        result = inference.returned(evaluator.program, function) if isinstance(function, Function) else None
        return result if result is not None else value
    return value.items[0] if isinstance(value, Group) and value.kind == "list" and value.items else value


def _exceptions(node: ast.expr | None) -> tuple[str, ...]:
    if isinstance(node, ast.Tuple):
        return tuple(name for element in node.elts for name in _exceptions(element))
    if isinstance(node, ast.Attribute):
        return (node.attr,)
    return (node.id,) if isinstance(node, ast.Name) else ()
