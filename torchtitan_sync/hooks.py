"""Where upstream runs the plugin's code: patches, overridden methods, callbacks.

The break is in code that upstream never names. For a patch: does the target exist, is it still the definition, does
upstream still use it, does the replacement take what upstream passes, who holds the old function by value.
"""

from torchtitan_sync import bodies
from torchtitan_sync.binding import shown
from torchtitan_sync.findings import Findings
from torchtitan_sync.model import Rename
from torchtitan_sync.moves import Mover
from torchtitan_sync.program import Found, Missing
from torchtitan_sync.records import CallRef, PatchRef, Place, Record
from torchtitan_sync.signatures import of_class
from torchtitan_sync.sites import Site, Sites, refused
from torchtitan_sync.tables import Param, Symbol
from torchtitan_sync.values import Class, Function, Partial, Value


class Hooks:
    def __init__(self, findings: Findings, mover: Mover, upstream: str, *, experiments: bool) -> None:
        self._findings = findings
        self._mover = mover
        self._upstream = upstream
        self._old = Sites(findings.old, upstream, experiments=experiments)
        self._new = Sites(findings.new, upstream, experiments=experiments)
        self.replaced: dict[str, list[Place]] = {}
        """Upstream definitions that patches replace, by dotted name."""
        self.overridden: dict[str, list[Place]] = {}

    # Patches

    def patches(self, old: Record, new: Record) -> None:
        after = {(p.place.file, p.place.line, p.place.column): p for p in new.patches}
        for patch in old.patches:
            if isinstance(patch.result, Found) and patch.result.module.partition(".")[0] == self._upstream:
                self.replaced.setdefault(patch.result.path, []).append(patch.place)
                now = after.get((patch.place.file, patch.place.line, patch.place.column))
                self._patch(patch, now, patch.result)

    def _patch(self, patch: PatchRef, now: PatchRef | None, before: Found) -> None:
        findings, name = self._findings, patch.name
        symbol = f"{patch.owner}.{name}"
        owner = now.owner if now is not None else patch.owner
        result = findings.new.resolve_plainly(f"{owner}.{name}")
        loud = patch.how == "mock"
        if not isinstance(result, Found):
            if now is None and not isinstance(findings.new.resolve_plainly(patch.owner), Found):
                return  # its owner is gone as well: that is the finding
            move = self._mover.find(symbol)
            target = move.new if move is not None else ""
            findings.add(
                "patch-target-gone" if loud else "silent",
                before.path,
                f"the patched `{name}` is gone"
                + ("" if loud else ": the assignment still succeeds and changes nothing"),
                patch.place,
                moved_to=target,
                confidence=move.confidence if move is not None else 0.9,
                rename=Rename("attribute" if before.owner else "symbol", before.path, target) if target else None,
                suggestion=f"patch {target}" if target else "remove the patch, or find what took over its task",
            )
            return
        if before.owner is None and before.path == symbol and result.path != f"{owner}.{name}":
            if not self._reaches(patch, owner):
                findings.add(
                    "silent",
                    before.path,
                    f"`{symbol}` is only a re-export of `{result.path}` now: upstream's own code no longer looks here",
                    patch.place,
                    moved_to=result.path,
                    confidence=0.95,
                    rename=Rename("symbol", before.path, result.path),
                    suggestion=f"patch {result.path}",
                )
                return
            self._bypassed(patch, before, result, owner)
        if patch.how == "sys.modules" or not before.name:
            return
        self._used(patch, before, result, owner)
        self._binds(patch, before, result)

    def _reaches(self, patch: PatchRef, owner: str) -> bool:
        """Whether those who looked for the name in the patched module, itself or others, still do."""
        before, after = self._old.readers(patch.owner, patch.name), self._new.readers(owner, patch.name)
        return any(before) and all(bool(now) or not then for then, now in zip(before, after, strict=True))

    def _bypassed(self, patch: PatchRef, before: Found, after: Found, owner: str) -> None:
        through, value = self._new.readers(after.module, patch.name)
        others = sorted(value - {owner} | ({after.module} if through else set()))
        if others:
            self._findings.add(
                "patch-by-value",
                before.path,
                f"defined in `{after.module}` now, where {', '.join(others)} look for it",
                patch.place,
                suggestion=f"patch {after.path} as well",
            )

    def _used(self, patch: PatchRef, before: Found, after: Found, owner: str) -> None:
        findings, name = self._findings, patch.name
        if before.owner is None:
            through_old, value_old = self._old.readers(patch.owner, name)
            through_new, value_new = self._new.readers(owner, name)
            if (through_old or value_old) and not (through_new or value_new):
                self._unused(patch, before)
                return
            gained = sorted(value_new - value_old)
            if gained:
                findings.add(
                    "patch-by-value",
                    before.path,
                    f"now imported by value in {', '.join(gained)}",
                    patch.place,
                    suggestion="apply the patch before these modules are imported, or patch them as well",
                )
        elif not name.startswith("__") and self._reads(self._old, name) and not self._reads(self._new, name):
            self._unused(patch, before)

    def _reads(self, sites: Sites, name: str) -> int:
        tables = (sites.program.table(module) for module in sites.modules())
        return sum(table.used.get(f".{name}", 0) for table in tables if table is not None)

    def _unused(self, patch: PatchRef, before: Found) -> None:
        self._findings.add(
            "silent",
            before.path,
            f"upstream no longer uses `{patch.name}`: the patch changes nothing",
            patch.place,
            confidence=0.85,
            suggestion="find what upstream calls instead, or remove the patch",
        )

    def _binds(self, patch: PatchRef, before: Found, after: Found) -> None:
        params = self._params(patch.replacement)
        if params is None:
            return
        if after.owner is not None:
            if before.symbol is not None and not before.symbol.decorated("staticmethod"):
                params = params[1:]
            assert before.owner is not None
            sites = self._old.of_method(before.owner, patch.name), self._new.of_method(after.owner, patch.name)
        else:
            sites = self._old.of_function(before), self._new.of_function(after)
        self._report(
            "patch-signature", before.path, params, *sites, patch.place, isinstance(patch.replacement, Partial)
        )

    def _params(self, value: Value | None) -> list[Param] | None:
        """Of the plugin's function or class."""
        new = self._findings.new
        match value:
            case Partial(function=inner):
                return self._params(inner)
            case Function(module=module, name=name) if module.partition(".")[0] != self._upstream:
                symbol = new.symbol(module, name)
                return symbol.params if symbol is not None and not symbol.decorated("wraps") else None
            case Class(module=module) if module.partition(".")[0] != self._upstream:
                signature = of_class(new, value)
                return list(signature.params) if signature is not None else None
        return None

    def _report(
        self,
        kind: str,
        symbol: str,
        params: list[Param],
        before: list[Site],
        after: list[Site],
        place: Place,
        partial: bool = False,
    ) -> None:
        """Calls that upstream makes now, did not make before, and that do not fit."""
        known = {str(site) for site in before}
        misfits = {how: site for how, site in refused(params, after, partial=partial).items() if how not in known}
        for how, site in misfits.items():
            file = self._findings.new.files[site.module].path
            # What changed is the call, where the definition did not.
            own = self._findings.file_of(symbol)
            taken = {param.name for param in params}
            extra = [word for word in site.call.keywords if word not in taken]
            self._findings.add(
                kind,
                symbol,
                f"upstream calls `{how}` ({file}:{site.call.line})",
                place,
                detail=f"takes {shown(params)}",
                file=own if self._findings.changed(own) else file,
                confidence=0.9,
                suggestion=f"take {', '.join(f'`{word}`' for word in extra)}, or **kwargs"
                if extra
                else "take what is passed",
            )

    # Overrides

    def overrides(self) -> None:
        """Methods and fields of the plugin's classes that stand over upstream's."""
        findings = self._findings
        for module, file in findings.sources.modules.items():
            table = findings.old.table(module)
            for symbol in table.names.values() if table is not None else ():
                if symbol.kind == "class":
                    self._class(Class(module, symbol.name), symbol, file.path)

    def _class(self, cls: Class, symbol: Symbol, file: str) -> None:
        for member in symbol.members.values():
            if member.kind == "class":
                self._class(Class(cls.module, f"{cls.name}.{member.name}"), member, file)
        if not any(self._is_upstream(base) for base in self._findings.old.mro(cls)[0][1:]):
            return
        for name, member in symbol.members.items():
            if member.kind in ("function", "value"):
                self._member(cls, name, member, file)
        self._abstract(cls, symbol, file)

    def _is_upstream(self, cls: Class) -> bool:
        return cls.module.partition(".")[0] == self._upstream

    def _member(self, cls: Class, name: str, member: Symbol, file: str) -> None:
        findings = self._findings
        before = findings.old.attribute(cls, name, after=cls, follow=False)
        if not isinstance(before, Found) or before.owner is None or not self._is_upstream(before.owner):
            return
        place = _definition_place(findings, file, member)
        self.overridden.setdefault(before.path, []).append(place)
        if not any(self._is_upstream(base) for base in findings.new.mro(cls)[0][1:]):
            return  # its base is gone: that is the finding
        after = findings.new.attribute(cls, name, after=cls, follow=False)
        if isinstance(after, Missing):
            self._override_gone(cls, name, member, before, place)
        elif isinstance(after, Found) and after.owner is not None and member.kind == "function":
            self._override_binds(cls, name, member, before, after, place)

    def _override_gone(self, cls: Class, name: str, member: Symbol, before: Found, place: Place) -> None:
        findings = self._findings
        if name.startswith("__"):
            return
        if member.kind == "value" and not (before.symbol is not None and before.symbol.annotation):
            return  # a class attribute of no declared meaning
        if self._reads(self._new, name) and findings.new.attribute(cls, name, follow=False) is None:
            return
        move = self._mover.find(before.path)
        target = move.new if move is not None else ""
        thing = "method" if member.kind == "function" else "field"
        findings.add(
            "silent",
            before.path,
            f"the overridden {thing} `{name}` is gone: what the plugin defines is never used",
            place,
            moved_to=target,
            confidence=move.confidence if move is not None else 0.85,
            rename=Rename("attribute", before.path, target) if target else None,
            suggestion=f"override {target}" if target else "find what upstream calls instead",
        )

    def _override_binds(self, cls: Class, name: str, member: Symbol, before: Found, after: Found, place: Place) -> None:
        assert before.owner is not None and after.owner is not None
        params = member.params if member.decorated("staticmethod") else member.params[1:]
        if name == "__init__":
            cls_symbol = self._findings.new.class_symbol(cls)
            if cls_symbol is None or "Config" not in cls_symbol.members:
                return  # a config builds the class that it is nested in
            owners = [base for base in self._findings.new.mro(cls)[0] if self._is_upstream(base)]
            old_owners = [base for base in self._findings.old.mro(cls)[0] if self._is_upstream(base)]
            sites = [s for owner in old_owners[:1] for s in self._old.of_build(owner)]
            new_sites = [s for owner in owners[:1] for s in self._new.of_build(owner)]
            params = [param for param in params if param.name != "config"]
        else:
            sites = self._old.of_method(before.owner, name)
            new_sites = self._new.of_method(after.owner, name)
        self._report("override-signature", before.path, params, sites, new_sites, place)

    def _abstract(self, cls: Class, symbol: Symbol, file: str) -> None:
        """Methods that the bases now expect of their subclasses."""
        findings = self._findings
        classes, outside = findings.new.mro(cls)
        old_classes, _ = findings.old.mro(cls)
        if any(symbol.decorated("abstractmethod") for symbol in symbol.members.values()):
            return
        for base in classes[1:]:
            base_symbol = findings.new.class_symbol(base) if self._is_upstream(base) else None
            for name, member in base_symbol.members.items() if base_symbol is not None else ():
                if member.kind != "function" or any(self._implements(c, name, base) for c in classes):
                    continue
                if any(name in (s.members if (s := findings.old.class_symbol(c)) else {}) for c in old_classes):
                    continue
                checked = member.decorated("abstractmethod")
                text = bodies.of(findings.new, base.module, member) if member.raises == ["NotImplementedError"] else ""
                if not checked and not (text and bodies.size(text) < bodies.SMALL):
                    continue
                strict = checked and any(base_name.rpartition(".")[2] in ("ABC", "ABCMeta") for base_name in outside)
                findings.add(
                    "abstract-method" if strict else "abstract-added",
                    f"{base.path}.{name}",
                    f"subclasses of `{base.name}` are to implement `{name}{shown(member.params)}`",
                    _definition_place(findings, file, symbol),
                    suggestion=f"implement `{name}` in `{cls.name}`",
                )

    def _implements(self, cls: Class, name: str, base: Class) -> bool:
        symbol = self._findings.new.class_symbol(cls)
        return (
            cls != base
            and symbol is not None
            and name in symbol.members
            and not symbol.members[name].decorated("abstractmethod")
        )

    # Callbacks

    def callbacks(self, old: Record, new: Record) -> None:
        """The plugin's functions that are handed to upstream, which calls them by the name of the field."""
        after = {(c.place.file, c.place.line, c.place.column): c for c in new.calls}
        for call in old.calls:
            if call.signature is None or call.signature.home.module.partition(".")[0] != self._upstream:
                continue
            now = after.get((call.place.file, call.place.line, call.place.column))
            for name, value in call.functions.items():
                params = self._params(value)
                if params is None or name.startswith("#"):
                    continue
                self._callback(call, now, name, value, params)

    def _callback(self, call: CallRef, now: CallRef | None, name: str, value: Value, params: list[Param]) -> None:
        place = self._defined_at(value) or call.words.get(name, call.place)
        assert call.signature is not None
        symbol = f"{call.path}.{name}"
        before = self._old.of_field(_class_of(self._old, call), name)
        after = self._new.of_field(_class_of(self._new, now), name)
        self._report("callback-signature", symbol, params, before, after, place, isinstance(value, Partial))

    def _defined_at(self, value: Value) -> Place | None:
        while isinstance(value, Partial):
            value = value.function
        if not isinstance(value, Function | Class):
            return None
        file = self._findings.sources.modules.get(value.module)
        symbol = self._findings.new.symbol(value.module, value.name)
        return _definition_place(self._findings, file.path, symbol) if file is not None and symbol is not None else None


def _class_of(sites: Sites, call: CallRef | None) -> Class | None:
    """The class that a call constructs; None where it calls something else."""
    found = sites.program.resolve_plainly(call.path) if call is not None else None
    is_class = isinstance(found, Found) and found.symbol is not None and found.symbol.kind == "class"
    return Class(found.module, found.name) if isinstance(found, Found) and is_class else None


def _definition_place(findings: Findings, file: str, symbol: Symbol) -> Place:
    """Of the name in the `def` or `class` line, decorators skipped."""
    lines = findings.sources.contents[file].decode("utf-8", "replace").splitlines()
    for number in range(symbol.line, min(symbol.end, len(lines)) + 1):
        line = lines[number - 1]
        for lead in (f"def {symbol.name}", f"class {symbol.name}", symbol.name):
            if line.lstrip().startswith((lead, f"async {lead}")):
                column = len(line[: line.index(symbol.name)].encode())
                return Place(file, number, column, column + len(symbol.name.encode()))
    return Place(file, symbol.line, 0, 0)
