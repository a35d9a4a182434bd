"""Reads the plugin against both ends of a range, and says what differs."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torchtitan_sync import attribution, compare, grades, landscape, reached, surface, vocabulary
from torchtitan_sync.changes import Changes
from torchtitan_sync.findings import Findings
from torchtitan_sync.hooks import Hooks
from torchtitan_sync.model import Analysis, Grade, Item, Plugin, Range, Snapshot, SyncError, Use
from torchtitan_sync.modules import File, package_files
from torchtitan_sync.moves import Mover
from torchtitan_sync.program import Found, Program
from torchtitan_sync.records import Hints, Record
from torchtitan_sync.sources import Sources
from torchtitan_sync.tables import Cache
from torchtitan_sync.values import Function, Partial, Value

Follow = Callable[[str, str], str | None]
Formerly = Callable[[str, str], Value | None]


def find(changes: Range, plugin: Plugin, sources: Sources, outlines: Path, say: Callable[[str], None]) -> Analysis:
    """`outlines` is the file that keeps what was parsed. Raises SyncError when one side cannot be read."""
    tables = Cache(outlines)
    say(f"reading {len(sources.modules)} files of {plugin.package} and upstream at {changes.old.label}")
    sources.parse()
    old_side = _read(changes.old, plugin)
    say(f"reading upstream at {changes.new.label}")
    new_side = _read(changes.new, plugin)
    tables.tables(sources.blobs() | old_side.blobs() | new_side.blobs())
    old = _program(old_side, sources, tables)
    mover: Mover | None = None

    def follow(owner: str, name: str) -> str | None:
        return mover.follow(owner, name) if mover is not None else None

    def formerly(owner: str, name: str) -> Value | None:
        return mover.formerly(owner, name) if mover is not None else None

    new = _program(new_side, sources, tables, follow, formerly)
    mover = Mover(old, new, plugin.upstream, changes.renames(), plugin.replaced)
    findings = Findings(sources, old, new)
    say("resolving every reference at both")
    before, after = _walk(sources, plugin, old, new, mover)
    unresolved = _compare(findings, mover, before, after, plugin)
    old_files, new_files = changes.old.files(), changes.new.files()
    landscape.model_names(findings, old_files, new_files, plugin.upstream)
    landscape.models(findings, old_files, new_files, plugin.upstream)
    landscape.others(findings, old_files, new_files)
    landscape.dependencies(findings, changes)
    items = _settle(list(findings.items.values()))
    say("looking for the commits")
    attribution.attribute(changes, items)
    tables.save()
    return Analysis(
        old=changes.old.label,
        new=changes.new.label,
        items=items,
        moves=[item for item in items if item.moved_to],
        renamed_files=sorted((name, new_name, likeness) for name, (new_name, likeness) in mover.files.items()),
        files=landscape.directories(old_files, new_files),
        commit_count=changes.commit_count(),
        references=sum(isinstance(ref.result, Found) for ref in before.refs),
        unresolved_before=unresolved,
        unread=sources.broken,
        unaffected=_unaffected(old, new, before, plugin.upstream),
    )


@dataclass(frozen=True)
class _Side:
    """Upstream's modules at one snapshot, and the contents of their files by path."""

    files: dict[str, File]
    contents: dict[str, bytes]

    def blobs(self) -> dict[str, bytes]:
        return {file.blob: self.contents[file.path] for file in self.files.values()}


def _read(snapshot: Snapshot, plugin: Plugin) -> _Side:
    files = package_files(snapshot.files(), plugin.upstream)
    if not files:
        raise SyncError(f"upstream has no package {plugin.upstream} at {snapshot.label}")
    return _Side(files, snapshot.read([file.path for file in files.values()]))


def _program(
    side: _Side,
    sources: Sources,
    tables: Cache,
    follow: Follow | None = None,
    formerly: Formerly | None = None,
) -> Program:
    files, contents = side.files, side.contents
    modules: dict[str, File] = {**sources.modules, **files}
    return Program(
        modules,
        tables,
        lambda module: contents[files[module].path] if module in files else sources.contents[modules[module].path],
        follow,
        formerly,
        files,
    )


def _walk(sources: Sources, plugin: Plugin, old: Program, new: Program, mover: Mover) -> tuple[Record, Record]:
    """The plugin's references at both snapshots. What a patch says about its function is used in a second look."""
    before = surface.walk(sources, old)
    hints = _hints(before, plugin)
    if hints:
        again = {module for module, _ in hints}
        files = {sources.modules[module].path for module in again if module in sources.modules}
        second = surface.walk(sources, old, hints, only=again)
        before.refs = [ref for ref in before.refs if ref.place.file not in files] + second.refs
        before.calls = [call for call in before.calls if call.place.file not in files] + second.calls
        before.patches = [patch for patch in before.patches if patch.place.file not in files] + second.patches
        before.refs = [ref for ref in before.refs if (ref.owner, ref.name) not in second.given]
    roots = surface.config_root(old, plugin.upstream), surface.config_root(new, plugin.upstream)
    if roots[0] is not None and roots[1] is not None and roots[0] != roots[1]:
        mover.adopt(roots[0].path, roots[1].path, 0.7, "the class that the command line fills")
    before.refs += surface.options(sources, old, roots[0])
    after = surface.walk(sources, new, hints)
    after.refs += surface.options(sources, new, roots[1])
    return before, after


def _hints(record: Record, plugin: Plugin) -> Hints:
    """Functions of the plugin that stand in for upstream's have their parameters."""
    hints: Hints = {}
    for patch in record.patches:
        value = patch.replacement
        while isinstance(value, Partial):
            value = value.function
        if isinstance(value, Function) and value.module.partition(".")[0] != plugin.upstream:
            hints[value.module, value.name] = patch.owner, patch.name
    return hints


def _compare(findings: Findings, mover: Mover, before: Record, after: Record, plugin: Plugin) -> list[Use]:
    upstream = plugin.upstream
    used = [ref.result.module for ref in before.refs if isinstance(ref.result, Found)]
    hooks = Hooks(findings, mover, upstream, experiments=any(".experiments." in module for module in used))
    hooks.patches(before, after)
    unresolved = compare.references(findings, mover, before.refs, after.refs, upstream)
    compare.calls(findings, mover, before, after, upstream)
    vocabulary.compare(findings, mover, before, after)
    hooks.overrides()
    compare.cascades(findings, before, after, hooks.overridden)
    hooks.callbacks(before, after)
    changes = Changes(findings, mover, upstream)
    changes.replaced("patched-changed", hooks.replaced)
    changes.replaced("overridden-changed", hooks.overridden)
    changes.replaced("wrapped-changed", _wrapped(before))
    changes.copies()
    changes.raised(before.handlers)
    changes.used(before)
    reached.changed(findings, before)
    changes.fields(before)
    changes.third_party(before)
    changes.touched(before)
    return unresolved


def _wrapped(record: Record) -> dict[str, list]:
    places: dict[str, list] = {}
    for place, path in record.wrapped:
        places.setdefault(path, []).append(place)
    return places


_STOPS = ("silent", "patch-target-gone")


def _settle(items: list[Item]) -> list[Item]:
    """A change is reported once, at its highest grade; ids that stay the same from run to run."""
    order = {kind: number for number, kind in enumerate(grades.TABLE)}
    items = sorted(items, key=lambda item: (item.grade, order[item.kind]))
    first: dict[str, Item] = {}
    kept = []
    for item in items:
        top = first.setdefault(item.upstream_symbol, item)
        if item is not top and (item.grade >= Grade.P1 or (item.kind in _STOPS and top.kind not in _STOPS)):
            _merge(top, item)
            continue
        item.id = f"{item.kind}-{hashlib.sha1(item.upstream_symbol.encode(), usedforsecurity=False).hexdigest()[:8]}"
        kept.append(item)
    for item in kept:
        item.downstream.sort()
        item.cascade = [use for use in item.cascade if use not in item.downstream]
    return sorted(kept, key=lambda item: (item.grade, item.upstream_file, item.upstream_symbol, item.kind))


def _merge(top: Item, item: Item) -> None:
    """The same change seen in another way."""
    note = f"{grades.TABLE[item.kind].title}: {item.what}"
    if note not in top.notes:
        top.notes.append(note)
    places = top.downstream if item.grade == top.grade else top.cascade
    places += [use for use in item.downstream if use not in top.downstream and use not in places]
    top.detail = top.detail or item.detail


def _unaffected(old: Program, new: Program, before: Record, upstream: str) -> int:
    """Top-level names of upstream that are gone and that the plugin does not use."""
    used = {ref.result.path for ref in before.refs if isinstance(ref.result, Found)}
    count = 0
    for module in old.files:
        table = old.table(module) if module.partition(".")[0] == upstream else None
        for symbol in table.names.values() if table is not None else ():
            if symbol.kind != "import" and f"{module}.{symbol.name}" not in used:
                other = new.files.get(module)
                if other is None or (other.blob != old.files[module].blob and new.symbol(module, symbol.name) is None):
                    count += 1
    return count
