"""The command line of the conformance run."""

import argparse
import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

from conformance import passing, pool, report
from conformance.verdicts import Verdict

RESULTS = "results.jsonl"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m conformance",
        description="Runs PyTorch's operator database on the NPU and compares it with the CPU.",
        epilog="Exit code: 0, or 1 if a result is wrong or a listed case no longer passes.",
    )
    made.add_argument(
        "--op", action="append", metavar="NAME", help="only this operator, with full error texts; repeatable"
    )
    made.add_argument(
        "--dtype", action="append", metavar="D", choices=report.DTYPES, help="only this dtype; repeatable"
    )
    made.add_argument("--failing", action="store_true", help="only what does not pass in the last report")
    made.add_argument("--passing", action="store_true", help="only what passing.txt lists")
    made.add_argument("--resume", action="store_true", help="keep the results of a run that was interrupted")
    made.add_argument("--update-passing", action="store_true", help="add what passes to passing.txt")
    made.add_argument("--limit", type=int, metavar="N", help="about N samples a case, evenly spread (all)")
    made.add_argument("--jobs", type=int, default=2, metavar="N", help="worker processes (2)")
    made.add_argument("--timeout", type=float, default=60, metavar="S", help="seconds that a sample may take (60)")
    made.add_argument("--output", type=Path, default=Path("outputs/conformance"), metavar="DIR", help="for the report")
    made.add_argument("--device", default="npu", choices=["npu", "cpu"], help="cpu compares the CPU with itself")
    return made


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    cases = _cases(options)
    if not cases:
        print("Nothing to run: no case is selected.")
        return 0
    results = _run(cases, options)
    if options.op:
        _explain(results)
    if options.failing:
        results = _merge(_last_report(options.output), results)
    if not _part(options):
        figures = report.write(results, options.output)
        print(f"\n{options.output / 'report.md'}, {options.output / 'report.json'}")
    else:
        figures = report.summary(report.operators(results))
    print("\n" + "\n".join(report.summary_lines(figures)))
    return _finish(results, options)


def _part(options: argparse.Namespace) -> bool:
    """Whether only a part is run, which makes no report."""
    return bool(options.op or options.dtype or options.passing or options.limit)


def _cases(options: argparse.Namespace) -> list[tuple[str, str]]:
    cases = known_cases()
    names = {name for name, _ in cases}
    for name in options.op or []:
        if name not in names:
            near = [known for known in sorted(names) if name.lower() in known.lower()][:10]
            sys.exit(
                f"no operator is called {name!r} in the database"
                + (f"; did you mean {', '.join(near)}?" if near else "")
            )
    if options.op:
        cases = [case for case in cases if case[0] in options.op]
    if options.dtype:
        cases = [case for case in cases if case[1] in options.dtype]
    if options.passing:
        listed = passing.read()
        cases = [case for case in cases if case in listed]
    if options.failing:
        good = {Verdict.PASSES, Verdict.NO_KERNEL}
        fine = {(r["op"], r["dtype"]) for r in _last_report(options.output) if r["verdict"] in good}
        cases = [case for case in cases if case not in fine]
    return cases


def known_cases() -> list[tuple[str, str]]:
    """Every (operator, dtype) of the database. Asked of another process: this one stays free of torch."""
    program = "import json; from conformance.catalog import cases; print('CASES', json.dumps(cases()))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).resolve().parents[1],
        env={**os.environ, **pool.ENVIRONMENT},
        capture_output=True,
        text=True,
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("CASES ")]
    if not found:
        sys.exit("the operator database cannot be read:\n" + done.stderr)
    return [(name, dtype) for name, dtype in json.loads(found[0][6:])]


def _run(cases: list[tuple[str, str]], options: argparse.Namespace) -> list[dict[str, Any]]:
    options.output.mkdir(parents=True, exist_ok=True)
    file = Path(os.devnull) if _part(options) or options.failing else options.output / RESULTS
    results = [json.loads(line) for line in file.read_text().splitlines()] if options.resume and file.exists() else []
    had = {(result["op"], result["dtype"]) for result in results}
    wanted = [{"op": name, "dtype": dtype, "limit": options.limit} for name, dtype in cases if (name, dtype) not in had]
    progress = _Progress(len(wanted))
    with file.open("a" if options.resume else "w") as sink:

        def done(result: dict[str, Any]) -> None:
            results.append(result)
            sink.write(json.dumps(result) + "\n")
            sink.flush()
            progress.show(result)

        try:
            pool.run(wanted, done, device=options.device, jobs=options.jobs, timeout=options.timeout)
        except pool.StartError as error:
            sys.exit(str(error))
    print(f"{len(wanted)} cases in {time.monotonic() - progress.start:.0f} s")
    return results


class _Progress:
    """A line for what is wrong, and one every 5 seconds."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self.start = self._shown = time.monotonic()

    def show(self, result: dict[str, Any]) -> None:
        self.done += 1
        if result["verdict"] == Verdict.WRONG:
            first = next(f for f in result["failures"] if f["verdict"] == Verdict.WRONG)
            print(f"wrong: {result['op']} {result['dtype']}, {first['stage']}", flush=True)
            print(f"       {report.short(first['message'], 72)}", flush=True)
        now = time.monotonic()
        if now - self._shown > 5 or self.done == self.total:
            self._shown = now
            print(
                f"[{now - self.start:4.0f} s] {self.done} of {self.total}  {result['op']} {result['dtype']}", flush=True
            )


def _explain(results: list[dict[str, Any]]) -> None:
    for result in results:
        samples = ", ".join(f"{count} {verdict}" for verdict, count in result["samples"].items())
        print(f"\n{result['op']} {result['dtype']}: {samples or 'the CPU refuses every sample'}")
        _list("kernels", result["kernels"])
        _list("in another form", [f"{form} ({count})" for form, count in result["variants"].items()])
        _list("ATen calls", [name if has else f"{name} (no kernel)" for name, has in result["calls"].items()])
        for failure in result["failures"]:
            print(f"  {failure['verdict']}, sample {failure['sample']}, {failure['stage']}:")
            print(textwrap.indent(failure["message"], "    "))


def _list(title: str, names: list[str]) -> None:
    if names:
        print(textwrap.fill(f"{title}: {', '.join(names)}", 78, initial_indent="  ", subsequent_indent="    "))


def _last_report(folder: Path) -> list[dict[str, Any]]:
    file = folder / "report.json"
    if not file.exists():
        sys.exit(f"there is no {file} yet: run without --failing first")
    return [case for op in json.loads(file.read_text())["operators"] for case in op["cases"]]


def _merge(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    merged = {(result["op"], result["dtype"]): result for result in [*old, *new]}
    return list(merged.values())


def _finish(results: list[dict[str, Any]], options: argparse.Namespace) -> int:
    passed = {(r["op"], r["dtype"]) for r in results if r["verdict"] == Verdict.PASSES}
    ran = {(r["op"], r["dtype"]) for r in results}
    lost = sorted((passing.read() & ran) - passed) if options.device == "npu" else []
    for name, dtype in lost:
        print(f"listed in passing.txt and does not pass: {name} {dtype}")
    if options.update_passing:
        listed = passing.read()
        passing.write(listed | passed)
        print(f"passing.txt: {len(passed - listed)} added")
    wrong = any(r["verdict"] == Verdict.WRONG for r in results)
    return int(wrong or bool(lost))
