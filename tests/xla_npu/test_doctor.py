"""`xla-npu doctor`: everything in place under the emulator; what is missing is named with its cure."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from xla_npu import doctor


def run(**environment: str | None) -> tuple[int, list[dict]]:
    variables = {name: value for name, value in {**os.environ, **environment}.items() if value is not None}
    done = subprocess.run(
        [sys.executable, "-m", "xla_npu.cli", "doctor", "--json"],
        env=variables,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_all_is_well_under_the_emulator_and_small_programs_are_right() -> None:
    code, findings = run()
    assert code == 0 and {finding["state"] for finding in findings} == {"ok"}
    checks = [finding["check"] for finding in findings]
    assert checks.count("program") == 4 and "device" in checks


def test_without_cann_it_says_how_to_get_it() -> None:
    code, findings = run(LD_LIBRARY_PATH=None, ASCEND_HOME_PATH=None, PYTHONPATH=None)
    broken = [finding for finding in findings if finding["state"] == "broken"]
    assert code == 1 and [finding["check"] for finding in broken] == ["cann"]
    assert "set_env.sh" in broken[0]["fix"] and "cann-emulator run" in broken[0]["fix"]


def test_a_plugin_that_does_not_load_is_named_with_the_cause(tmp_path: Path) -> None:
    library = tmp_path / "plugin.so"
    library.write_bytes(b"not a library")
    code, findings = run(XLA_NPU_PLUGIN=str(library))
    broken = [finding for finding in findings if finding["state"] == "broken"]
    assert code == 1 and [finding["check"] for finding in broken] == ["plugin"]
    assert "invalid ELF header" in broken[0]["text"] or "file too short" in broken[0]["text"]


def test_another_version_of_jax_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(doctor.VERSIONS, "jax", "0.0.1")
    finding = next(doctor._packages())
    assert finding.state == "broken" and finding.text.endswith("made for 0.0.1") and "jax==0.0.1" in finding.fix
