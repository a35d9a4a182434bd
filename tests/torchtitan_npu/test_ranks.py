"""Several processes as a user starts them: rendezvous of two agents, runs that repeat, a rank that dies."""

import json
import os
import signal
import socket
from pathlib import Path

from tests.torchtitan_npu.runs import LLAMA, SMALL, command, kill_all, oldest, processes, start

TRAIN = ("train", *LLAMA, *SMALL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def test_two_agents_meet_and_train_as_one_of_two_processes_to_the_last_digit(data: Path, tmp_path: Path) -> None:
    """Also the proof that a run repeats in other processes: both runs are the same two ranks."""
    steps = ("--training.steps", "3")
    where = ("--nnodes", "2", "--master-addr", "localhost", "--master-port", str(free_port()), *steps)
    # Two nodes have devices of their own; on this one machine each agent sees one.
    agents = [
        start(*TRAIN, "--data", str(data), "--dump_folder", f"node{rank}", *where, "--node-rank", str(rank),
              cwd=tmp_path, ASCEND_RT_VISIBLE_DEVICES=str(rank))
        for rank in (0, 1)
    ]  # fmt: skip
    outputs = [agent.communicate(timeout=200)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], outputs
    one = command(*TRAIN, "--data", str(data), "--dump_folder", "one", *steps, "--nproc", "2", cwd=tmp_path)
    assert one.returncode == 0, one.stderr
    losses = [json.loads((tmp_path / name / "summary.json").read_text())["losses"] for name in ("node0", "one")]
    assert len(losses[0]) == 3 and losses[0] == losses[1]
    assert not (tmp_path / "node1" / "summary.json").exists()  # rank 0 alone sums up


def test_a_killed_rank_ends_the_run_and_is_named(data: Path, tmp_path: Path) -> None:
    flags = ("--nproc", "2", "--training.steps", "10000", "--metrics.log_freq", "1")
    run = start(*TRAIN, "--data", str(data), *flags, cwd=tmp_path)
    assert run.stdout is not None
    try:
        for line in run.stdout:
            if "step:  2" in line:
                break
        os.kill(oldest(processes(tmp_path, RANK="1")), signal.SIGKILL)  # the rank itself, not what it started
        rest, _ = run.communicate(timeout=100)
        assert run.returncode == 1
        last = rest.splitlines()[-1]
        assert last.startswith("torchtitan-npu: error: ") and "rank 1 stopped with signal 9" in last
        assert processes(tmp_path) == []
    finally:
        kill_all(tmp_path)
