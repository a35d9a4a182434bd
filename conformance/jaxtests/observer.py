"""A pytest plugin: leaves out what is done or skipped, and writes what every case comes to as it comes.

The file of records is what survives a process that JAX or a backend ends; a case that was begun and has no outcome is
the one that ended it.
"""

import ctypes
import importlib.util
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

RECORDS, TESTS, LEAVE = "JAX_CONFORMANCE_RECORDS", "JAX_CONFORMANCE_TESTS", "JAX_CONFORMANCE_LEAVE"
POSING = "JAX_CONFORMANCE_POSING"
_LONGEST = 4000
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def pytest_configure(config: pytest.Config) -> None:
    """Some test files import a module that the package's wheel lacks, or skip all platforms that they do not know.

    A runner that is killed has no chance to end its processes: they ask to end with it.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    name = "hypothesis_test_util"
    root = Path(os.environ[TESTS])
    for path in (root / "jax" / "_src" / f"{name}.py", root / f"{name}.py"):
        full = f"jax._src.{name}"
        if path.exists() and importlib.util.find_spec("jax") and full not in sys.modules:
            spec = importlib.util.spec_from_file_location(full, path)
            assert spec and spec.loader
            module = importlib.util.module_from_spec(spec)
            sys.modules[full] = module
            spec.loader.exec_module(module)
    if platform := os.environ.get(POSING):
        import jax
        from jax._src import test_util  # noqa: F401 - defines the setting

        jax.config.update("jax_test_dut", platform)


def case_of(nodeid: str) -> str:
    """`tests/lax_test.py::LaxTest::testAdd0` -> `LaxTest.testAdd0`."""
    return ".".join(nodeid.split("::")[1:])


def _write(record: dict[str, Any]) -> None:
    with open(os.environ[RECORDS], "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    leave = set(json.loads(Path(os.environ[LEAVE]).read_text(encoding="utf-8")))
    _write({"collected": [case_of(item.nodeid) for item in items]})
    left = [item for item in items if case_of(item.nodeid) in leave]
    items[:] = [item for item in items if case_of(item.nodeid) not in leave]
    config.hook.pytest_deselected(items=left)


def pytest_runtest_logstart(nodeid: str) -> None:
    _write({"begun": case_of(nodeid)})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # Set-up and tear-down count where they fail or skip; a case that passes says so in its call.
    if report.when == "call" or report.outcome != "passed":
        text = report.longreprtext if report.outcome == "failed" else ""
        _write(
            {
                "case": case_of(report.nodeid),
                "outcome": report.outcome,
                "seconds": round(report.duration, 3),
                "text": text[-_LONGEST:],
            }
        )
