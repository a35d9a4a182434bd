"""Runs functions of hccl_scenarios in N processes that are the ranks of one job.

A launcher process imports torch once and forks the ranks of every job, which is much faster than an import for each
rank. The NPU is used only after the fork, as it must be.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path


@dataclass
class Rank:
    code: int  # exit code; negative: the signal that ended it
    output: str


class Job:
    def __init__(self, launcher: "Launcher", folder: Path, ranks: int):
        self.launcher, self.folder, self.ranks = launcher, folder, ranks

    def wait(self) -> list[Rank]:
        """The ranks' exit codes and outputs, once all have ended. The launcher ends them at the job's timeout."""
        result = self.folder / "codes.json"
        while not result.exists():
            assert self.launcher.process.poll() is None, self.launcher.log.read_text()
            time.sleep(0.02)
        codes = json.loads(result.read_text())
        return [Rank(codes[rank], (self.folder / f"rank{rank}.txt").read_text()) for rank in range(self.ranks)]

    def check(self) -> list[Rank]:
        """The same; fails unless every rank ended well."""
        ranks = self.wait()
        bad = [f"--- rank {i}, exit code {rank.code}\n{rank.output}" for i, rank in enumerate(ranks) if rank.code]
        assert not bad, "\n".join(bad)
        return ranks


class Launcher:
    def __init__(self, folder: Path):
        self.folder, self.jobs, self.log = folder, 0, folder / "launcher.txt"
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=self.log.open("w"),
            stderr=subprocess.STDOUT,
            text=True,
        )

    def start(self, ranks: int, *names: str, env: dict[str, str] | None = None, timeout: float = 120) -> Job:
        """Starts a job whose ranks call the scenarios `names` one after the other: name(rank, ranks)."""
        self.jobs += 1
        job = Job(self, self.folder / f"job{self.jobs}", ranks)
        job.folder.mkdir()
        order = {"folder": str(job.folder), "names": names, "ranks": ranks, "env": env or {}, "timeout": timeout}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return job

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(30)


# ---- in the ranks ----------------------------------------------------------------------------------------------------
def connect(rank: int, ranks: int) -> None:
    """Joins the job's process group: collectives of NPU tensors go over HCCL, those of CPU tensors over gloo."""
    import torch
    import torch.distributed as dist

    if dist.is_initialized():
        return
    torch.npu.set_device(rank)
    dist.init_process_group(
        "cpu:gloo,npu:hccl",
        init_method=f"file://{os.environ['HCCL_TEST_FOLDER']}/store",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=60),
    )


# ---- the launcher ----------------------------------------------------------------------------------------------------
def serve() -> None:
    import hccl_scenarios

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            supervise(json.loads(line), hccl_scenarios)
            os._exit(0)


def supervise(job: dict, scenarios) -> None:
    """Forks the ranks of a job, waits for them, and writes how each ended."""
    folder = Path(job["folder"])
    os.environ |= {**job["env"], "HCCL_TEST_FOLDER": str(folder), "WORLD_SIZE": str(job["ranks"])}
    running: dict[int, int] = {}
    for rank in range(job["ranks"]):
        pid = os.fork()
        if pid == 0:
            be_rank(folder / f"rank{rank}.txt", rank, job, scenarios)
        running[pid] = rank
    codes: dict[int, int] = {}
    deadline = time.monotonic() + job["timeout"]
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            codes[running.pop(pid)] = os.waitstatus_to_exitcode(status)
        elif time.monotonic() > deadline:
            for late in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(late, signal.SIGKILL)
        else:
            time.sleep(0.01)
    (folder / "codes.part").write_text(json.dumps([codes[rank] for rank in range(job["ranks"])]))
    (folder / "codes.part").rename(folder / "codes.json")


def be_rank(output: Path, rank: int, job: dict, scenarios) -> None:
    code = 1
    try:
        file = os.open(output, os.O_CREAT | os.O_WRONLY)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.stdout.reconfigure(line_buffering=True)  # scenarios end without Python's flush, or are killed
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        for name in job["names"]:
            getattr(scenarios, name)(rank, job["ranks"])
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    serve()
