"""Joins what the plugin's references mean at the old and at the new snapshot: what resolved and no longer does."""

from collections.abc import Iterable
from typing import Any

from torchtitan_sync import bodies, signatures
from torchtitan_sync.binding import shown
from torchtitan_sync.findings import Findings
from torchtitan_sync.model import Grade, Item, Rename, Use
from torchtitan_sync.moves import FOLLOWED, Mover
from torchtitan_sync.program import Found, Missing, Outside
from torchtitan_sync.records import CallRef, Place, Record, Ref
from torchtitan_sync.tables import Param, Symbol
from torchtitan_sync.values import Class, Group, Instance, Value


def references(findings: Findings, mover: Mover, old: Iterable[Ref], new: Iterable[Ref], upstream: str) -> list[Use]:
    """Adds what broke; returns the old references that did not resolve in the first place."""
    old = list(old)
    after = {_key(ref.place, ref.kind, ref.name): ref for ref in new}
    imported = _broken_imports(old, after)
    cascades: dict[str, list[Place]] = {}
    unresolved: list[Use] = []
    for ref in old:
        if not isinstance(ref.result, Found):
            if isinstance(ref.result, Missing) and ref.owner.partition(".")[0] == upstream and ref.kind != "option":
                unresolved.append(findings.use(ref.place))
            continue
        before = ref.result
        if ref.kind == "index":
            continue  # `vocabulary.py` compares these
        if before.module.partition(".")[0] != upstream:
            continue
        now = after.get(_key(ref.place, ref.kind, ref.name))
        if now is None or now.result is None or (isinstance(now.result, Missing) and now.result.behind):
            cascades.setdefault(before.path, []).append(ref.place)
            continue
        if _through_plugin(findings, ref, upstream) or _base_gone(findings, now, upstream):
            if isinstance(now.result, Missing) or (isinstance(now.result, Found) and now.result.moved_from):
                cascades.setdefault(before.path, []).append(ref.place)
            continue
        if not before.name and ref.kind == "attribute" and _spelled_out(before.module, ref.place.file, imported):
            cascades.setdefault(before.path, []).append(ref.place)
            continue
        _reference(findings, mover, ref, before, now)
    _fold(findings, cascades)
    return unresolved


def _broken_imports(old: list[Ref], after: dict[tuple[Any, ...], Ref]) -> set[tuple[str, str]]:
    """Files and the modules that they import under their full name and that are not there any more."""
    found = set()
    for ref in old:
        now = after.get(_key(ref.place, ref.kind, ref.name)) if ref.kind == "module" else None
        result = now.result if now is not None else None
        if isinstance(result, Missing) or (isinstance(result, Found) and result.moved_from):
            found.add((ref.place.file, ref.name))
    return found


def _spelled_out(module: str, file: str, imported: set[tuple[str, str]]) -> bool:
    """Whether `a.b` is only the way to `a.b.c`, whose import is the place to mend."""
    return any(name == module or name.startswith(f"{module}.") for where, name in imported if where == file)


def _key(place: Place, kind: str, name: str) -> tuple[Any, ...]:
    return place.file, place.line, place.column, kind, name


def _through_plugin(findings: Findings, ref: Ref, upstream: str) -> bool:
    """Reached through one of the plugin's own modules, whose import is the place to mend."""
    return ref.owner.partition(".")[0] != upstream and ref.owner in findings.old.files


def _base_gone(findings: Findings, ref: Ref, upstream: str) -> bool:
    """Reached through a class of the plugin whose base is gone: that is the place to mend."""
    if ref.owner.partition(".")[0] == upstream:
        return False
    found = findings.new.resolve(ref.owner)
    if not isinstance(found, Found) or not found.name or found.module not in findings.sources.modules:
        return False
    bases = findings.new.mro(Class(found.module, found.name))[1]
    return any(base.partition(".")[0] == upstream for base in bases)


def _reference(findings: Findings, mover: Mover, ref: Ref, before: Found, now: Ref) -> None:
    result = now.result
    if isinstance(result, Missing) or (isinstance(result, Found) and result.moved_from):
        _broken(findings, mover, ref, before, now)
    elif isinstance(result, Outside):
        if before.owner is not None:
            findings.add(
                "meaning", before.path, f"upstream's own definition is gone: {result.path} takes its place", ref.place
            )
    elif isinstance(result, Found):
        _other_meaning(findings, ref, before, result)


def _broken(findings: Findings, mover: Mover, ref: Ref, before: Found, now: Ref) -> None:
    asked = f"{ref.owner}.{ref.name}" if ref.kind not in ("module", "option") else before.path
    if ref.kind == "module":
        asked = ref.name
    move = mover.find(asked) or mover.find(before.path)
    moved = isinstance(now.result, Found)
    if move is not None and move.how == FOLLOWED and before.owner is not None and ref.kind != "option":
        # Its class moved: a string names both at once, anything else was reached through the class.
        if ref.kind == "string":
            _class_in_string(findings, mover, ref, before.owner)
        return
    kind = _kind(findings, before, moved=moved)
    if ref.kind == "key":
        kind, moved = "key-removed", False
    symbol = f"{before.path}.{ref.name}" if ref.kind == "key" else before.path
    stored = before.symbol is not None and before.symbol.kind == "value"
    if stored and isinstance(now.result, Missing) and now.result.dynamic and not _was_dynamic(findings, ref):
        findings.add("meaning", symbol, f"`{ref.name}` may be set under a computed name now", ref.place)
        return
    if ref.guarded:
        kind = "guarded-missing"
    elif ref.typing or now.typing:
        kind = "typing-missing"
    target = now.result.path if isinstance(now.result, Found) else ""
    if target and move is not None and move.new != target and not target.startswith(move.new):
        move = None
    if target == symbol:
        target = move.new if move is not None else target
    what = _said(before, target, ref)
    findings.add(
        kind,
        symbol,
        what,
        ref.place,
        moved_to=target if moved else "",
        confidence=move.confidence if moved and move is not None else 0.9,
        rename=_rename(findings, before, target) if moved else None,
        suggestion=_suggestion(before, target, ref),
        note=f"found by: {move.how}" if moved and move is not None else "",
        follows=_follows(mover, ref, now),
    )


def _class_in_string(findings: Findings, mover: Mover, ref: Ref, owner: Class) -> None:
    move = mover.find(owner.path)
    if move is None:
        return
    findings.add(
        "symbol-moved",
        owner.path,
        f"`{owner.name}` is now `{move.new}`",
        ref.place,
        moved_to=move.new,
        confidence=move.confidence,
        rename=Rename("symbol", owner.path, move.new),
        suggestion=f"name {move.new}.{ref.name}",
        note=f"found by: {move.how}",
    )


def _was_dynamic(findings: Findings, ref: Ref) -> bool:
    found = findings.old.resolve(ref.owner)
    if not isinstance(found, Found) or not found.name:
        return False
    probe = findings.old.attribute(Class(found.module, found.name), "no such name")
    return isinstance(probe, Missing) and probe.dynamic


def _kind(findings: Findings, before: Found, *, moved: bool) -> str:
    if not before.name:
        stem = "module"
    elif before.owner is None and "." not in before.name:
        stem = "symbol"
    elif is_field(findings, before):
        stem = "field"
    else:
        stem = "attribute"
    return f"{stem}-{'moved' if moved else 'removed'}"


def is_field(findings: Findings, before: Found) -> bool:
    symbol = findings.old.class_symbol(before.owner) if before.owner is not None else None
    return (
        symbol is not None
        and signatures.is_dataclass(symbol)
        and before.symbol is not None
        and bool(before.symbol.annotation)
    )


def _said(before: Found, target: str, ref: Ref) -> str:
    name = before.path.rpartition(".")[2]
    if ref.kind == "key":
        return f"key {ref.name!r} is gone from {before.path}"
    if not target:
        return f"`{name}` is gone"
    return f"`{name}` is now `{target}`"


def _suggestion(before: Found, target: str, ref: Ref) -> str:
    if not target:
        return f"remove the use of `{ref.name}`, or keep a copy of the old code in the plugin"
    module, _, name = target.rpartition(".")
    if ref.kind == "import":
        alias = "" if name == ref.name else f" as {ref.name}"
        return f"from {module} import {name}{alias}"
    if ref.kind == "module":
        return f"import from {target}"
    return f"use {target}"


def _rename(findings: Findings, before: Found, target: str) -> Rename:
    if not before.name:
        what = "module"
    elif before.owner is not None:
        what = "field" if is_field(findings, before) else "attribute"
    else:
        what = "symbol"
    return Rename(what, before.path, target)


def _follows(mover: Mover, ref: Ref, now: Ref) -> str:
    """The move that the owner of a reference took first."""
    owner = now.owner
    if owner == ref.owner:
        return ""
    return next((path for path, move in mover.known().items() if move.new == owner), "")


def _other_meaning(findings: Findings, ref: Ref, before: Found, after: Found) -> None:
    if before.symbol is None or after.symbol is None or ref.kind == "key":
        return
    first, second = before.symbol, after.symbol
    callable_before, callable_after = (_called(symbol) for symbol in (first, second))
    if before.owner is not None and callable_before is not callable_after:
        kind = "method" if callable_after else "plain attribute"
        findings.add("meaning", before.path, f"`{first.name}` is a {kind} now", ref.place)
        return
    if before.path == after.path or before.owner is not None or first.kind == "value":
        return
    if first.kind != second.kind:
        findings.add("meaning", before.path, f"`{first.name}` is a {second.kind} now, from {after.path}", ref.place)
        return
    alike = bodies.similarity(
        bodies.of(findings.old, before.module, first), bodies.of(findings.new, after.module, second)
    )
    if alike < 0.3 and findings.old.symbol(after.module, after.name) is not None:
        findings.add("meaning", before.path, f"`{first.name}` means {after.path} now, which is other code", ref.place)


def cascades(findings: Findings, old: Record, new: Record, overridden: dict[str, list[Place]]) -> None:
    """Uses that stand behind a broken class or function: they need no edit of their own, and are not counted."""
    broken = {
        item.upstream_symbol: item for item in findings.items.values() if item.kind.endswith(("-moved", "-removed"))
    }

    works = {
        (ref.place.file, ref.place.line, ref.place.column)
        for ref in new.refs
        if isinstance(ref.result, Found) and not ref.result.moved_from
    }

    def fold(path: str, place: Place) -> None:
        while path and path not in broken:
            path = path.rpartition(".")[0]
        if path:
            # What works, and is in a file that nothing of this breaks, came another way: by a re-export that is left.
            here = any(use.file == place.file for use in broken[path].downstream)
            if not here and (place.file, place.line, place.column) in works:
                return
            use = findings.use(place)
            item = broken[path]
            if use not in item.downstream and use not in item.cascade:
                item.cascade.append(use)

    direct = {(use.file, use.line) for item in findings.items.values() if item.grade == 0 for use in item.downstream}
    for ref in old.refs:
        if isinstance(ref.result, Found) and (ref.place.file, ref.place.line) not in direct:
            if ref.result.owner is not None:
                fold(ref.result.owner.path, ref.place)
            fold(ref.owner, ref.place)
    for call in old.calls:
        if (call.place.file, call.place.line) not in direct:
            fold(call.path, call.place)
    for patch in old.patches:
        if isinstance(patch.result, Found) and (patch.place.file, patch.place.line) not in direct:
            fold(patch.result.path, patch.place)
    for path, places in overridden.items():
        for place in places:
            if (place.file, place.line) not in direct:
                fold(path, place)


def _called(symbol: Symbol) -> bool:
    return symbol.kind == "function" and not symbol.decorated("property", "cached_property")


def _fold(findings: Findings, cascades: dict[str, list[Place]]) -> None:
    """Uses behind a broken one go to its item."""
    by_symbol: dict[str, Item] = {}
    for item in findings.items.values():
        by_symbol.setdefault(item.upstream_symbol, item)
    for path, places in cascades.items():
        owner = path
        while owner and owner not in by_symbol:
            owner = owner.rpartition(".")[0]
        below = next((symbol for symbol in by_symbol if symbol.startswith(f"{path}.")), "")
        named = by_symbol.get(owner) or by_symbol.get(below)
        for place in places:
            use = findings.use(place)
            root = named or _before(findings, use)
            if root is not None and use not in root.downstream and use not in root.cascade:
                root.cascade.append(use)


def _before(findings: Findings, use: Use) -> Item | None:
    """The break that stands nearest before a place: what the place depends on was most likely taken from there."""
    nearest: tuple[int, Item] | None = None
    for item in findings.items.values():
        for other in item.downstream if item.grade == Grade.P0 else ():
            if other.file == use.file and other.line <= use.line and (nearest is None or other.line >= nearest[0]):
                nearest = other.line, item
    return nearest[1] if nearest is not None else None


# Calls


def calls(findings: Findings, mover: Mover, old: Record, new: Record, upstream: str) -> None:
    after = {_key(call.place, "call", ""): call for call in new.calls}
    for call in old.calls:
        now = after.get(_key(call.place, "call", ""))
        if now is None or call.signature is None or now.signature is None:
            continue
        if now.signature.home.module.partition(".")[0] != upstream or call.binding is None or now.binding is None:
            continue
        if call.signature.home.module.partition(".")[0] != upstream:
            continue
        if _became_method(call.signature.home, now.signature.home):
            continue  # how it is called now is another question
        gone = not isinstance(findings.new.resolve_plainly(call.path), Found)
        follows = call.path if call.path != now.path and gone else ""
        _call(findings, mover, call, now, follows)


def _became_method(before: Found, after: Found) -> bool:
    return (
        "." not in before.name and "." in after.name and not after.name.endswith(".__init__") and not _is_class(after)
    )


def _is_class(home: Found) -> bool:
    return home.symbol is not None and home.symbol.kind == "class"


def _field_keyword(
    findings: Findings, mover: Mover, call: CallRef, now: CallRef, name: str, common: dict[str, Any]
) -> None:
    """A keyword of a dataclass's constructor is a field."""
    assert call.signature is not None
    field = findings.old.attribute(Class(call.signature.home.module, call.signature.home.name), name, follow=False)
    symbol = field.path if isinstance(field, Found) else f"{call.path}.{name}"
    move = mover.find(symbol)
    # Only a new name in the same class can be passed in the same place.
    here = move is not None and move.new.rpartition(".")[0] == now.path
    findings.add(
        "field-moved" if move is not None else "field-removed",
        symbol,
        f"`{name}` is now `{move.new}`" if move is not None else f"`{name}` is gone",
        call.words.get(name, call.place),
        moved_to=move.new if move is not None else "",
        confidence=move.confidence if move is not None else 1.0,
        rename=Rename("field", symbol, move.new) if move is not None and here else None,
        suggestion=f"set {move.new}" if move is not None else f"do not pass `{name}`",
        **common,
    )


def _call(findings: Findings, mover: Mover, call: CallRef, now: CallRef, follows: str) -> None:
    assert call.signature and now.signature and call.binding and now.binding
    new_problems = now.binding.problems() - call.binding.problems()
    before, after = call.signature.params, now.signature.params
    path, place = call.path, call.place
    detail = f"- {shown(before)}\n+ {shown(after)}"
    common: dict[str, Any] = {"detail": detail, "follows": follows}
    # A call with `*args` or `**kwargs` says too little to be made again.
    given = None if call.arguments.star else (call.arguments.positional, call.arguments.keywords)
    for what, name in sorted(new_problems):
        if what == "unexpected":
            if _is_class(now.signature.home) and _is_class(call.signature.home):
                _field_keyword(findings, mover, call, now, name, common)
                continue
            renamed = renamed_param(name, before, after)
            target = f"{now.path}.{renamed[0]}" if renamed else ""
            findings.add(
                "parameter-renamed" if renamed else "parameter-removed",
                f"{path}.{name}",
                f"`{name}` is now `{renamed[0]}`" if renamed else f"takes no `{name}` any more",
                call.words.get(name, place),
                moved_to=target,
                confidence=renamed[1] if renamed else 1.0,
                rename=Rename("parameter", f"{path}.{name}", target) if renamed else None,
                suggestion=f"{renamed[0]}=..." if renamed else f"do not pass `{name}`",
                **common,
            )
        elif what == "missing":
            findings.add(
                "parameter-required",
                f"{path}.{name}",
                f"needs `{name}`",
                place,
                call=given,
                suggestion=f"pass `{name}`",
                **common,
            )
        elif what == "surplus":
            findings.add(
                "parameter-removed", path, f"takes {name} positional argument(s) fewer", place, call=given, **common
            )
        elif what == "doubled":
            findings.add("parameter-order", path, f"`{name}` is given by position and by keyword now", place, **common)
    if not new_problems:
        _positions(findings, call, now, common)
    _returns(findings, call, now)


def _positions(findings: Findings, call: CallRef, now: CallRef, common: dict[str, Any]) -> None:
    assert call.signature and now.signature and call.binding and now.binding
    new_names = {param.name for param in now.signature.params}
    old_names = {param.name for param in call.signature.params}
    for index, name in call.binding.met.items():
        other = now.binding.met.get(index, name)
        if other == name:
            continue
        if name in new_names:
            findings.add(
                "parameter-order",
                call.path,
                f"position {index + 1} was `{name}`, is `{other}` now",
                call.place,
                **common,
            )
        elif other not in old_names and relayout(name, other):
            note = "a tensor argument renamed with a layout suffix: whether its layout changed cannot be decided here"
            findings.add(
                "meaning", f"{call.path}.{name}", f"`{name}` is now `{other}`", call.place, note=note, **common
            )


def relayout(old: str, new: str) -> bool:
    """`x` to `x_BLD`: a suffix of dimension letters."""
    stem, _, suffix = new.rpartition("_")
    return suffix.isupper() and suffix.isalpha() and (stem == old or old.startswith(stem) or stem.startswith(old))


def renamed_param(name: str, before: Iterable[Param], after: Iterable[Param]) -> tuple[str, float] | None:
    """What a parameter is called now, and how sure that is."""
    before, after = list(before), list(after)
    old_names, new_names = {p.name for p in before}, {p.name for p in after}
    gone = next((p for p in before if p.name == name), None)
    added = [p for p in after if p.name not in old_names and p.kind not in ("*", "**")]
    removed = [p for p in before if p.name not in new_names and p.kind not in ("*", "**")]
    if gone is None or not added:
        return None
    only = len(added) == 1 and len(removed) == 1
    scored = []
    for param in added:
        words, others = set(name.lower().split("_")), set(param.name.lower().split("_"))
        alike = len(words & others) / max(len(words | others), 1)
        same_type = param.annotation == gone.annotation
        said = same_type and bool(param.annotation)
        same_place = after.index(param) == before.index(gone)
        # Names in common, or, for the only one that came for the only one that went, all else in common.
        if alike and same_type:
            scored.append((0.55 + 0.25 * alike + 0.1 * same_place + 0.05 * (param.default == gone.default), param.name))
        elif only and same_place and same_type and param.default == gone.default:
            scored.append((0.8 if said else 0.7, param.name))
    scored.sort(reverse=True)
    if not scored or (len(scored) > 1 and scored[1][0] > scored[0][0] - 0.02):
        return None
    return scored[0][1], round(min(0.95, scored[0][0]), 2)


def _returns(findings: Findings, call: CallRef, now: CallRef) -> None:
    first, second = _shape(call.value), _shape(now.value)
    if first == second or not first or not second:
        return
    if call.unpacked and isinstance(call.value, Group) and call.value.kind == "tuple":
        count = len(now.value.items) if isinstance(now.value, Group) and now.value.kind == "tuple" else 0
        if count != call.unpacked and len(call.value.items) == call.unpacked:
            gives = f"{count} values" if count else "one value"
            what = f"returns {gives}, not {call.unpacked}"
            findings.add("return-arity", call.path, what, call.place, suggestion="unpack what it returns now")
            return
    assert call.signature and now.signature
    if isinstance(call.value, Instance) and call.signature.home.symbol and call.signature.home.symbol.kind == "class":
        return
    if _same_kin(findings, call.value, now.value):
        return
    findings.add("return-changed", call.path, f"returned {first}, returns {second} now", call.place)


def _same_kin(findings: Findings, before: Value | None, after: Value | None) -> bool:
    """A moved class is not another return type."""
    match before, after:
        case Instance(of=old), Instance(of=new):
            return old.name.rpartition(".")[2] == new.name.rpartition(".")[2]
        case Group(kind=kind, items=items), Group(kind=other, items=others):
            return kind == other and len(items) == len(others)
    return False


def _shape(value: Value | None) -> str:
    match value:
        case Instance(of=Class(name=name)):
            return name
        case Group(kind=kind, items=items):
            return f"{kind} of {len(items)}" if kind == "tuple" else kind
    return ""
