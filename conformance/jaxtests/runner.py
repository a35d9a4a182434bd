"""Runs JAX's test files, several at once, each in processes of its own that may end at any case.

What a file's cases come to is kept in a file of records as they end, so that a run of hours can be taken up again.
"""

import contextlib
import fnmatch
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from conformance.jaxtests import observer
from conformance.jaxtests.verdicts import Verdict, of

# A case that ends its process is not run again; after so many of them in a file the rest is given up.
_MOST_CRASHES = 40
_EVERY = 60.0  # seconds between two lines of progress


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
    records: Path,
    posing: Mapping[str, str] = MappingProxyType({}),
    progress: Callable[[str, int, int], None] = lambda name, done, cases: None,
) -> list[FileResult]:
    """Runs `files` (names without .py) of the clone `tests`; `skips` has patterns of cases by file.

    `records` is the folder of records. Cases that have an outcome there, from a run with the same `environment`, are
    not run again. `posing` has the platform that JAX's tests are told they are on, by file. `progress` gets a file's
    name, the cases that ended and all cases, once a minute.
    """
    records.mkdir(parents=True, exist_ok=True)

    def one(name: str) -> FileResult:
        path = records / f"{name}.jsonl"
        variables = environment | ({observer.POSING: posing[name]} if name in posing else {})
        _begin(path, variables)
        run = _FileRun(name, tests, skips.get(name, []), timeout, variables, path, progress)
        result = run.result()
        said(result)
        return result

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, files))


def _begin(path: Path, environment: dict[str, str]) -> None:
    """Keeps records that were made with the same settings, but for a last line that was cut off; else begins anew."""
    head = json.dumps({"environment": environment}) + "\n"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    kept = [line for line in lines if line.endswith("\n")] if lines[:1] == [head] else [head]
    path.write_text("".join(kept), encoding="utf-8")


def _lines(path: Path) -> list[dict[str, Any]]:
    """The records; the last one may be just being written."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line[-1] == "\n"]


@dataclass
class _FileRun:
    name: str
    tests: Path
    patterns: list[str]
    timeout: float
    environment: dict[str, str]
    records: Path
    progress: Callable[[str, int, int], None]

    def result(self) -> FileResult:
        result, begin = FileResult(self.name), time.monotonic()
        _read(_lines(self.records), result)
        collected: list[str] | None = None
        for _ in range(_MOST_CRASHES):
            left_out = [case for case in collected or [] if any(fnmatch.fnmatch(case, p) for p in self.patterns)]
            result.verdicts |= dict.fromkeys(left_out, Verdict.LEFT_OUT)
            before = len(_lines(self.records))
            first = collected is None and bool(self.patterns)  # to learn which cases the patterns mean
            code, output = self._pytest(sorted(result.verdicts), collect_only=first)
            lines = _lines(self.records)[before:]
            collected = next((line["collected"] for line in lines if "collected" in line), collected)
            if not collected:  # an import that fails, or a process that ends in it
                result.problem = output[-2000:]
                break
            if first:
                continue
            begun = _read(lines, result)
            if begun is None:
                break
            text = f"the process ended with exit code {code} in this case\n{output[-2000:]}"
            record = {"case": begun, "outcome": "crashed", "text": text}
            with self.records.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
            _read([record], result)
        missing = set(collected or []) - set(result.verdicts)
        result.verdicts |= dict.fromkeys(missing, Verdict.CRASHED)
        result.texts |= dict.fromkeys(missing, "not run: the file's process ended too often, or before its cases")
        result.seconds = time.monotonic() - begin
        return result

    def _pytest(self, leave: list[str], *, collect_only: bool) -> tuple[int, str]:
        """pytest's exit code, and what it printed."""
        root = Path(__file__).resolve().parents[2]
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "conformance.jaxtests.observer"]
        # JAX captures what the file descriptor gets, which pytest must not have taken before.
        command += ["-p", "no:cacheprovider", "-p", "no:xdist", "--capture=no"]
        command += [f"--timeout={self.timeout:g}", "--timeout-method=thread"]
        command += ["--collect-only"] if collect_only else []
        with tempfile.TemporaryDirectory() as scratch:
            left, printed = Path(scratch) / "leave", Path(scratch) / "printed"
            left.write_text(json.dumps(leave))
            variables = {
                **os.environ,
                **self.environment,
                observer.RECORDS: str(self.records.resolve()),
                observer.TESTS: str(self.tests),
                observer.LEAVE: str(left),
                "PYTHONPATH": os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")])),
            }
            with printed.open("wb") as output:
                process = subprocess.Popen(
                    [*command, f"{self.name}.py"], cwd=self.tests / "tests", env=variables, stdout=output,
                    stderr=subprocess.STDOUT,
                )  # fmt: skip
                while process.poll() is None:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(_EVERY)
                        break
                    self._say()
            return process.returncode, printed.read_text(encoding="utf-8", errors="replace")

    def _say(self) -> None:
        lines = _lines(self.records)
        cases = next((len(line["collected"]) for line in reversed(lines) if "collected" in line), 0)
        self.progress(self.name, len({line["case"] for line in lines if "case" in line}), cases)


def _read(lines: list[dict[str, Any]], result: FileResult) -> str | None:
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
