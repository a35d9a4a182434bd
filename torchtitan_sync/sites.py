"""Where upstream itself uses a function, method or callback."""

from dataclasses import dataclass

from torchtitan_sync.binding import Arguments, bind
from torchtitan_sync.evaluate import Evaluator
from torchtitan_sync.inference import function_node, parse_expression
from torchtitan_sync.program import Found, Program
from torchtitan_sync.records import Scope
from torchtitan_sync.tables import Call, Param
from torchtitan_sync.values import Class, Function, Instance, Value

_DISTINCT = 2
"""A method name that at most so many upstream classes define is recognised without knowing the object."""


@dataclass(frozen=True)
class Site:
    module: str
    call: Call

    @property
    def arguments(self) -> Arguments:
        return Arguments(self.call.positional, self.call.keywords, self.call.star)

    def __str__(self) -> str:
        words = [*("..." for _ in range(self.call.positional)), *(f"{word}=" for word in self.call.keywords)]
        return f"{self.call.name}({', '.join(words)})"


class Sites:
    def __init__(self, program: Program, upstream: str, *, experiments: bool) -> None:
        """`experiments`: whether the plugin concerns upstream's experiments, so that these count as well."""
        self.program = program
        self._upstream = upstream
        self._left_out = {"tests"} if experiments else {"tests", "experiments"}
        self._calls: dict[str, list[Site]] = {}
        self._defined: dict[str, int] = {}
        self._names: dict[tuple[str, str], dict[str, Value | None]] = {}
        for module in self.modules():
            table = program.table(module)
            assert table is not None
            for call in table.calls:
                self._calls.setdefault(call.name, []).append(Site(module, call))
            for symbol in table.names.values():
                for name, member in symbol.members.items():
                    if member.kind == "function":
                        self._defined[name] = self._defined.get(name, 0) + 1

    def modules(self) -> list[str]:
        """Upstream's that count."""
        names = [name for name in self.program.files if name.partition(".")[0] == self._upstream]
        return [name for name in names if self._left_out.isdisjoint(name.split("."))]

    def named(self, name: str) -> list[Site]:
        return self._calls.get(name, [])

    def value(self, site: Site) -> Value | None:
        """What is called at a site."""
        return self._value(site, site.call.function)

    def _value(self, site: Site, text: str) -> Value | None:
        """What an expression stands for where a site is."""
        node = parse_expression(text)
        if node is None:
            return None
        scope = site.call.scope
        cls = self._class_around(site.module, scope)
        names: dict[str, Value | None] = {}
        if scope:
            key = (site.module, scope)
            if key not in self._names:
                self._names[key] = {}
                function = function_node(self.program, site.module, scope)
                if function is not None:
                    evaluator = Evaluator(self.program, site.module)
                    self._names[key] = evaluator.function(function, cls, scope).names
            names = self._names[key]
        return Evaluator(self.program, site.module).value(node, Scope(dict(names), cls=cls))

    def _class_around(self, module: str, scope: str) -> Class | None:
        while scope:
            scope = scope.rpartition(".")[0]
            if scope and self.program.class_symbol(Class(module, scope)) is not None:
                return Class(module, scope)
        return None

    def of_function(self, found: Found) -> list[Site]:
        """Calls of a module's function or class."""
        sites = []
        for site in self.named(found.path.rpartition(".")[2]):
            result = self.program.dotted(site.module, "", site.call.function)
            if isinstance(result, Found) and result.path == found.path:
                sites.append(site)
        return sites

    def of_method(self, owner: Class, name: str) -> list[Site]:
        """Calls that may reach a method of a class, or of one derived from it."""
        sites = []
        for site in self.named(name):
            if "." not in site.call.function or site.call.function.startswith("super()."):
                continue
            value = self.value(site)
            if isinstance(value, Function):
                if isinstance(value.bound, Instance) and self._related(value.bound.of, owner):
                    sites.append(site)
            elif value is None and self._defined.get(name, 0) <= _DISTINCT:
                sites.append(site)
        return sites

    def of_field(self, owner: Class | None, name: str) -> list[Site]:
        """Calls of what a class's field holds, whichever object passes it on. A field that another class declares
        under the same name holds something else. With no `owner`, all calls by that name."""
        if owner is None:
            return self.named(name)
        return [site for site in self.named(name) if not self._of_another(site, owner, name)]

    def _of_another(self, site: Site, owner: Class, name: str) -> bool:
        value = self._value(site, site.call.function.rpartition(".")[0])
        if not isinstance(value, Instance):
            return False
        found = self.program.attribute(value.of, name, follow=False)
        if not isinstance(found, Found) or found.owner is None or self._related(found.owner, owner):
            return False
        symbol = self.program.class_symbol(found.owner)
        return symbol is not None and name in symbol.members

    def of_build(self, owner: Class) -> list[Site]:
        """`config.build(...)` where the config is the class's own."""
        config = Class(owner.module, f"{owner.name}.Config")
        sites = []
        for site in self.named("build"):
            value = self.value(site)
            if isinstance(value, Function) and isinstance(value.bound, Instance):
                built = value.bound.of
                # What is only known to be of the class that declares `build` can be any config.
                vague = built == Class(value.module, value.name.rpartition(".")[0]) != config
                if self._related(built, config) and not vague:
                    sites.append(site)
        return sites

    def _related(self, first: Class, second: Class) -> bool:
        return second in self.program.mro(first)[0] or first in self.program.mro(second)[0]

    def readers(self, module: str, name: str) -> tuple[int, set[str]]:
        """How often upstream reads a module's name through the module, and who imports it by value."""
        table = self.program.table(module)
        through = table.used.get(name, 0) if table is not None else 0
        by_value = set()
        for other in self.modules():
            outline = self.program.table(other)
            if outline is None or other == module:
                continue
            for source, target, _, _ in outline.imported:
                if target != name and not outline.used.get(f".{name}"):
                    continue
                source = self.program.absolute(other, source)
                if target == name and source == module:
                    by_value.add(other)
                elif outline.used.get(f".{name}") and module in (source, f"{source}.{target}"):
                    through += 1
        return through, by_value


def refused(params: list[Param], sites: list[Site], *, partial: bool = False) -> dict[str, Site]:
    """Sites whose arguments the parameters do not take, by how they call."""
    found = {}
    for site in sites:
        binding = bind(params, site.arguments, partial=partial)
        if not binding.fits():
            found[str(site)] = site
    return found
