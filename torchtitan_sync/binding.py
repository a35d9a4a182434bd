"""Whether a call's arguments fit a signature, and which parameter each one meets."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torchtitan_sync.tables import Param


@dataclass(frozen=True)
class Arguments:
    positional: int
    keywords: tuple[str, ...] = ()
    star: bool = False
    """`*args` or `**kwargs` hide some arguments, so that nothing can be said to be missing."""


@dataclass
class Binding:
    unexpected: list[str] = field(default_factory=list)
    """Keywords that no parameter takes."""
    missing: list[str] = field(default_factory=list)
    """Required parameters that get nothing."""
    doubled: list[str] = field(default_factory=list)
    """Parameters that are given by position and by keyword."""
    surplus: int = 0
    """Positional arguments too many."""
    met: dict[int, str] = field(default_factory=dict)
    """Positional argument to parameter."""

    def fits(self) -> bool:
        return not (self.unexpected or self.missing or self.doubled or self.surplus)

    def problems(self) -> set[tuple[str, str]]:
        """Each as (what, name)."""
        found = {("unexpected", name) for name in self.unexpected}
        found |= {("missing", name) for name in self.missing}
        found |= {("doubled", name) for name in self.doubled}
        return found | ({("surplus", str(self.surplus))} if self.surplus else set())


def bind(params: Sequence[Param], arguments: Arguments, *, partial: bool = False) -> Binding:
    """`params` without the one that a method is bound to. With `partial`, what is missing comes later."""
    result = Binding()
    places = [param for param in params if param.kind in "/a"]
    collects = {param.kind for param in params} & {"*", "**"}
    given = {}
    for index in range(arguments.positional):
        if index < len(places):
            given[places[index].name] = index
            result.met[index] = places[index].name
        elif "*" not in collects:
            result.surplus += 1
    named = {param.name for param in params if param.kind in "ak"}
    for word in arguments.keywords:
        if word in named:
            if word in given:
                result.doubled.append(word)
        elif "**" not in collects:
            result.unexpected.append(word)
    if not partial and not arguments.star:
        result.missing = [
            param.name
            for param in params
            if param.kind in "/ak"
            and not param.default
            and param.name not in given
            and param.name not in arguments.keywords
        ]
    return result


def shown(params: Sequence[Param]) -> str:
    """As it is written in Python, without annotations."""
    parts: list[str] = []
    kinds = [param.kind for param in params]
    for index, param in enumerate(params):
        if param.kind == "k" and "*" not in kinds and (index == 0 or kinds[index - 1] != "k"):
            parts.append("*")
        stars = param.kind if param.kind in ("*", "**") else ""
        parts.append(f"{stars}{param.name}" + (f"={param.default}" if param.default else ""))
        if param.kind == "/" and (index + 1 == len(params) or kinds[index + 1] != "/"):
            parts.append("/")
    return f"({', '.join(parts)})"
