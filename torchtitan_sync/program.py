"""Upstream at one commit together with the plugin: which module, class or attribute a name means.

Follows imports, re-exports, star imports, folders without `__init__.py` and class ancestry. What is not in the two
packages (torch, the standard library) is `External`; a lookup then says "unknown" rather than "missing".
"""

import builtins
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from torchtitan_sync.modules import File
from torchtitan_sync.tables import Cache, Symbol, Table
from torchtitan_sync.values import Class, Value


@dataclass(frozen=True)
class Found:
    module: str
    """Where it is defined, wherever it was reached from."""
    name: str
    """Qualified within the module; empty for the module itself."""
    symbol: Symbol | None = None
    owner: Class | None = None
    """For a class's attribute: the class that defines it."""
    moved_from: str = ""
    """The old dotted name, where the symbol was found only by following a move."""

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module


@dataclass(frozen=True)
class Missing:
    """Certain: everything that could define it was read and does not."""

    owner: str
    name: str
    behind: bool = False
    """Its owner is missing itself: what is said of the owner covers it."""
    dynamic: bool = False
    """Upstream's class sets attributes by computed names, of which this may be one."""

    @property
    def path(self) -> str:
        return f"{self.owner}.{self.name}"


@dataclass(frozen=True)
class Outside:
    """In a package that is not read."""

    path: str


Result = Found | Missing | Outside | None
"""None: unknown."""

# Attributes that plugins take from torch's base classes although upstream's class may define its own. Public names, as
# PyTorch documents them; classes of the standard library are asked themselves.
_TORCH_MEMBERS = {
    "Module": (
        "add_module apply bfloat16 buffers children compile cpu cuda double eval extra_repr float forward get_buffer "
        "get_extra_state get_parameter get_submodule half load_state_dict modules named_buffers named_children "
        "named_modules named_parameters parameters register_buffer register_forward_hook register_forward_pre_hook "
        "register_full_backward_hook register_module register_parameter requires_grad_ state_dict to to_empty train "
        "training type xpu zero_grad _parameters _buffers _modules"
    ),
    "Optimizer": (
        "add_param_group load_state_dict param_groups defaults state state_dict step zero_grad register_step_pre_hook "
        "register_step_post_hook register_state_dict_post_hook register_load_state_dict_post_hook"
    ),
    "Stateful": "state_dict load_state_dict",
    "LRScheduler": "get_last_lr get_lr load_state_dict state_dict step last_epoch base_lrs optimizer",
    "Function": "apply forward backward setup_context",
    "Dataset": "__getitem__",
    "StatefulDataLoader": "state_dict load_state_dict",
}
TORCH_MEMBERS = {name: frozenset(text.split()) for name, text in _TORCH_MEMBERS.items()}

_IMPLICIT = frozenset(dir(inspect)) & {"__file__", "__name__", "__doc__", "__path__", "__dict__", "__spec__"} | {
    "__path__",
    "__package__",
    "__loader__",
}


class Program:
    """`follow` is asked where an upstream name has gone: given owner and name, it gives the new dotted path or None.

    `upstream` names the modules that are not the plugin's.
    `formerly` is asked what a name that is missing stood for, so that the walk can go on behind it.
    """

    def __init__(
        self,
        files: Mapping[str, File],
        cache: Cache,
        read: Callable[[str], bytes],
        follow: Callable[[str, str], str | None] | None = None,
        formerly: Callable[[str, str], Value | None] | None = None,
        upstream: Iterable[str] = (),
    ) -> None:
        self.formerly = formerly
        self.files = files
        self._upstream_files = frozenset(upstream)
        self.roots = {name.partition(".")[0] for name in files}
        self.memo: dict[Any, Any] = {}
        """For who computes something of this program's symbols."""
        self._cache = cache
        self._read = read
        self._follow = follow
        self._packages = {parent for name in files for parent in _parents(name)}
        self._mro: dict[Class, tuple[tuple[Class, ...], tuple[str, ...]]] = {}
        self._lines: dict[str, list[str]] = {}

    # Modules

    def table(self, module: str) -> Table | None:
        file = self.files.get(module)
        return self._cache.get(file.blob) if file is not None else None

    def source(self, module: str) -> bytes:
        return self._read(module)

    def lines(self, module: str) -> list[str]:
        """Without line ends."""
        if module not in self._lines:
            self._lines[module] = self._read(module).decode("utf-8", "replace").replace("\r\n", "\n").split("\n")
        return self._lines[module]

    def segment(self, module: str, symbol: Symbol) -> str:
        return "\n".join(self.lines(module)[symbol.line - 1 : symbol.end])

    def has_module(self, module: str) -> bool:
        return module in self.files or module in self._packages

    def inside(self, module: str) -> bool:
        """Whether a module is, or would be, in a package that is read."""
        return module.partition(".")[0] in self.roots

    def absolute(self, module: str, name: str) -> str:
        """`..x` seen from a module, as a full name."""
        dots = len(name) - len(name.lstrip("."))
        if not dots:
            return name
        file = self.files.get(module)
        parts = module.split(".")
        keep = len(parts) - dots + (1 if file is not None and file.package else 0)
        return ".".join([*parts[:keep], *filter(None, [name[dots:]])])

    # Lookups

    def module_result(self, module: str) -> Result:
        if not self.inside(module):
            return Outside(module)
        if self.has_module(module):
            return Found(module, "")
        owner, _, name = module.rpartition(".")
        return self._followed(owner, name)

    def lookup(self, module: str, name: str, seen: frozenset[tuple[str, str]] = frozenset()) -> Result:
        """An attribute of a module."""
        if not self.inside(module):
            return Outside(f"{module}.{name}")
        if (module, name) in seen:
            return None
        seen |= {(module, name)}
        table = self.table(module)
        if table is not None:
            if table.broken:
                return None
            symbol = table.names.get(name)
            if symbol is not None:
                return self._defined(module, name, symbol, seen)
        if self.has_module(f"{module}.{name}"):
            return Found(f"{module}.{name}", "")
        if table is not None:
            outside = False
            for star in table.stars:
                found = self.lookup(self.absolute(module, star), name, seen) if not name.startswith("_") else None
                if isinstance(found, Found):
                    return found
                outside |= isinstance(found, Outside)
            if outside or "__getattr__" in table.names or name in _IMPLICIT:
                return None
        elif not self.has_module(module):
            moved = self.module_result(module)
            if isinstance(moved, Found) and moved.module != module:
                result = self.lookup(moved.module, name, seen)
                if isinstance(result, Found):
                    return replace(result, moved_from=f"{module}.{name}")
        return self._followed(module, name)

    def _defined(self, module: str, name: str, symbol: Symbol, seen: frozenset[tuple[str, str]]) -> Result:
        if symbol.kind != "import":
            return Found(module, name, symbol)
        source = self.absolute(module, symbol.module)
        if not symbol.target:
            return Found(source, "") if self.has_module(source) else Outside(source)
        if not self.inside(source):
            return Outside(f"{source}.{symbol.target}")
        if source == module and symbol.target == name:  # `from . import name` in a package
            return Found(f"{module}.{name}", "") if self.has_module(f"{module}.{name}") else None
        return self.lookup(source, symbol.target, seen)

    def _followed(self, owner: str, name: str) -> Result:
        target = self._follow(owner, name) if self._follow is not None else None
        if target is not None:
            found = self.resolve(target)
            if isinstance(found, Found):
                return replace(found, moved_from=f"{owner}.{name}")
        return Missing(owner, name)

    def resolve(self, path: str) -> Result:
        """A dotted name: the longest module in front, then attributes."""
        parts = path.split(".")
        if parts[0] not in self.roots:
            return Outside(path)
        end = next((i for i in range(len(parts), 0, -1) if self.has_module(".".join(parts[:i]))), 0)
        if not end:
            return self.module_result(path)
        found: Result = Found(".".join(parts[:end]), "")
        for name in parts[end:]:
            if not isinstance(found, Found):
                return found
            above, found = found, self.member(found, name)
            if isinstance(found, Found) and above.moved_from and not found.moved_from:
                found = replace(found, moved_from=f"{above.moved_from}.{name}")
        return found

    def resolve_plainly(self, path: str) -> Result:
        """Without following moves."""
        follow, self._follow = self._follow, None
        try:
            return self.resolve(path)
        finally:
            self._follow = follow

    def lookup_plainly(self, module: str, name: str) -> Result:
        """Without following moves."""
        follow, self._follow = self._follow, None
        try:
            return self.lookup(module, name)
        finally:
            self._follow = follow

    def member(self, found: Found, name: str) -> Result:
        if not found.name:
            return self.lookup(found.module, name)
        if found.symbol is not None and found.symbol.kind == "class":
            return self.attribute(Class(found.module, found.name), name)
        return None

    # Classes

    def symbol(self, module: str, name: str) -> Symbol | None:
        """By qualified name, where it is defined."""
        table = self.table(module)
        if table is None:
            return None
        names = table.names
        symbol = None
        for part in name.split("."):
            symbol = names.get(part)
            if symbol is None:
                return None
            names = symbol.members
        return symbol

    def class_symbol(self, cls: Class) -> Symbol | None:
        symbol = self.symbol(cls.module, cls.name)
        return symbol if symbol is not None and symbol.kind == "class" else None

    def mro(self, cls: Class) -> tuple[tuple[Class, ...], tuple[str, ...]]:
        """Classes that are read, nearest first, and names of the bases that are not."""
        if cls in self._mro:
            return self._mro[cls]
        self._mro[cls] = (cls,), ()  # what a cycle sees
        symbol = self.class_symbol(cls)
        chains: list[list[Class]] = []
        outside: dict[str, None] = {}
        direct: list[Class] = []
        for text in symbol.bases if symbol is not None else ():
            base = self.base(cls, text)
            if isinstance(base, Class):
                above, foreign = self.mro(base)
                chains.append(list(above))
                direct.append(base)
                outside |= dict.fromkeys(foreign)
            else:
                outside[base] = None
        result = (cls, *_linear([*chains, direct])), tuple(outside)
        self._mro[cls] = result
        return result

    def base(self, cls: Class, text: str) -> Class | str:
        """What a base expression in a class statement means; the text itself where that is not known."""
        text = text.partition("[")[0].strip()
        table = self.table(cls.module)
        shadowed = table.shadowed.get(text) if table is not None and text == cls.name else None
        if shadowed is not None:
            found = self._defined(cls.module, text, shadowed, frozenset())
        else:
            found = self.dotted(cls.module, cls.name.rpartition(".")[0], text)
        if isinstance(found, Found) and found.symbol is not None:
            if found.symbol.kind == "class":
                return Class(found.module, found.name)
            if found.symbol.kind == "value":  # Alias = SomeClass
                alias = self.dotted(found.module, "", found.symbol.value)
                if isinstance(alias, Found) and alias.symbol is not None and alias.symbol.kind == "class":
                    return Class(alias.module, alias.name)
        if isinstance(found, Outside):
            return found.path
        return text if not isinstance(found, Missing) else found.path

    def dotted(self, module: str, scope: str, text: str) -> Result:
        """A dotted expression as code in a class body of a module sees it."""
        first, *rest = text.split(".")
        if not first.isidentifier():
            return None
        found: Result = None
        while scope:
            symbol = self.symbol(module, f"{scope}.{first}")
            if symbol is not None and symbol.kind != "import":
                found = Found(module, f"{scope}.{first}", symbol, Class(module, scope))
                break
            scope = scope.rpartition(".")[0]
        if found is None:
            found = self.lookup(module, first)
            if isinstance(found, Missing) and hasattr(builtins, first):
                found = Outside(f"builtins.{first}")
        for name in rest:
            if isinstance(found, Outside):
                found = Outside(f"{found.path}.{name}")
            elif isinstance(found, Found):
                found = self.member(found, name)
            else:
                return found
        return found

    def attribute(self, cls: Class, name: str, *, after: Class | None = None, follow: bool = True) -> Result:
        """An attribute of a class or of its instances; with `after`, only from the classes behind that one."""
        if self.formerly is not None and self.class_symbol(cls) is None and cls.module.partition(".")[0] in self.roots:
            result = self._followed(cls.path, name) if follow else None
            return replace(result, behind=True) if isinstance(result, Missing) else result
        classes, outside = self.mro(cls)
        if after is not None and after in classes:
            classes = classes[classes.index(after) + 1 :]
        hooked = dynamic = False
        for owner in classes:
            symbol = self.class_symbol(owner)
            if symbol is None:
                hooked = True
                continue
            member = symbol.members.get(name) or symbol.attributes.get(name)
            if member is not None:
                if member.kind == "import":
                    return None
                return Found(owner.module, f"{owner.name}.{name}", member, owner)
            hooked |= "__getattr__" in symbol.members or "__getattribute__" in symbol.members
            dynamic |= symbol.dynamic and owner.module in self._upstream_files
        external = external_member(outside, name)
        if external:
            return Outside(external)
        if hooked or (name.startswith("__") and name.endswith("__")):
            return None
        result = self._followed(cls.path, name) if follow else Missing(cls.path, name)
        return replace(result, dynamic=dynamic) if isinstance(result, Missing) else result


def external_member(bases: Iterable[str], name: str) -> str:
    """The base outside of what is read that defines the attribute, as far as that is known."""
    for base in bases:
        if name in (_known_members(base) or ()):
            return f"{base}.{name}"
    return ""


@cache
def _known_members(base: str) -> frozenset[str] | None:
    """None where the class is not known."""
    base = base.removeprefix("metaclass=")
    last = base.rpartition(".")[2]
    if last in TORCH_MEMBERS:
        return TORCH_MEMBERS[last]
    module, _, name = base.rpartition(".")
    if hasattr(builtins, base):
        return frozenset(dir(getattr(builtins, base)))
    if module.partition(".")[0] in sys.stdlib_module_names:
        try:
            return frozenset(dir(getattr(importlib.import_module(module), name)))
        except (ImportError, AttributeError):
            return None
    if last in ("ABC", "Protocol", "Generic", "Enum", "StrEnum", "IntEnum", "NamedTuple", "ABCMeta"):
        return frozenset()
    return None


def _parents(name: str) -> Iterable[str]:
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _linear(chains: list[list[Class]]) -> list[Class]:
    """C3 linearisation; where there is none, bases in the order in which they are met."""
    result: list[Class] = []
    chains = [list(chain) for chain in chains if chain]
    while chains:
        for chain in chains:
            head = chain[0]
            if not any(head in other[1:] for other in chains):
                break
        else:
            head = chains[0][0]
        result.append(head)
        chains = [[item for item in chain if item != head] for chain in chains]
        chains = [chain for chain in chains if chain]
    return result
