"""What the walk over the plugin notes: every use of upstream, with its place."""

from dataclasses import dataclass, field

from torchtitan_sync.binding import Arguments, Binding
from torchtitan_sync.program import Result
from torchtitan_sync.signatures import Signature
from torchtitan_sync.values import Class, Value


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
    signature: Signature | None
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
    given: set[tuple[str, str]] = field(default_factory=set)
    """Attributes (class, name) that upstream's objects have from a constructor of the plugin's that replaces theirs."""


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
"""A plugin's function (module, name) whose parameters are those of an upstream function: see `evaluate.py`."""
