"""What calls give, which arguments they pass, and what they change of upstream."""

import ast
import re
from typing import Any

from torchtitan_sync import inference, signatures
from torchtitan_sync.binding import Arguments, bind
from torchtitan_sync.members import Members
from torchtitan_sync.program import Found, Result
from torchtitan_sync.records import CallRef, PatchRef, Scope
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
    Super,
    Text,
    Value,
    any_of,
)

ORDINARY = object()
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.\w+)+(:\w+(\.\w+)*)?")


class Calls(Members):
    def _call(self, node: ast.Call, scope: Scope) -> Value | None:
        special = self._special(node, scope)
        if special is not ORDINARY:
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
                return (
                    self._apply(node, inner, values, words)
                    if inner is None
                    else inference.returned(self.program, inner)
                )
            case Group(kind="callable", items=(item,)):
                return item
            case External(path=path):
                self._external(node, path, values, words)
                return inference.external_result(path, values)
            case AnyOf(options=options):
                # Called alike whatever it is: the first one that is known stands for all.
                results = [self._apply(node, options[0], values, words)]
                results += [inference.returned(self.program, option) for option in options[1:]]
                return any_of(results)
        return None

    def _bound(
        self, node: ast.Call, function: Function | Class, values: list[Value | None], words: dict[str, Value | None]
    ) -> Value | None:
        result = inference.returned(self.program, function)
        result = inference.special_result(self.program, function, result)
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
        built = inference.built_class(program, function)
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
            return ORDINARY
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
        return ORDINARY

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
