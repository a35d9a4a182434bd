"""What an expression may stand for, as far as it can be told without running anything.

`None` stands for "unknown". Names are `(module, qualified name)` pairs: a symbol's home, wherever it was reached from.
"""

from dataclasses import dataclass
from typing import Union


@dataclass(frozen=True)
class Module:
    name: str


@dataclass(frozen=True)
class Class:
    module: str
    name: str
    """Qualified within the module: `Trainer.Config`."""

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True)
class Instance:
    of: Class


@dataclass(frozen=True)
class Function:
    module: str
    name: str
    bound: "Value | None" = None
    """The object whose method it is; the first parameter is then taken."""

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True)
class Partial:
    """`functools.partial(function, ...)`."""

    function: "Value"


@dataclass(frozen=True)
class Super:
    """`super()` in a method of a class, or the class attributes after it in `instance`'s order."""

    after: Class
    instance: bool = True


@dataclass(frozen=True)
class External:
    """Something of a package that is not read: `torch.nn.Module`."""

    path: str
    instance: bool = False


@dataclass(frozen=True)
class Text:
    value: str


@dataclass(frozen=True)
class Absent:
    """The constant None."""


@dataclass(frozen=True)
class Group:
    """A container or iterable: `list`, `dict`, `tuple`, `iter`, `callable` (called, it gives the item)."""

    kind: str
    items: tuple["Value | None", ...] = ()
    """Element type; of a dict key and value type; of a tuple each element."""


@dataclass(frozen=True)
class Registry:
    """A module-level dict with string keys that are known."""

    module: str
    name: str
    keys: frozenset[str]
    item: "Value | None" = None


@dataclass(frozen=True)
class AnyOf:
    options: tuple["Value", ...]


Value = Union[  # noqa: UP007  the alias is recursive
    Module, Class, Instance, Function, Partial, Super, External, Text, Absent, Group, Registry, AnyOf
]


def any_of(values: list[Value | None]) -> Value | None:
    """Their union; unknown if one is unknown, and None is left out where something else is possible."""
    if not values or any(value is None for value in values):
        return None
    flat: dict[Value, None] = {}
    for value in values:
        for option in value.options if isinstance(value, AnyOf) else (value,):
            if option is not None:
                flat[option] = None
    some = [option for option in flat if not isinstance(option, Absent)]
    if not some:
        return Absent()
    return some[0] if len(some) == 1 else AnyOf(tuple(some))
