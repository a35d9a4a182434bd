"""Runs JAX's test files, several at once, each in processes of its own that may end at any case."""

import fnmatch
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from conformance.jaxtests import observer
from conformance.jaxtests.verdicts import Verdict, of

# A case that ends its process is not run again; after so many of them in a file the rest is given up.
_MOST_CRASHES = 40


@dataclass
class FileResult:
    """One test file: the verdict of every case, and the text of those that did not pass."""

    name: str
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    problem: str = ""


def run(
    files: Iterable[str],
    tests: Path,
    skips: dict[str, list[str]],
    said: Callable[[FileResult], None],
    *,
    jobs: int,
    timeout: float,
    environment: dict[str, str],
) -> list[FileResult]:
    """Runs `files` (names without .py) of the clone `tests`; `skips` has patterns of cases by file."""

    def one(name: str) -> FileResult:
        result = _run_file(name, tests, skips.get(name, []), timeout, environment)
        said(result)
        return result

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, files))


def _run_file(name: str, tests: Path, patterns: list[str], timeout: float, environment: dict[str, str]) -> FileResult:
    result, begin = FileResult(name), time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        records, leave = Path(scratch) / "records", Path(scratch) / "leave"
        collected: list[str] | None = None
        for _ in range(_MOST_CRASHES):
            records.write_text("")
            left_out = [case for case in collected or [] if any(fnmatch.fnmatch(case, p) for p in patterns)]
            result.verdicts |= dict.fromkeys(left_out, Verdict.LEFT_OUT)
            leave.write_text(json.dumps(sorted(result.verdicts)))
            first = collected is None and bool(patterns)  # to learn which cases the patterns mean
            code, output = _pytest(name, tests, records, leave, timeout, environment, collect_only=first)
            lines = [json.loads(line) for line in records.read_text(encoding="utf-8").splitlines()]
            collected = next((line["collected"] for line in lines if "collected" in line), collected)
            if not collected:  # an import that fails, or a process that ends in it
                result.problem = output[-2000:]
                break
            if first:
                continue
            begun = _read(lines, result)
            if begun is None:
                break
            result.verdicts[begun] = Verdict.CRASHED
            result.texts[begun] = f"the process ended with exit code {code} in this case\n{output[-2000:]}"
        missing = set(collected or []) - set(result.verdicts)
        result.verdicts |= dict.fromkeys(missing, Verdict.CRASHED)
        result.texts |= dict.fromkeys(missing, "not run: the file's process ended too often, or before its cases")
    result.seconds = time.monotonic() - begin
    return result


def _read(lines: list[dict], result: FileResult) -> str | None:
    """Takes the outcomes; the case that was begun and has none, or None."""
    begun = None
    for line in lines:
        if "begun" in line:
            begun = line["begun"]
        elif "case" in line:
            case, verdict = line["case"], of(line["outcome"], line["text"])
            # A failing tear-down does not make a case that failed better.
            if result.verdicts.get(case) not in (Verdict.FAILED, Verdict.REFUSED):
                result.verdicts[case] = verdict
                if line["text"]:
                    result.texts[case] = line["text"]
            begun = None if begun == case else begun
    return begun


def _pytest(
    name: str,
    tests: Path,
    records: Path,
    leave: Path,
    timeout: float,
    environment: dict[str, str],
    *,
    collect_only: bool,
) -> tuple[int, str]:
    root = Path(__file__).resolve().parents[2]
    variables = {
        **os.environ,
        **environment,
        observer.RECORDS: str(records),
        observer.TESTS: str(tests),
        observer.LEAVE: str(leave),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")])),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "conformance.jaxtests.observer", "-p", "no:cacheprovider"]
    command += ["-p", "no:xdist", "--tb=short", f"--timeout={timeout:g}", "--timeout-method=thread"]
    command += ["--collect-only"] if collect_only else []
    done = subprocess.run(
        [*command, f"{name}.py"], cwd=tests / "tests", env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace",
    )  # fmt: skip
    return done.returncode, done.stdout
