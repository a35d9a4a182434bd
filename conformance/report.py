"""Results as a table per operator and a summary: report.json for programs, report.md for people."""

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from conformance.verdicts import BEST_FIRST, Verdict, worst

DTYPES = ["float32", "bfloat16", "int64", "bool"]
TARGET = 0.6


class Operator(NamedTuple):
    """One OpInfo over its dtypes."""

    name: str
    verdict: Verdict | None  # the worst of its dtypes; None where the CPU refuses every sample
    registered: bool  # torch_npu registers a kernel for something that it computes
    dtypes: dict[str, Verdict | None]
    cases: list[dict[str, Any]]


def operators(results: list[dict[str, Any]]) -> list[Operator]:
    by_name: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        by_name.setdefault(result["op"], []).append(result)
    return [_operator(name, cases) for name, cases in sorted(by_name.items())]


def _operator(name: str, cases: list[dict[str, Any]]) -> Operator:
    dtypes = {case["dtype"]: case["verdict"] and Verdict(case["verdict"]) for case in cases}
    known = {verdict for verdict in dtypes.values() if verdict}
    registered = any(any(case["calls"].values()) for case in cases)
    return Operator(name, worst(known) if known else None, registered, dtypes, cases)


def summary(table: list[Operator]) -> dict[str, Any]:
    """The counts that the target is about, over the operators for which torch_npu registers a kernel."""
    counted = [op for op in table if op.registered and op.verdict]
    passing = [op for op in counted if op.verdict is Verdict.PASSES]
    # Of dtypes that torch_npu or the operator refuses, no sample can pass; the others all do.
    taken = [
        op for op in counted if {v for v in op.dtypes.values() if v and v is not Verdict.REFUSED} == {Verdict.PASSES}
    ]
    return {
        "operators": len(table),
        "registered": len(counted),
        "passes": len(passing),
        "share": len(passing) / len(counted) if counted else 0.0,
        "passes_in_dtypes_taken": len(taken),
        "share_in_dtypes_taken": len(taken) / len(counted) if counted else 0.0,
        "target": TARGET,
        "registered_by_verdict": _count(op.verdict for op in counted),
        "all_by_verdict": _count(op.verdict for op in table if op.verdict),
        "cases_by_verdict": _count(v for op in table for v in op.dtypes.values() if v),
        "samples": sum(sum(case["samples"].values()) for op in table for case in op.cases),
    }


def _count(verdicts: Any) -> dict[str, int]:
    counts = Counter(verdicts)
    return {str(verdict): counts[verdict] for verdict in BEST_FIRST}


def write(results: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """report.json and report.md in the folder; the summary."""
    table = operators(results)
    figures = summary(table)
    folder.mkdir(parents=True, exist_ok=True)
    listed = [
        {"name": op.name, "verdict": op.verdict, "registered": op.registered, "dtypes": op.dtypes, "cases": op.cases}
        for op in table
    ]
    (folder / "report.json").write_text(json.dumps({"summary": figures, "operators": listed}, indent=1))
    (folder / "report.md").write_text(_markdown(table, figures))
    return figures


def summary_lines(figures: dict[str, Any]) -> list[str]:
    lines = [f"{'':16} {'registered':>10} {'all':>6} {'(op, dtype)':>12}"]
    for verdict in BEST_FIRST:
        counts = [figures[key][verdict] for key in ("registered_by_verdict", "all_by_verdict", "cases_by_verdict")]
        lines.append(f"{verdict:16} {counts[0]:10} {counts[1]:6} {counts[2]:12}")
    registered, passes = figures["registered"], figures["passes"]
    share, taken, target = (figures[key] for key in ("share", "share_in_dtypes_taken", "target"))
    lines += [
        "",
        f"torch_npu registers a kernel for {registered} operators. Of these, {passes} pass on",
        f"NPU kernels in every dtype: {share:.1%} (target {target:.0%}); in all they take: {taken:.1%}.",
    ]
    return lines


def _markdown(table: list[Operator], figures: dict[str, Any]) -> str:
    lines = ["# Operator conformance", "", "```", *summary_lines(figures), "```", ""]
    lines += [
        "| operator | registered | " + " | ".join(DTYPES) + " | first failure |",
        "|---" * (len(DTYPES) + 3) + "|",
    ]
    for op in table:
        cells = [str(op.dtypes.get(dtype) or "") for dtype in DTYPES]
        registered = "yes" if op.registered else ""
        lines.append(f"| `{op.name}` | {registered} | " + " | ".join(cells) + f" | {_first_failure(op)} |")
    return "\n".join(lines) + "\n"


def _first_failure(op: Operator) -> str:
    for verdict in reversed(BEST_FIRST):
        for case in op.cases:
            for failure in case["failures"]:
                if failure["verdict"] == verdict:
                    return f"{case['dtype']} {failure['stage']}: " + short(failure["message"]).replace("|", "\\|")
    return ""


def short(message: str, length: int = 160) -> str:
    """The part of an error that says what happened, on one line."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    text = lines[0] if lines else ""
    if len(lines) > 1 and "NPU function error" in text:  # torch_npu's frame; what the operator said comes last
        text = text.split("NPU function error: ")[-1] + ": " + lines[-1]
    return text if len(text) <= length else text[: length - 3] + "..."
