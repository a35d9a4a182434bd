"""`torchtitan-sync report`: writes the changes as Markdown, and as JSON and SARIF where asked."""

import argparse
import dataclasses
import fnmatch
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torchtitan_sync import console, impact, settings, sources, state, upstream, witness
from torchtitan_sync.grades import TABLE
from torchtitan_sync.model import Analysis, Grade, Item, Plugin, Use

FILE = sources.REPORT

MEANING = {
    Grade.P0: "raises, or silently stops working",
    Grade.P1: "resolves, but behaviour relied on changed",
    Grade.P2: "needs a look",
    Grade.P3: "models",
    Grade.P4: "documentation, tests, CI",
}
_PLACES = 12
"""Places listed at an item before the rest is folded."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", type=Path, metavar="FILE", help=f"the report (default: {FILE} in the repository)")
    parser.add_argument("--sarif", type=Path, metavar="FILE", help="write findings for code-review annotations")
    parser.add_argument(
        "--witness",
        type=Path,
        metavar="DIR",
        help="write for each P0 a script that passes on the old upstream and fails on the new; "
        "what does not is lowered to P2",
    )


def run(args: argparse.Namespace) -> int:
    plugin = settings.load(args.repo, args.package)
    with upstream.open_range(plugin, target=args.target, upstream=args.upstream, cache=args.cache) as changes:
        for note in changes.notes:
            console.say(note)
        if changes.old.id == changes.new.id:
            return console.up_to_date(args.json, changes.new.label, [])
        analysis = impact.analyse(changes, plugin, args.cache, console.say)
        if args.witness is not None:
            shown, lowered = witness.write(analysis, changes, plugin, args.witness)
            console.say(f"{shown} breaks shown by witnesses in {args.witness}, {lowered} lowered to P2")
    output = args.output or plugin.root / FILE
    before = output.read_text(encoding="utf-8") if output.exists() else ""
    output.write_text(markdown(analysis, plugin, before), encoding="utf-8")
    written = [output]
    for path, data in ((args.json, as_json(analysis)), (args.sarif, sarif(analysis))):
        console.write_json(path, data)
        if path is not None and not console.is_output(path):
            written.append(path)
    counts = Counter(item.grade for item in analysis.items)
    summary = ", ".join(f"{counts[grade]} {grade.name}" for grade in Grade)
    console.say(f"{analysis.old} -> {analysis.new}: {summary}")
    console.say(f"written: {', '.join(map(str, written))}")
    console.say(state.REMINDER)
    return 0


# JSON


def as_json(analysis: Analysis) -> list[dict[str, Any]]:
    return [_item(item) for item in analysis.items]


def _item(item: Item) -> dict[str, Any]:
    return {
        "id": item.id,
        "grade": item.grade.name,
        "kind": item.kind,
        "upstream_symbol": item.upstream_symbol,
        "upstream_file": item.upstream_file,
        "what": item.what,
        "moved_to": item.moved_to or None,
        "confidence": item.confidence,
        "commits": [dataclasses.asdict(commit) for commit in item.commits],
        "downstream": _places(item.downstream),
        "suggestion": item.suggestion,
        # Beyond the agreed fields: what breaks only because of this, the difference, remarks.
        "cascade": _places(item.cascade),
        "follows": item.follows or None,
        "detail": item.detail,
        "notes": item.notes,
    }


def _places(uses: Iterable[Use]) -> list[dict[str, Any]]:
    return [{"file": use.file, "line": use.line, "text": use.text} for use in uses]


# SARIF

_LEVELS = {Grade.P0: "error", Grade.P1: "warning"}


def sarif(analysis: Analysis) -> dict[str, Any]:
    """SARIF 2.1.0: one result an item and file, each place a location."""
    rules = [
        {"id": kind, "shortDescription": {"text": entry.title}, "help": {"text": entry.why or entry.title}}
        for kind, entry in TABLE.items()
    ]
    results = []
    for item in analysis.items:
        for use in item.downstream:
            results.append(
                {
                    "ruleId": item.kind,
                    "level": _LEVELS.get(item.grade, "note"),
                    "message": {"text": _message(item)},
                    "locations": [_location(use)],
                    "partialFingerprints": {"item": item.id, "line": use.text},
                    "properties": {"grade": item.grade.name, "upstreamSymbol": item.upstream_symbol},
                }
            )
    driver = {"name": "torchtitan-sync", "rules": rules}
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return {"$schema": schema, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _message(item: Item) -> str:
    text = f"{item.grade.name} {item.upstream_symbol}: {_plain(item.what)}"
    return f"{text}. {item.suggestion}" if item.suggestion else text


def _plain(text: str) -> str:
    return text.replace("`", "")


def _location(use: Use) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": use.line}
    if use.end_column > use.column:
        region |= {"startColumn": use.column + 1, "endColumn": use.end_column + 1}
    return {"physicalLocation": {"artifactLocation": {"uri": use.file, "uriBaseId": "%SRCROOT%"}, "region": region}}


# Markdown

_BOX = re.compile(r"^\s*- \[([ xX])\] .*<!-- ([\w.:/-]+) -->\s*$")
_NOTES_HEADING = "## Notes"


@dataclasses.dataclass
class _Kept:
    """What a maintainer wrote into an earlier report."""

    ticked: set[str] = dataclasses.field(default_factory=set)
    notes: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    """Quoted lines (`> ...`) below an item, by its id."""
    heads: dict[str, str] = dataclasses.field(default_factory=dict)
    free: list[str] = dataclasses.field(default_factory=list)
    """Everything below the heading Notes."""


def _kept(text: str) -> _Kept:
    kept = _Kept()
    body, _, free = text.partition(f"\n{_NOTES_HEADING}\n")
    kept.free = free.strip("\n").split("\n") if free.strip() else []
    current = ""
    for line in body.splitlines():
        box = _BOX.match(line)
        if box:
            current = box[2]
            kept.heads[current] = line.strip()
            if box[1] in "xX":
                kept.ticked.add(current)
        elif line.startswith("#"):
            current = ""
        elif current and line.lstrip().startswith(">"):
            kept.notes.setdefault(current, []).append(line.strip())
    return kept


def markdown(analysis: Analysis, plugin: Plugin, before: str = "") -> str:
    """The report. Ticks, quoted lines below items and the section Notes of the report before are kept."""
    kept = _kept(before)
    seen: set[str] = set()
    commits = "unknown (no history)" if analysis.commit_count is None else str(analysis.commit_count)
    counts = Counter(item.grade for item in analysis.items)
    lines = [
        "# Upstream changes",
        "",
        "Written by `torchtitan-sync report`. Ticks, lines that start with `>` below an item, and what is written",
        "under Notes stay when it is written again.",
        "",
        f"- old: {analysis.old}",
        f"- new: {analysis.new}",
        f"- commits between: {commits}",
        f"- references to upstream: {analysis.references}",
        f"- further ones that did not resolve at the old commit either: {len(analysis.unresolved_before)}",
        f"- upstream names that went and are not used: {analysis.unaffected}",
        *([f"- not read, since Python does not parse them: {', '.join(analysis.unread)}"] if analysis.unread else []),
        "",
        "| grade | changes | places | meaning |",
        "| --- | ---: | ---: | --- |",
    ]
    for grade in Grade:
        places = {(use.file, use.line) for item in analysis.items if item.grade == grade for use in item.downstream}
        lines.append(f"| {grade.name} | {counts[grade]} | {len(places)} | {MEANING[grade]} |")
    for grade in Grade:
        lines += ["", f"## {grade.name}: {MEANING[grade]}"]
        items = [item for item in analysis.items if item.grade == grade and item.kind != "dependency"]
        lines += _grouped(items, kept, seen) if items else ["", "None."]
    lines += _dependencies(analysis, kept, seen)
    lines += _moves(analysis)
    lines += _directories(analysis)
    lines += _checklist(analysis, plugin, kept, seen)
    lines += _gone(kept, seen)
    lines += ["", _NOTES_HEADING, "", *kept.free]
    return "\n".join(lines).rstrip("\n") + "\n"


def _grouped(items: list[Item], kept: _Kept, seen: set[str]) -> list[str]:
    """Root causes lie together by upstream file."""
    lines: list[str] = []
    file = None
    for item in items:
        if item.upstream_file != file:
            file = item.upstream_file
            lines += ["", f"### {file or 'upstream'}", ""]
        lines += _entry(item, kept, seen)
    return lines


def _box(identity: str, text: str, kept: _Kept, seen: set[str]) -> list[str]:
    seen.add(identity)
    mark = "x" if identity in kept.ticked else " "
    return [f"- [{mark}] {text} <!-- {identity} -->"]


def _entry(item: Item, kept: _Kept, seen: set[str]) -> list[str]:
    sure = f" ({item.confidence:.0%} sure)" if item.moved_to else ""
    lines = _box(item.id, f"**`{item.upstream_symbol}`** {TABLE[item.kind].title}: {item.what}{sure}", kept, seen)
    if item.follows:
        lines.append(f"  - seen after `{item.follows}` moved")
    for commit in item.commits:
        number = "" if commit.pr is None or f"#{commit.pr}" in commit.subject else f" (#{commit.pr})"
        lines.append(f"  - commit {commit.hash[:9]} {commit.subject}{number}")
    if item.suggestion:
        lines.append(f"  - suggested: {item.suggestion}")
    lines += [f"  - {note}" for note in item.notes]
    lines += [f"  - `{use.file}:{use.line}` `{_code(use.text)}`" for use in item.downstream[:_PLACES]]
    rest = item.downstream[_PLACES:]
    if rest:
        lines += _folded(f"{len(rest)} more places", [f"{use.file}:{use.line} {use.text}" for use in rest])
    if item.cascade:
        title = f"{len(item.cascade)} places that break only because of this, or lie behind it"
        lines += _folded(title, [f"{use.file}:{use.line} {use.text}" for use in item.cascade])
    if item.detail:
        lines += ["", "  ```diff", *(f"  {line}" for line in item.detail.splitlines()), "  ```", ""]
    lines += [f"  {note}" for note in kept.notes.get(item.id, ())]
    return lines


def _code(text: str) -> str:
    return text.replace("`", "'")[:110]


def _folded(title: str, lines: list[str]) -> list[str]:
    inside = [f"  {_code(line)}" for line in lines]
    return [f"  - <details><summary>{title}</summary>", "", "  ```text", *inside, "  ```", "", "    </details>"]


def _dependencies(analysis: Analysis, kept: _Kept, seen: set[str]) -> list[str]:
    items = [item for item in analysis.items if item.kind == "dependency"]
    lines = ["", "## Dependencies (P2)", ""]
    for item in items:
        lines += _box(item.id, f"`{item.upstream_symbol}` {item.what} ({item.upstream_file})", kept, seen)
        lines += [f"  {note}" for note in kept.notes.get(item.id, ())]
    return lines if items else [*lines, "None changed."]


def _moves(analysis: Analysis) -> list[str]:
    rows = [(item.upstream_symbol, item.moved_to, item.confidence) for item in analysis.moves]
    named = {old for old, _, _ in rows}
    rows += [row for row in analysis.renamed_files if row[0] not in named]
    lines = ["", "## Renamed, moved, split and merged", ""]
    if not rows:
        return [*lines, "None."]
    sources, targets = Counter[str](), Counter[str]()
    for source, target in {(_module(old), _module(new)) for old, new, _ in rows}:
        sources[source] += 1
        targets[target] += 1
    lines += ["| old | new | what | sure |", "| --- | --- | --- | ---: |"]
    for old, new, sure in sorted(rows):
        what = "split" if sources[_module(old)] > 1 else "merged" if targets[_module(new)] > 1 else ""
        what = what or ("renamed" if _module(old) == _module(new) else "moved")
        lines.append(f"| `{old}` | `{new}` | {what} | {sure:.0%} |")
    return lines


def _module(path: str) -> str:
    """The part in front of the first name that looks like a class, or of the last name."""
    parts = path.split(".")
    end = next((index for index, part in enumerate(parts) if part[:1].isupper()), len(parts) - 1)
    return ".".join(parts[:end])


def _directories(analysis: Analysis) -> list[str]:
    lines = ["", "## Upstream files by directory", "", "| directory | added | changed | removed |"]
    lines.append("| --- | ---: | ---: | ---: |")
    return lines + [f"| {name} | {a} | {c} | {r} |" for name, (a, c, r) in analysis.files.items()]


def _checklist(analysis: Analysis, plugin: Plugin, kept: _Kept, seen: set[str]) -> list[str]:
    counts: dict[str, Counter[str]] = {}
    for item in analysis.items:
        for file in {use.file for use in item.downstream}:
            counts.setdefault(file, Counter())[item.grade.name] += 1
    lines = ["", "## Checklist by area"]
    left = set(counts)
    for area, patterns in plugin.areas.items():
        files = sorted(file for file in left if any(_matches(file, pattern) for pattern in patterns))
        left -= set(files)
        lines += _area(area, files, counts, kept, seen)
    return lines + _area("other", sorted(left), counts, kept, seen)


def _area(area: str, files: list[str], counts: dict[str, Counter[str]], kept: _Kept, seen: set[str]) -> list[str]:
    lines = ["", f"### {area}", ""]
    for file in files:
        found = ", ".join(f"{count} {grade}" for grade, count in sorted(counts[file].items()))
        lines += _box(f"file:{file.replace(' ', '_')}", f"`{file}`: {found}", kept, seen)
        lines += [f"  {note}" for note in kept.notes.get(f"file:{file.replace(' ', '_')}", ())]
    return lines if files else [*lines, "Nothing found here."]


def _matches(file: str, pattern: str) -> bool:
    """`**/` also stands for no folder at all."""
    return fnmatch.fnmatch(file, pattern) or (pattern.startswith("**/") and fnmatch.fnmatch(file, pattern[3:]))


def _gone(kept: _Kept, seen: set[str]) -> list[str]:
    """What was ticked or noted and is not found any more: most likely done."""
    known = [identity for identity in kept.heads if identity not in seen]
    known = [identity for identity in known if identity in kept.ticked or identity in kept.notes]
    if not known:
        return []
    lines = ["", "## No longer found", ""]
    for identity in known:
        lines += [kept.heads[identity], *(f"  {note}" for note in kept.notes.get(identity, ()))]
    return lines
