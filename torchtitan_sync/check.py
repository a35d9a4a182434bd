"""`torchtitan-sync check`: says what an upstream range breaks, and writes nothing."""

import argparse
import textwrap

from rich.console import Console
from rich.table import Table

from torchtitan_sync import console, impact, settings, upstream
from torchtitan_sync.grades import TABLE
from torchtitan_sync.model import Analysis, Grade, Item, Use
from torchtitan_sync.report import MEANING, as_json

_WIDTH = 80
_PLACES = 8
"""Places listed at an item."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="list P2 to P4 too, not only count them")


def run(args: argparse.Namespace) -> int:
    """Exit code 1 where something is P0."""
    plugin = settings.load(args.repo, args.package)
    with upstream.open_range(plugin, target=args.target, upstream=args.upstream, cache=args.cache) as changes:
        for note in changes.notes:
            console.say(note)
        if changes.old.id == changes.new.id:
            return console.up_to_date(args.json, changes.new.label, [])
        analysis = impact.analyse(changes, plugin, args.cache, console.say)
    console.write_json(args.json, as_json(analysis))
    if not console.is_output(args.json):
        show(analysis, everything=args.all)
    return int(any(item.grade == Grade.P0 for item in analysis.items))


def show(analysis: Analysis, *, everything: bool) -> None:
    count = analysis.commit_count
    commits = "" if count is None else f", {count} commit{'s' if count != 1 else ''}"
    commits += ": the target is older than the baseline" if count == 0 else ""
    print(f"{analysis.old} -> {analysis.new}{commits}")
    table = Table(box=None, pad_edge=False)
    for heading in ("grade", "changes", "places", "what it means"):
        table.add_column(heading, justify="right" if heading in ("changes", "places") else "left")
    for grade, meaning in MEANING.items():
        items = [item for item in analysis.items if item.grade == grade]
        places = len({(use.file, use.line) for item in items for use in item.downstream})
        table.add_row(grade.name, str(len(items)), str(places), meaning)
    Console(highlight=False, width=_WIDTH).print(table)
    _say(
        f"{analysis.references} references to upstream; {len(analysis.unresolved_before)} more did not resolve at the "
        f"baseline either{'' if everything else ' (--all lists them)'}; {analysis.unaffected} upstream names went that "
        "are not used"
    )
    if analysis.unread:
        _say(f"not read, since Python does not parse them: {', '.join(analysis.unread)}")
    for grade in Grade:
        items = [item for item in analysis.items if item.grade == grade]
        if items and (everything or grade <= Grade.P1):
            print(f"\n{grade.name}: {MEANING[grade]}")
            for item in items:
                _show_item(item)
    if everything and analysis.unresolved_before:
        print("\nNot resolved at the baseline either")
        for use in analysis.unresolved_before:
            _place(use)


def _show_item(item: Item) -> None:
    sure = f" ({item.confidence:.0%} sure)" if item.moved_to else ""
    _say(item.upstream_symbol, 2)
    _say(f"{TABLE[item.kind].title}: {item.what}{sure}", 4)
    if item.follows:
        _say(f"seen after {item.follows} moved", 4)
    for commit in item.commits[:2]:
        _say(f"{commit.hash[:9]} {commit.subject}", 4)
    for use in item.downstream[:_PLACES]:
        _place(use)
    more = len(item.downstream) - _PLACES
    if more > 0:
        _say(f"and {more} more place{'s' if more > 1 else ''}", 4)


def _place(use: Use) -> None:
    where = f"    {use.file}:{use.line}:"
    line = f"{where} {use.text}"
    if len(line) <= _WIDTH:
        print(line)
    else:
        print(where)
        print("      " + textwrap.shorten(use.text, _WIDTH - 6, placeholder=" ..."))


def _say(text: str, indent: int = 0) -> None:
    """In lines of 80 columns; a name that is longer stays whole."""
    print(
        textwrap.fill(
            text,
            _WIDTH,
            initial_indent=" " * indent,
            subsequent_indent=" " * (indent + 2),
            break_long_words=False,
            break_on_hyphens=False,
        )
    )
