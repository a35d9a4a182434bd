"""What attributes of modules, classes and objects stand for, and what iterating over something gives."""

import ast

from torchtitan_sync import inference
from torchtitan_sync.annotations import Annotations
from torchtitan_sync.program import Found, Missing, Result
from torchtitan_sync.values import (
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
    Value,
    any_of,
)


class Members(Annotations):
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

    def _result_of_method(self, cls: Class, name: str) -> Value | None:
        found = self.program.attribute(cls, name, follow=False)
        value = self.found_value(found, via=Instance(cls))
        return inference.returned(self.program, value) if isinstance(value, Function) else None


def _first_upstream(walk: Members, cls: Class) -> str:
    """The class behind `super()` that a missing attribute is missed in."""
    for base in walk.program.mro(cls)[0][1:]:
        if walk._upstream(base.module):
            return base.path
    return cls.path
