"""Private functions behind what the plugin uses: shared code that one path of upstream changed for all."""

from torchtitan_sync import bodies
from torchtitan_sync.findings import Findings
from torchtitan_sync.program import Found, Program
from torchtitan_sync.records import Place, Record

_KINDS = ("import", "module", "attribute", "string")


def changed(findings: Findings, record: Record) -> None:
    """One finding for each private function that changed and that a used function or class of its module calls."""
    used: dict[tuple[str, str], list[Place]] = {}
    for ref in record.refs:
        if ref.kind in _KINDS and isinstance(ref.result, Found) and ref.result.name:
            used.setdefault((ref.result.module, ref.result.name.partition(".")[0]), []).append(ref.place)
    for (module, name), places in used.items():
        before, after = findings.old.files.get(module), findings.new.files.get(module)
        if before is None or after is None or before.blob == after.blob:
            continue
        for helper in sorted(_behind(findings.old, module, name) & _behind(findings.new, module, name)):
            difference = _difference(findings, module, helper)
            for place in places if difference else ():
                what = f"the code of `{helper}` changed, which `{name}` calls"
                findings.add("used-changed", f"{module}.{helper}", what, place, detail=difference)


def _behind(program: Program, module: str, name: str) -> set[str]:
    """Private functions of a module that a function or class of it reaches through calls by plain name."""
    table = program.table(module)
    if table is None:
        return set()
    found: set[str] = set()
    waiting, seen = [name], {name}
    while waiting:
        scope = waiting.pop()
        for call in table.calls:
            symbol = table.names.get(call.function)
            inside = call.scope.partition(".")[0] == scope
            if inside and symbol is not None and symbol.kind == "function" and symbol.name not in seen:
                seen.add(symbol.name)
                waiting.append(symbol.name)
                if symbol.name.startswith("_"):
                    found.add(symbol.name)
    return found


def _difference(findings: Findings, module: str, name: str) -> str:
    before, after = findings.old.symbol(module, name), findings.new.symbol(module, name)
    if before is None or after is None:
        return ""
    first, second = bodies.of(findings.old, module, before), bodies.of(findings.new, module, after)
    return bodies.diff(first, second) if first != second else ""
