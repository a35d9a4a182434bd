"""Changes of behaviour: code that the plugin replaces, extends, copies or calls reads differently now."""

import builtins
import re
import sys
from collections.abc import Iterable

from torchtitan_sync import bodies, signatures
from torchtitan_sync.findings import Findings
from torchtitan_sync.moves import Mover
from torchtitan_sync.program import Found, Program
from torchtitan_sync.records import CallRef, HandlerRef, Place, Record
from torchtitan_sync.tables import Symbol
from torchtitan_sync.values import Class

_ALIKE = 0.6
"""Likeness from which a plugin's function of the same name is taken for a copy."""


class Changes:
    def __init__(self, findings: Findings, mover: Mover, upstream: str) -> None:
        self._findings = findings
        self._mover = mover
        self._upstream = upstream

    # Pairs of old and new definitions

    def _pair(self, path: str) -> tuple[Found, Found] | None:
        old, new = self._findings.old, self._findings.new
        before = old.resolve_plainly(path)
        if not isinstance(before, Found) or before.symbol is None or not before.name:
            return None
        after = new.resolve_plainly(path)
        if not isinstance(after, Found):
            move = self._mover.known().get(path)
            after = new.resolve_plainly(move.new) if move is not None else None
        if not isinstance(after, Found) or after.symbol is None or after.symbol.kind != before.symbol.kind:
            return None
        return before, after

    def _differs(self, path: str) -> str:
        """A diff of the two bodies; empty where they say the same."""
        pair = self._pair(path)
        if pair is None:
            return ""
        before, after = pair
        assert before.symbol is not None and after.symbol is not None
        old, new = self._findings.old, self._findings.new
        if old.files[before.module].blob == new.files[after.module].blob and before.name == after.name:
            return ""
        first = bodies.of(old, before.module, before.symbol)
        second = bodies.of(new, after.module, after.symbol)
        return bodies.diff(first, second) if first != second else ""

    # What the plugin stands for

    def replaced(self, kind: str, places: dict[str, list[Place]]) -> None:
        """Patched, overridden or wrapped definitions whose code changed."""
        for path, where in places.items():
            difference = self._differs(path)
            if not difference:
                continue
            name = path.rpartition(".")[2]
            for place in where:
                self._findings.add(
                    kind,
                    path,
                    f"the code of `{name}` changed",
                    place,
                    detail=difference,
                    suggestion="carry the change over to the plugin's version, or check that it is not needed",
                )

    def copies(self) -> None:
        """Functions and methods of the plugin that are much like upstream's of the same name."""
        findings, old = self._findings, self._findings.old
        changed = self._changed_functions()
        for module, file in findings.sources.modules.items():
            table = old.table(module)
            for name, symbol in _functions(table.names if table is not None else {}):
                for path, text, difference in changed.get(name, ()):
                    mine = bodies.of(old, module, symbol)
                    if bodies.size(mine) < bodies.SMALL:
                        continue
                    alike = bodies.similarity(mine, text)
                    if alike < _ALIKE:
                        continue
                    findings.add(
                        "copied-changed",
                        path,
                        f"the plugin's `{name}` is {alike:.0%} like it, and it changed",
                        Place(file.path, symbol.line, 0, 0),
                        detail=difference,
                        confidence=round(alike, 2),
                        suggestion="carry the change over to the copy",
                    )

    def _changed_functions(self) -> dict[str, list[tuple[str, str, str]]]:
        """Upstream's functions and methods that changed, by name: path, old code, difference."""
        old, new = self._findings.old, self._findings.new
        mine = {
            name
            for module in self._findings.sources.modules
            if (table := old.table(module)) is not None
            for name, _ in _functions(table.names)
        }
        changed: dict[str, list[tuple[str, str, str]]] = {}
        for module in self._modules(old):
            table = old.table(module)
            file, other = old.files[module], new.files.get(module)
            if table is None or (other is not None and other.blob == file.blob):
                continue
            for owner, symbol in _all_functions(table.names):
                if symbol.name not in mine or symbol.name.startswith("__"):
                    continue
                path = f"{module}.{owner}{symbol.name}"
                difference = self._differs(path)
                if difference:
                    entry = path, bodies.of(old, module, symbol), difference
                    changed.setdefault(symbol.name, []).append(entry)
        return changed

    def _modules(self, program: Program) -> list[str]:
        return [name for name in program.files if name.partition(".")[0] == self._upstream]

    # What the plugin uses

    def used(self, old: Record) -> None:
        """Functions that it calls, and defaults of what it leaves out."""
        seen: dict[str, list[CallRef]] = {}
        for call in old.calls:
            if call.signature is not None and call.signature.home.module.partition(".")[0] == self._upstream:
                seen.setdefault(call.signature.home.path, []).append(call)
        for path, calls in seen.items():
            pair = self._pair(path)
            if pair is None:
                continue
            self._defaults(path, calls, *pair)
            difference = self._differs(path) if pair[0].symbol and pair[0].symbol.kind == "function" else ""
            if difference:
                self._deprecated(path, calls, *pair)
                for call in calls:
                    name = path.rpartition(".")[2]
                    what = f"the code of `{name}` changed"
                    self._findings.add("used-changed", path, what, call.place, detail=difference)

    def _deprecated(self, path: str, calls: list[CallRef], before: Found, after: Found) -> None:
        assert before.symbol is not None and after.symbol is not None
        old = self._findings.old.segment(before.module, before.symbol).lower()
        new = self._findings.new.segment(after.module, after.symbol).lower()
        if "deprecat" in new and "deprecat" not in old:
            for call in calls:
                self._findings.add("deprecated", path, f"`{before.symbol.name}` is deprecated now", call.place)

    def _defaults(self, path: str, calls: list[CallRef], before: Found, after: Found) -> None:
        for call in calls:
            if call.signature is None or call.binding is None:
                continue
            old = {param.name: param.default for param in call.signature.params if param.default}
            given = {*call.arguments.keywords, *call.binding.met.values()}
            for name, default in self._new_defaults(call, after).items():
                if name in old and name not in given and _plain(old[name]) != _plain(default):
                    what = f"the default of `{name}` was {old[name]}, is {default} now"
                    self._findings.add("default-changed", f"{call.path}.{name}", what, call.place)

    def _new_defaults(self, call: CallRef, after: Found) -> dict[str, str]:
        assert after.symbol is not None
        if after.symbol.kind == "class":
            signature = signatures.of_class(self._findings.new, Class(after.module, after.name))
            return {p.name: p.default for p in signature.params if p.default} if signature is not None else {}
        return {p.name: p.default for p in after.symbol.params if p.default}

    def fields(self, old: Record) -> None:
        """New defaults of the configuration fields that the plugin reads."""
        for ref in old.refs:
            found = ref.result
            if (
                not isinstance(found, Found)
                or found.owner is None
                or found.symbol is None
                or not found.symbol.annotation
            ):
                continue
            symbol = self._findings.old.class_symbol(found.owner)
            if symbol is None or not signatures.is_dataclass(symbol) or found.symbol.kind != "value":
                continue
            pair = self._pair(found.path)
            if pair is None:
                continue
            first, second = (part.symbol for part in pair)
            assert first is not None and second is not None
            if first.value and second.value and _plain(first.value) != _plain(second.value):
                what = f"the default of `{first.name}` was {first.value}, is {second.value} now"
                self._findings.add("default-changed", found.path, what, ref.place)

    def touched(self, old: Record) -> None:
        """Modules whose names it uses, and in which other public code changed."""
        findings = self._findings
        used: dict[str, list[Place]] = {}
        for ref in old.refs:
            if isinstance(ref.result, Found) and ref.kind in ("import", "module", "string"):
                used.setdefault(ref.result.module, []).append(ref.place)
        for module, places in used.items():
            before, after = findings.old.files.get(module), findings.new.files.get(module)
            if before is None or after is None or before.blob == after.blob:
                continue
            names = self._changed_names(module)
            for place in places if names else ():
                shown = ", ".join(f"`{name}`" for name in names[:6]) + (
                    f" and {len(names) - 6} more" if len(names) > 6 else ""
                )
                findings.add("touched", module, f"{shown} changed", place)

    def _changed_names(self, module: str) -> list[str]:
        """Public top-level names of a module whose code differs or that came or went."""
        old, new = self._findings.old, self._findings.new
        first, second = old.table(module), new.table(module)
        if first is None or second is None:
            return []
        names = []
        for name in dict.fromkeys([*first.names, *second.names]):
            a, b = first.names.get(name), second.names.get(name)
            if name.startswith("_") or all(symbol is None or symbol.kind == "import" for symbol in (a, b)):
                continue
            if a is None or b is None or a.kind != b.kind or bodies.of(old, module, a) != bodies.of(new, module, b):
                names.append(name)
        return names

    # Exceptions

    def raised(self, handlers: Iterable[HandlerRef]) -> None:
        for handler in handlers:
            for path in dict.fromkeys(handler.calls):
                pair = self._pair(path)
                if pair is None or not path.startswith(f"{self._upstream}."):
                    continue
                before = self._raises(self._findings.old, pair[0])
                after = self._raises(self._findings.new, pair[1])
                for name in handler.caught:
                    gained = {other for other in after - before if not self._is_a(other, name)}
                    if name in before and name not in after and gained:
                        what = f"raises {', '.join(sorted(gained))}, no longer {name}"
                        self._findings.add(
                            "raises-changed",
                            path,
                            what,
                            handler.place,
                            suggestion=f"expect {', '.join(sorted(gained))}",
                        )

    def _raises(self, program: Program, found: Found, depth: int = 2) -> set[str]:
        """Exceptions that a function names itself, or that the functions do which it calls by name."""
        symbol = found.symbol
        if symbol is None:
            return set()
        if symbol.kind == "class":
            made = symbol.members.get("__init__"), symbol.members.get("__post_init__")
            return {name for member in made if member is not None for name in member.raises}
        raised = set(symbol.raises)
        table = program.table(found.module)
        for call in table.calls if table is not None and depth else ():
            if call.scope == found.name:
                inner = program.dotted(found.module, "", call.function.removeprefix("self."))
                if call.function.startswith("self.") and found.owner is not None:
                    inner = program.attribute(found.owner, call.name, follow=False)
                if isinstance(inner, Found) and inner.symbol is not None and inner.symbol.kind == "function":
                    raised |= self._raises(program, inner, depth - 1)
        return raised

    def _is_a(self, name: str, base: str) -> bool:
        """Whether `except base` catches the new snapshot's exception `name`."""
        if name == base:
            return True
        first, second = getattr(builtins, name, None), getattr(builtins, base, None)
        if isinstance(first, type) and isinstance(second, type):
            return issubclass(first, second)
        for definition in self._mover._named(name):
            classes, outside = self._findings.new.mro(Class(definition.module, definition.name))
            known = {cls.name for cls in classes} | {text.rpartition(".")[2] for text in outside}
            if base in known:
                return True
            return any(self._is_a(text.rpartition(".")[2], base) for text in outside if text.rpartition(".")[2] != name)
        return False

    # Packages

    def third_party(self, old: Record) -> None:
        """Packages, and names of packages, that modules which the plugin imports have come to import."""
        findings = self._findings
        before = self._imports(findings.old)
        known = {package for package, _ in before}
        places: dict[str, list[Place]] = {}
        for ref in old.refs:
            if ref.kind in ("import", "module") and isinstance(ref.result, Found):
                places.setdefault(ref.result.module, []).append(ref.place)
        for module, where in places.items():
            table = findings.new.table(module)
            if table is None:
                continue
            for source, target, _, line in table.imported:
                package = source.partition(".")[0]
                if (
                    not package
                    or package == self._upstream
                    or line in table.guarded
                    or package in sys.stdlib_module_names
                ):
                    continue
                name = f"{source}.{target}" if target else source
                fresh = package not in known
                if not fresh and (package, name) in before:
                    continue
                for place in where:
                    what = f"{module} imports `{name}` now" + (": a package that was not needed" if fresh else "")
                    findings.add(
                        "third-party", package if fresh else name, what, place, file=findings.new.files[module].path
                    )

    def _imports(self, program: Program) -> set[tuple[str, str]]:
        found = set()
        for module in self._modules(program):
            table = program.table(module)
            for source, target, _, _ in table.imported if table is not None else ():
                if source and not source.startswith("."):
                    found.add((source.partition(".")[0], f"{source}.{target}" if target else source))
        return found


def _functions(names: dict[str, Symbol]) -> list[tuple[str, Symbol]]:
    return [(symbol.name, symbol) for _, symbol in _all_functions(names)]


def _all_functions(names: dict[str, Symbol], prefix: str = "") -> list[tuple[str, Symbol]]:
    """Functions and methods with the qualified name of their class and a dot in front."""
    found = []
    for symbol in names.values():
        if symbol.kind == "function":
            found.append((prefix, symbol))
        elif symbol.kind == "class":
            found += _all_functions(symbol.members, f"{prefix}{symbol.name}.")
    return found


def _plain(text: str) -> str:
    return re.sub(r"\s+|,(?=\s*[)\]])", "", text).replace("'", '"')
