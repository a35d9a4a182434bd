"""`torchtitan-sync check`: says what an upstream range breaks, and writes nothing."""

import argparse
import json
import sys

from rich.console import Console
from rich.table import Table

from torchtitan_sync import impact, settings, upstream
from torchtitan_sync.grades import TABLE
from torchtitan_sync.model import Analysis, Grade, Item
from torchtitan_sync.report import MEANING, as_json


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="list P2 to P4 too, not only count them")


def run(args: argparse.Namespace) -> int:
    """Exit code 1 where something is P0."""
    plugin = settings.load(args.repo, args.package)
    with upstream.open_range(plugin, target=args.target, upstream=args.upstream, cache=args.cache) as changes:
        for note in changes.notes:
            print(note, file=sys.stderr)
        if changes.old.id == changes.new.id:
            print(f"already up to date: {changes.new.label}")
            return 0
        analysis = impact.analyse(changes, plugin, args.cache)
    if args.json is not None:
        text = json.dumps(as_json(analysis), indent=1, ensure_ascii=False)
        if str(args.json) == "-":
            print(text)
        else:
            args.json.write_text(text + "\n", encoding="utf-8")
    if str(args.json) != "-":
        show(analysis, everything=args.all)
    return int(any(item.grade == Grade.P0 for item in analysis.items))


def show(analysis: Analysis, *, everything: bool) -> None:
    # Where nobody looks on (a pipe, a log), lines are as long as they have to be to stay one line each.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 80)
    commits = f", {analysis.commit_count} commits" if analysis.commit_count is not None else ""
    console.print(f"{analysis.old} -> {analysis.new}{commits}", soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for heading in ("grade", "changes", "places", "what it means"):
        table.add_column(heading, justify="right" if heading in ("changes", "places") else "left")
    for grade, meaning in MEANING.items():
        items = [item for item in analysis.items if item.grade == grade]
        places = len({(use.file, use.line) for item in items for use in item.downstream})
        table.add_row(grade.name, str(len(items)), str(places), meaning)
    console.print(table)
    console.print(
        f"{analysis.references} references to upstream; {analysis.unresolved_before} did not resolve at the baseline "
        f"either; {analysis.unaffected} other upstream names went that the plugin does not use",
        style="dim",
    )
    for grade in Grade:
        items = [item for item in analysis.items if item.grade == grade]
        if items and (everything or grade <= Grade.P1):
            console.print(f"\n[bold]{grade.name}[/bold]: {MEANING[grade]}")
            for item in items:
                _show_item(console, item)


def _show_item(console: Console, item: Item) -> None:
    def line(text: str, style: str = "") -> None:
        console.print(text, style=style or None, markup=False, soft_wrap=True)

    sure = f" ({item.confidence:.0%} sure)" if item.moved_to else ""
    line(f"  {item.upstream_symbol}", "bold")
    line(f"    {TABLE[item.kind].title}: {item.what}{sure}")
    if item.follows:
        line(f"    seen after {item.follows} moved", "dim")
    for commit in item.commits[:2]:
        line(f"    {commit.hash[:9]} {commit.subject}", "dim")
    for use in item.downstream[:8]:
        line(f"    {use.file}:{use.line}: {use.text[:90]}")
    if len(item.downstream) > 8:
        line(f"    and {len(item.downstream) - 8} more places")
