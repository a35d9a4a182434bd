"""A run that is stopped: every process ends, the exit code is the signal's, no traceback covers what was printed."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.torchtitan_npu.runs import LLAMA, SMALL, kill_all, processes, start
from torchtitan_npu import launch

RANKS = 2


@pytest.mark.parametrize("stop", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)], ids=str)
def test_a_stopped_run_leaves_nothing_behind(data: Path, tmp_path: Path, stop: signal.Signals) -> None:
    flags = ("--training.steps", "10000", "--metrics.log_freq", "1", "--dump_folder", str(tmp_path / "run"))
    arguments = ["train", "--data", str(data), "--nproc", str(RANKS), *LLAMA, *SMALL, *flags]
    run = start(*arguments, cwd=tmp_path)
    assert run.stdout is not None
    try:
        for line in run.stdout:
            if "step:  2" in line:
                break
        assert len(processes(tmp_path)) > RANKS  # the ranks and their launcher are found
        # Ctrl-C reaches every process of the terminal, `kill` only the one that is named.
        os.killpg(run.pid, stop) if stop == signal.SIGINT else run.send_signal(stop)
        rest = run.stdout.read()
        assert run.wait(timeout=60) == 128 + stop
        assert f"torchtitan-npu: stopped by {stop.name}" in rest
        assert "Traceback" not in rest
        assert processes(tmp_path) == []
    finally:
        kill_all(tmp_path)


def test_every_rank_that_failed_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    failures = {1: SimpleNamespace(exitcode=-signal.SIGKILL), 0: SimpleNamespace(exitcode=1)}
    assert launch._explain(failures.items()) == 1
    assert "rank 0 stopped with exit code 1, rank 1 stopped with signal 9" in capsys.readouterr().err
