"""Counts and shares of a run, as lines, Markdown and JSON."""

import fnmatch
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from conformance.jaxtests.runner import FileResult
from conformance.jaxtests.verdicts import Verdict


class Share(NamedTuple):
    """Passed cases over those that JAX does not skip: all of them, and without those refused for a dtype."""

    counts: Counter[Verdict]

    @property
    def run(self) -> int:
        return self.counts.total() - self.counts[Verdict.SKIPPED]

    @property
    def of_all(self) -> float:
        return self.counts[Verdict.PASSED] / self.run if self.run else 0.0

    @property
    def of_possible(self) -> float:
        possible = self.run - self.counts[Verdict.REFUSED]
        return self.counts[Verdict.PASSED] / possible if possible else 0.0


def share(results: Sequence[FileResult]) -> Share:
    return Share(Counter(verdict for result in results for verdict in result.verdicts.values()))


_HEAD = f"{'file':<30}{'cases':>6}{'pass':>6}{'fail':>6}{'refuse':>7}{'crash':>6}{'skip':>6}{'share':>8}"


def line(name: str, found: Share) -> str:
    c = found.counts
    crashed, skipped = c[Verdict.CRASHED] + c[Verdict.LEFT_OUT], c[Verdict.SKIPPED]
    numbers = (
        f"{c.total():>6}{c[Verdict.PASSED]:>6}{c[Verdict.FAILED]:>6}{c[Verdict.REFUSED]:>7}{crashed:>6}{skipped:>6}"
    )
    return f"{name:<30}{numbers}{found.of_all:>8.1%}"


def lines(results: Sequence[FileResult], tiers: dict[str, dict[str, Any]]) -> list[str]:
    """A table at 80 columns, a sum for each tier."""
    made = [_HEAD]
    by_name = {result.name: result for result in results}
    for number, tier in tiers.items():
        there = [by_name[name] for name in tier["files"] if name in by_name]
        if not there:
            continue
        made += [line(result.name, share([result])) for result in there]
        total = share(there)
        made += [
            line(f"tier {number}", total),
            f"  {tier['about']}: {total.of_all:.1%} of what JAX does not skip, and",
            f"  {total.of_possible:.1%} without the cases that need a dtype the SoC lacks; target {tier['target']:.0%}",
            "",
        ]
    return made


def reason(known: Mapping[str, str], case: str) -> str:
    """Why a case of a file fails, from the reasons by pattern; empty when no pattern is for it."""
    return next((why for pattern, why in known.items() if fnmatch.fnmatchcase(case, pattern)), "")


def write(
    results: Sequence[FileResult],
    tiers: dict[str, dict[str, Any]],
    folder: Path,
    known: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> None:
    """report.md and report.json in `folder`. `known`: by file, the reasons of failures by pattern of the case."""
    folder.mkdir(parents=True, exist_ok=True)
    text = ["# JAX's own tests on the NPU", "", "```", *lines(results, tiers), "```", ""]
    for result in results:
        bad = {case: v for case, v in result.verdicts.items() if v in (Verdict.FAILED, Verdict.CRASHED)}
        if bad:
            why = known.get(result.name, {})
            text += [f"## {result.name}", "", "| case | | why, or the error |", "| --- | --- | --- |"]
            text += [
                f"| {case} | {v} | {reason(why, case) or _last_line(result.texts.get(case, ''))} |"
                for case, v in sorted(bad.items())
            ]
            text.append("")
    (folder / "report.md").write_text("\n".join(text), encoding="utf-8")
    data = [
        {"file": r.name, "seconds": round(r.seconds, 1), "problem": r.problem, "verdicts": r.verdicts, "texts": r.texts}
        for r in results
    ]
    (folder / "report.json").write_text(json.dumps(data, indent=1), encoding="utf-8")


def _last_line(text: str) -> str:
    found = [line for line in text.splitlines() if line.startswith("E ")] or text.splitlines() or [""]
    return found[0][:150].replace("|", "\\|")
