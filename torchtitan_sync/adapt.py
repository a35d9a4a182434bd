"""`torchtitan-sync adapt`: apply what is mechanical, as one commit or a patch, and list what needs a person."""

import argparse
import ast
import dataclasses
import difflib
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from torchtitan_sync import console, edits, settings, state
from torchtitan_sync.edits import Edit
from torchtitan_sync.impact import analyse
from torchtitan_sync.model import Analysis, Grade, Item, Plugin, Range, SyncError, Use
from torchtitan_sync.objects import git
from torchtitan_sync.upstream import open_range

_PASSES = 6
"""A move can show the next one: analyse again, until nothing is left to do. More than this is a circle."""
_SURE = 0.8
"""Confidence of a move below which a person decides."""
_POINTS = 3
"""Moves that the main points name; the report has all of them."""
_READ = frozenset({".py", ".pyi", ".toml", ".md", ".rst", ".sh", ".yaml", ".yml", ".txt", ".cfg", ".ini"})
_LARGEST = 4 << 20  # bytes; a text of the plugin's that is larger is data


@dataclass
class Adaptation:
    """What `adapt` came to."""

    old: dict[str, bytes] = field(default_factory=dict)
    """Of the files that change."""
    new: dict[str, bytes] = field(default_factory=dict)
    applied: dict[str, set[str]] = field(default_factory=dict)
    """`old -> new` names, with the files where they were applied."""
    left: list[Item] = field(default_factory=list)
    """Breaks and changed behaviour that remain."""
    reasons: dict[tuple[str, int, str], str] = field(default_factory=dict)
    """By file, line and item: why an edit that could have been mechanical was not made."""
    points: str = ""
    """What the range meant for the plugin as it was."""
    dirty: set[str] = field(default_factory=set)
    """Files that would change, and were left alone for their uncommitted changes."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="print the diff and the list; change nothing")
    parser.add_argument("--patch", type=Path, metavar="FILE", help="write a patch instead of a commit")
    parser.add_argument(
        "--allow-dirty", action="store_true", help="also change files with uncommitted changes; they stay uncommitted"
    )


def run(args: argparse.Namespace) -> int:
    plugin = settings.load(args.repo, args.package)
    with open_range(plugin, target=args.target, upstream=args.upstream, cache=args.cache) as upstream:
        if upstream.old.id == upstream.new.id:
            return console.up_to_date(args.json, upstream.new.label, _summary(Adaptation()))
        adaptation = adapt(plugin, upstream, args.cache, allow_dirty=args.allow_dirty)
        progress = state.load(plugin.root, upstream.old.id, upstream.new.id)
        title = f"Follow {plugin.upstream} from {upstream.old.label} to {upstream.new.label}"
    patch = diff(adaptation)
    if args.dry_run and not console.is_output(args.json):
        sys.stdout.write(patch.decode(errors="replace"))
    elif args.patch:
        args.patch.write_bytes(patch)
    elif adaptation.new and not args.dry_run:
        _check_identity(plugin.root)
        progress.points = progress.points or adaptation.points
        state.save(plugin.root, progress)
        _commit(plugin.root, adaptation, title, _dirty(plugin.root))
    console.write_json(args.json, _summary(adaptation))
    if not console.is_output(args.json):
        _print(adaptation, f"patch: {args.patch}" if args.patch else "" if args.dry_run else "one commit")
    return 0


def adapt(plugin: Plugin, upstream: Range, cache: Path | None = None, *, allow_dirty: bool = False) -> Adaptation:
    """Adapt a copy of the plugin until nothing mechanical is left. The plugin itself is not changed."""
    result = Adaptation()
    split = _splitter(upstream, plugin.upstream)
    untouchable = set() if allow_dirty else _dirty(plugin.root)
    with tempfile.TemporaryDirectory(prefix="torchtitan-sync-") as folder:
        copy = dataclasses.replace(plugin, root=Path(folder))
        files = _copy(plugin.root, copy.root)
        for count in range(1, _PASSES + 1):
            console.say(f"analysing, pass {count}")
            analysis = analyse(upstream, copy, cache)
            result.points = result.points or main_points(analysis)
            result.reasons.clear()
            before = dict(result.new)
            for name, wanted in _edits(analysis.items).items():
                if name in untouchable:
                    result.dirty.add(name)
                elif name in files:
                    _adapt_file(copy.root, name, wanted, split, result)
            if result.new == before:
                break
        result.left = [item for item in analysis.items if item.grade <= Grade.P1]
    result.old = {name: (plugin.root / name).read_bytes() for name in result.new}
    result.new = {name: content for name, content in result.new.items() if content != result.old[name]}
    return result


def main_points(analysis: Analysis) -> str:
    """How much of the plugin a range concerns, and the first things it uses that moved."""
    grades = Counter(item.grade.name for item in analysis.items)
    points = [", ".join(f"{grades[grade]} {grade}" for grade in sorted(grades)) or "nothing the plugin uses changed"]
    moved = [f"{item.upstream_symbol} -> {item.moved_to}" for item in analysis.items if item.moved_to]
    points += moved[:_POINTS]
    if len(moved) > _POINTS:
        points.append(f"{len(moved) - _POINTS} more moved")
    return "; ".join(points)


def diff(adaptation: Adaptation) -> bytes:
    """A patch that `git apply` takes."""
    lines = []
    for name, content in sorted(adaptation.new.items()):
        before, after = (text.splitlines(keepends=True) for text in (adaptation.old[name], content))
        # splitlines also ends lines at a lone carriage return, which for git is a character of the line.
        before, after = (re.findall(rb"[^\n]*\n|[^\n]+$", b"".join(text)) for text in (before, after))
        head = f"a/{name}".encode(), f"b/{name}".encode()
        lines.append(b"diff --git %s %s\n" % head)
        for line in difflib.diff_bytes(difflib.unified_diff, before, after, *head):
            lines.append(line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n")
    return b"".join(lines)


def _edits(items: Iterable[Item]) -> dict[str, list[Edit]]:
    wanted: dict[str, list[Edit]] = {}
    for item in items:
        if item.rename and item.confidence >= _SURE:
            for use in item.downstream:
                wanted.setdefault(use.file, []).append(Edit(use, item.rename))
    return wanted


def _adapt_file(root: Path, name: str, wanted: list[Edit], split: edits.Split, result: Adaptation) -> None:
    path = root / name
    source = path.read_bytes()
    if path.suffix in (".py", ".pyi"):
        changed = edits.apply(source, wanted, split, _imported_elsewhere(root, path))
    else:
        changed = edits.apply_to_text(source, wanted)
    for edit, reason in changed.refused:
        result.reasons[name, edit.use.line, edit.rename.old] = reason
    for edit in changed.done:
        result.applied.setdefault(f"{edit.rename.old} -> {edit.rename.new}", set()).add(name)
    if changed.source != source:
        path.write_bytes(changed.source)
        result.new[name] = changed.source


def _copy(root: Path, target: Path) -> set[str]:
    """Copy the plugin's texts. Returns their names."""
    names = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").decode(errors="surrogateescape")
    copied = set()
    for name in filter(None, names.split("\0")):
        path = root / name
        if path.suffix in _READ and path.is_file() and path.stat().st_size <= _LARGEST:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes(path.read_bytes())
            copied.add(name)
    return copied


def _dirty(root: Path) -> set[str]:
    """Files that git does not have as they are, relative to `root`."""
    answers = [
        git(root, "diff", "-z", "--name-only", "--no-renames", "--relative", *options)
        for options in ((), ("--cached",))
    ]
    answers.append(git(root, "ls-files", "-z", "--others", "--exclude-standard"))
    return {name for answer in answers for name in answer.decode(errors="surrogateescape").split("\0") if name}


def _splitter(upstream: Range, package: str) -> edits.Split:
    modules = set()
    for path in upstream.new.files():
        if path.endswith(".py") and path.startswith(f"{package}/"):
            parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
            modules |= {".".join(parts[:n]) for n in range(1, len(parts) + 1)}

    def split(dotted: str) -> tuple[str, str]:
        module = dotted
        while module and module not in modules:
            module = module.rpartition(".")[0]
        return module, dotted[len(module) + 1 :] if module else dotted

    return split


def _imported_elsewhere(root: Path, path: Path) -> frozenset[str]:
    """Names that other files of the plugin import from a module that has this file's name."""
    module = path.parent.name if path.stem == "__init__" else path.stem
    return frozenset(
        alias.name
        for other in root.rglob("*.py")
        if other != path and module.encode() in (content := other.read_bytes())
        for node in _imports(content)
        if (node.module or module).rpartition(".")[2] == module
        for alias in node.names
    )


def _imports(source: bytes) -> Iterator[ast.ImportFrom]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield node


def _check_identity(root: Path) -> None:
    """Before anything is written: git would refuse the commit when the files are changed already."""
    for who in ("AUTHOR", "COMMITTER"):
        try:
            git(root, "var", f"GIT_{who}_IDENT")
        except SyncError:
            raise SyncError(
                "git does not know whose commit it would be, nothing was changed: set git config user.name and"
                " user.email, or take a patch with --patch FILE"
            ) from None


def _commit(root: Path, adaptation: Adaptation, title: str, dirty: set[str]) -> None:
    for name, content in adaptation.new.items():
        (root / name).write_bytes(content)
    names = sorted(adaptation.new.keys() - dirty)
    if not names:
        return
    message = "\n".join([title, "", *sorted(adaptation.applied)])
    try:
        git(root, "commit", "--quiet", "--only", "--file=-", "--", *names, stdin=message.encode())
    except SyncError as error:
        raise SyncError(f"the plugin's files are adapted but not committed: {error}") from None


def _summary(adaptation: Adaptation) -> dict[str, object]:
    return {
        "files": sorted(adaptation.new),
        "applied": {names: sorted(files) for names, files in sorted(adaptation.applied.items())},
        "left_alone": sorted(adaptation.dirty),
        "for_a_person": [
            {
                "grade": item.grade.name,
                "upstream_symbol": item.upstream_symbol,
                "what": item.what,
                "suggestion": item.suggestion,
                "downstream": [
                    {"file": use.file, "line": use.line, "text": use.text, "why": _why(adaptation, item, use)}
                    for use in item.downstream
                ],
            }
            for item in adaptation.left
        ],
    }


def _why(adaptation: Adaptation, item: Item, use: Use) -> str:
    old = item.rename.old if item.rename else item.upstream_symbol
    if use.file in adaptation.dirty:
        return "the file has uncommitted changes"
    if reason := adaptation.reasons.get((use.file, use.line, old)):
        return reason
    if item.rename and item.confidence < _SURE:
        return f"only {item.confidence:.0%} sure that it is {item.rename.new} now"
    return ""


def _print(adaptation: Adaptation, outcome: str) -> None:
    for names, files in sorted(adaptation.applied.items()):
        print(f"{names}  ({len(files)} file{'s' if len(files) > 1 else ''})")
    count = len(adaptation.new)
    print(f"{count} file{'s' if count != 1 else ''} adapted" + (f", {outcome}" if outcome and count else ""))
    for name in sorted(adaptation.dirty):
        print(f"left alone for its uncommitted changes: {name} (--allow-dirty)")
    if adaptation.left:
        print(f"\n{len(adaptation.left)} for a person:")
    for item in adaptation.left:
        print(f"{item.grade.name} {item.upstream_symbol}: {item.what.splitlines()[0] if item.what else item.kind}")
        for use in item.downstream:
            why = _why(adaptation, item, use)
            print(f"   {use.file}:{use.line}: {use.text}" + (f"\n      {why}" if why else ""))
        if item.suggestion:
            print(f"   {item.suggestion.splitlines()[0]}")
    print(f"\nNext: torchtitan-sync verify. {state.REMINDER}")
