"""The runner of JAX's own tests: what a case comes to, whatever it does to its process; the lists only grow."""

import contextlib
import json
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

from conformance.jaxtests import cli, passing, report, runner, verdicts
from conformance.jaxtests.verdicts import Verdict
from tests.xla_npu.programs import compile_function
from xla_npu.compiler import builder
from xla_npu.compiler.errors import Unsupported

CASES = """
    import os, time, unittest
    import pytest

    class SomeTest(unittest.TestCase):
        def test_a_passes(self): pass
        def test_b_fails(self): self.assertEqual(1, 2)
        def test_c_skips(self): raise unittest.SkipTest("JAX says so")
        def test_d_ends_the_process(self): os._exit(7)
        def test_e_comes_after(self): pass
        def test_f_lacks_a_dtype(self): raise RuntimeError("add: the NPU has no Add for type f64")
        def test_g_hangs(self): time.sleep(600)
        def test_h_is_left_out(self): os._exit(8)
        def test_i_is_last(self): pass
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "lax_test.py").write_text(textwrap.dedent(CASES))
    (tmp_path / "tests" / "broken_test.py").write_text("import no_such_module")
    return tmp_path


def test_every_case_gets_its_verdict_though_one_ends_the_process_and_one_hangs(clone: Path, tmp_path: Path) -> None:
    said: list[str] = []
    (result,) = runner.run(
        ["lax_test"], clone, {"lax_test": ["*left_out"]}, lambda r: said.append(r.name),
        jobs=1, timeout=5, environment={}, records=tmp_path / "records",
    )  # fmt: skip
    found = {case.removeprefix("SomeTest.test_"): str(verdict) for case, verdict in result.verdicts.items()}
    assert found == {
        "a_passes": "passed",
        "b_fails": "failed",
        "c_skips": "skipped",
        "d_ends_the_process": "crashed",
        "e_comes_after": "passed",
        "f_lacks_a_dtype": "refused",
        "g_hangs": "crashed",
        "h_is_left_out": "left out",
        "i_is_last": "passed",
    }
    assert said == ["lax_test"]
    assert "exit code 7" in result.texts["SomeTest.test_d_ends_the_process"]
    assert "AssertionError: 1 != 2" in result.texts["SomeTest.test_b_fails"]
    shares = report.share([result])
    assert (shares.run, shares.of_all, shares.of_possible) == (8, 3 / 8, 3 / 7)


def test_a_file_that_cannot_be_collected_is_a_problem_and_not_a_success(clone: Path, tmp_path: Path) -> None:
    (result,) = runner.run(
        ["broken_test"], clone, {}, lambda r: None, jobs=1, timeout=5, environment={}, records=tmp_path / "records"
    )
    assert "no_such_module" in result.problem and result.verdicts == {}


def test_a_run_goes_on_where_the_last_one_ended_if_its_settings_are_the_same(clone: Path, tmp_path: Path) -> None:
    def run(source: str, sampling: str) -> dict[str, str]:
        (clone / "tests" / "lax_test.py").write_text(source)
        settings = {"SAMPLING": sampling}
        (result,) = runner.run(
            ["lax_test"], clone, {}, lambda r: None, jobs=1, timeout=5, environment=settings, records=tmp_path
        )
        return {case: str(verdict) for case, verdict in result.verdicts.items()}

    passing_twice = "def test_one(): pass\ndef test_two(): pass\n"
    assert run("def test_one(): assert False\n", "10") == {"test_one": "failed"}
    with (tmp_path / "lax_test.jsonl").open("a") as file:
        file.write('{"begun": "test_two"}\n{"case": "test_tw')  # where a run that is killed may end
    assert run(passing_twice, "10") == {"test_one": "failed", "test_two": "passed"}
    assert run(passing_twice, "2") == {"test_one": "passed", "test_two": "passed"}


def test_a_killed_runner_takes_its_processes_with_it(clone: Path, tmp_path: Path) -> None:
    number = tmp_path / "number"
    (clone / "tests" / "lax_test.py").write_text(
        f"import os, pathlib, time\n"
        f"def test_long():\n    pathlib.Path({str(number)!r}).write_text(f'{{os.getpid()}} ')\n    time.sleep(600)\n"
    )
    command = [sys.executable, "-m", "conformance.jaxtests", str(clone), "--file", "lax_test", "--jobs", "1"]
    runner_process = subprocess.Popen([*command, "--output", str(tmp_path / "out")], stdout=subprocess.DEVNULL)
    try:
        _wait(lambda: number.exists() and number.read_text().endswith(" "))
    finally:
        runner_process.kill()
        runner_process.wait()
    _wait(lambda: not _lives(int(number.read_text())))


def _lives(process: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes() != b""  # a zombie's is empty
    return False


def _wait(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_exit_code_says_whether_a_listed_case_was_lost(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(passing, "FOLDER", tmp_path / "passing")
    (clone / "tests" / "lax_test.py").write_text("def test_one(): pass\ndef test_two(): pass\n")
    run = [str(clone), "--file", "lax_test", "--jobs", "1", "--output", str(tmp_path / "out")]
    assert cli.main([*run, "--update-passing"]) == 0
    assert passing.read("lax_test") == {"test_one", "test_two"}
    (clone / "tests" / "lax_test.py").write_text("def test_one(): pass\ndef test_two(): assert False\n")
    assert cli.main(run) == 1
    assert "listed and does not pass: lax_test test_two" in capsys.readouterr().out
    assert {case["file"]: case["verdicts"] for case in json.loads((tmp_path / "out" / "report.json").read_text())} == {
        "lax_test": {"test_one": "passed", "test_two": "failed"}
    }


def test_a_list_keeps_names_with_spaces_and_dots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passing, "FOLDER", tmp_path)
    names = {"SomeTest.test_scan_[2, 3]_axis=-1", "SomeTest.test_einsum_...ab->...a"}
    passing.write("lax_test", names)
    assert passing.read("lax_test") == names


def test_a_folder_that_is_no_clone_is_refused_with_the_command_that_makes_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([str(tmp_path)]) == 2
    assert f"git clone --depth 1 --branch {cli.TAG}" in capsys.readouterr().err


def test_only_a_dtype_that_is_lacking_makes_a_failure_a_refusal() -> None:
    assert verdicts.of("failed", "element type f64 does not exist on the NPU") == Verdict.REFUSED
    assert verdicts.of("failed", str(builder.lacks("Add", "f64"))) == Verdict.REFUSED
    with jax.enable_x64(True), pytest.raises(Unsupported) as cast:
        compile_function(lambda x: x.astype(np.float64), np.ones(3, np.float32))
    assert verdicts.of("failed", str(cast.value)) == Verdict.REFUSED
    assert verdicts.of("failed", "AssertionError: Not equal to tolerance") == Verdict.FAILED
    assert verdicts.of("failed", "this operation has no lowering to CANN operators") == Verdict.FAILED


def test_every_file_is_in_one_tier_and_every_skip_and_failure_has_a_reason() -> None:
    files = [name for tier in cli.tiers().values() for name in tier["files"]]
    assert len(files) == len(set(files)) > 40
    known = cli.reasons("failures")
    assert set(cli.reasons("skips")) | set(known) <= set(files)
    both = [(name, case) for name, why in known.items() for case in passing.read(name) if report.reason(why, case)]
    assert not both, "these are listed as passing, and have a reason to fail"


def test_a_failure_needs_a_reason_which_the_report_gives(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "_HERE", tmp_path)
    (tmp_path / "tiers.toml").write_text('[1]\nabout = "one"\ntarget = 0\nfiles = ["lax_test"]\n')
    (tmp_path / "skips.toml").write_text("")
    (clone / "tests" / "lax_test.py").write_text("def test_one(): assert False\n")
    run = [str(clone), "--file", "lax_test", "--jobs", "1", "--output", str(tmp_path / "out")]
    (tmp_path / "failures.toml").write_text("")
    assert cli.main(run) == 1
    assert "failures.toml has no reason: lax_test test_one" in capsys.readouterr().out
    (tmp_path / "failures.toml").write_text('[[case]]\nfile = "lax_test"\ncase = "test_o*"\nreason = "noise"\n')
    assert cli.main(run) == 0
    assert "| test_one | failed | noise |" in (tmp_path / "out" / "report.md").read_text()


def test_the_lists_only_grow_and_name_cases_of_known_files() -> None:
    files = {name for tier in cli.tiers().values() for name in tier["files"]}
    assert set(passing.files()) <= files
    listed = {(name, case) for name in passing.files() for case in passing.read(name)}
    assert all(case.split(".", 1)[-1].startswith("test") for _, case in listed)
    before = passing.ever_committed()
    if before is None:
        pytest.skip("no git history here")
    lost = sorted(before - listed)
    assert not lost, f"no longer listed: {lost[:5]}; what once passed may not be given up"
