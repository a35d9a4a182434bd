"""The command line of the run of JAX's own tests."""

import argparse
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

from conformance.jaxtests import passing, report, runner
from conformance.jaxtests.verdicts import Verdict

_HERE = Path(__file__).parent
TAG = "jax-v0.10.2"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m conformance.jaxtests",
        description=f"Runs JAX's own tests (a clone of the jax repository at {TAG}) on the NPU.",
        epilog="What the cases come to is kept in --output as they end, where --resume goes on. "
        "Exit code: 0, or 1 if a target is missed, a case ends its process, one fails that failures.toml has no "
        "reason for, or a listed case no longer passes.",
    )
    made.add_argument("tests", type=Path, metavar="DIR", help="the clone")
    made.add_argument("--tier", action="append", choices=sorted(tiers()), help="only this tier; repeatable")
    made.add_argument("--file", action="append", metavar="NAME", help="only this file, as lax_test; repeatable")
    made.add_argument(
        "--cases", type=int, default=10, metavar="N", help="cases of each generated family (10, JAX's own)"
    )
    made.add_argument("--jobs", type=int, default=2, metavar="N", help="files at once (2)")
    made.add_argument("--timeout", type=float, default=300, metavar="S", help="seconds that a case may take (300)")
    made.add_argument("--reverse", action="store_true", help="files in the other order: the counts must not change")
    made.add_argument("--update-passing", action="store_true", help="add what passes to the committed lists")
    made.add_argument("--resume", action="store_true", help="go on where a run with the same options ended")
    made.add_argument("--output", type=Path, default=Path("outputs/jax_conformance"), metavar="DIR", help="the report")
    return made


def tiers() -> dict[str, dict[str, Any]]:
    return tomllib.loads((_HERE / "tiers.toml").read_text(encoding="utf-8"))


def reasons(table: str) -> dict[str, dict[str, str]]:
    """The reasons in skips.toml ("skips") or failures.toml ("failures"): by file, by pattern of its cases.

    Raises ValueError for an entry without a reason.
    """
    found: dict[str, dict[str, str]] = {}
    for entry in tomllib.loads((_HERE / f"{table}.toml").read_text(encoding="utf-8")).get("case", []):
        if set(entry) != {"file", "case", "reason"} or not entry["reason"].strip():
            raise ValueError(f"{table}.toml: {entry} needs file, case and reason")
        found.setdefault(entry["file"], {})[entry["case"]] = " ".join(entry["reason"].split())
    return found


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if not (options.tests / "tests" / "lax_test.py").exists():
        print(
            f"{options.tests} holds no tests/lax_test.py: name a clone of the jax repository at the tag {TAG}\n"
            f"  git clone --depth 1 --branch {TAG} https://github.com/jax-ml/jax DIR",
            file=sys.stderr,
        )
        return 2
    table = tiers()
    files = [
        name for number, tier in table.items() if not options.tier or number in options.tier for name in tier["files"]
    ]
    if options.file:
        files = options.file
    if options.reverse:
        files = files[::-1]
    environment = {
        "JAX_PLATFORMS": "npu,cpu",
        "JAX_NUM_GENERATED_CASES": str(options.cases),
        "JAX_TRACEBACK_FILTERING": "off",
    }
    ended: list[runner.FileResult] = []
    known = reasons("failures")
    if options.file and not any(set(tier["files"]) & set(files) for tier in table.values()):
        table = {"-": {"about": "files outside the tiers", "target": 0.0, "files": files}}
    records = options.output / "records"
    if not options.resume:
        shutil.rmtree(records, ignore_errors=True)

    def say(result: runner.FileResult) -> None:
        ended.append(result)
        report.write(ended, table, options.output, known)
        print(
            f"[{len(ended)}/{len(files)}] {report.line(result.name, report.share([result]))}  {result.seconds:.0f} s",
            flush=True,
        )
        if result.problem:
            print(f"  not collected: {result.problem}", flush=True)

    results = runner.run(
        files,
        options.tests.resolve(),
        {name: list(cases) for name, cases in reasons("skips").items()},
        say,
        jobs=options.jobs,
        timeout=options.timeout,
        environment=environment,
        records=records,
        posing={name: platform for tier in tiers().values() for name, platform in tier.get("posing", {}).items()},
        progress=lambda name, done, cases: print(f"  {name}: {done} of {cases} cases", flush=True),
    )
    report.write(results, table, options.output, known)
    print("\n" + "\n".join(report.lines(results, table)))
    print(f"{options.output / 'report.md'}, {options.output / 'report.json'}")
    return _finish(results, table, options, known)


def _finish(
    results: list[runner.FileResult],
    table: dict[str, dict[str, Any]],
    options: argparse.Namespace,
    known: dict[str, dict[str, str]],
) -> int:
    bad = False
    for result in results:
        for case, verdict in result.verdicts.items():
            if verdict == Verdict.FAILED and not report.reason(known.get(result.name, {}), case):
                bad = True
                print(f"fails, and failures.toml has no reason: {result.name} {case}")
        passed = {case for case, verdict in result.verdicts.items() if verdict == Verdict.PASSED}
        # Of a generated family the same number is another case at another sampling, which JAX may skip.
        held = passed | {case for case, verdict in result.verdicts.items() if verdict == Verdict.SKIPPED}
        listed = passing.read(result.name)
        for case in sorted((listed & set(result.verdicts)) - held):
            bad = True
            print(f"listed and does not pass: {result.name} {case}")
        if options.update_passing and passed - listed:
            passing.write(result.name, listed | passed)
            print(f"{result.name}: {len(passed - listed)} cases added to the list")
        bad |= bool(result.problem) or Verdict.CRASHED in result.verdicts.values()
    if not options.file:
        for tier in table.values():
            of_tier = [result for result in results if result.name in tier["files"]]
            bad |= bool(of_tier) and report.share(of_tier).of_all < tier["target"]
    return int(bad)
