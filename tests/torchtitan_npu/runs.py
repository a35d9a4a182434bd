"""Short training runs for tests: in this process where one rank is enough, else as the command line starts them."""

import contextlib
import dataclasses
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tests.interrupts import interruptible
from torchtitan_npu import entry
from torchtitan_npu.metrics import History

SMALL = ("--training.seq_len", "64", "--training.local_batch_size", "2", "--debug.seed", "42")
LLAMA = ("--module", "llama3", "--config", "llama3_debugmodel_varlen_attn")
LLAMA_FLEX = ("--module", "llama3", "--config", "llama3_debugmodel")
QWEN = ("--module", "qwen3", "--config", "qwen3_debugmodel")
FP32 = ("--training.mixed_precision_param", "float32")


@contextlib.contextmanager
def trainer(data: Path, *flags: str) -> Iterator[Any]:
    """A built trainer of one rank, closed at the end."""
    gc.collect()  # an earlier trainer is held by cycles, and with it the device's memory
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="0")
    entry._prepare_process()
    built = entry._configure(str(data), list(flags)).build()
    try:
        yield built
    finally:
        built.close()
        torch.distributed.destroy_process_group()


def train(data: Path, *flags: str) -> History:
    with trainer(data, *flags) as built:
        built.train()
        return dataclasses.replace(built.metrics_processor.history)


def command(*arguments: str, cwd: Path, seconds: int = 280, **environment: str) -> subprocess.CompletedProcess:
    """`torchtitan-npu` as a user starts it."""
    return subprocess.run(
        [sys.executable, "-m", "torchtitan_npu.cli", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=seconds,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


_MARK = "TORCHTITAN_NPU_TEST_RUN"


def start(*arguments: str, cwd: Path, **environment: str) -> subprocess.Popen:
    """The same without waiting for it; its processes are found by `processes`, whatever session they are in."""
    return subprocess.Popen(
        [sys.executable, "-m", "torchtitan_npu.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", _MARK: str(cwd), **environment},
        start_new_session=True,
        preexec_fn=interruptible,
    )


def processes(cwd: Path, **environment: str) -> list[int]:
    """The living processes that `start` began in `cwd`, and their children, with these variables at their start."""
    wanted = {f"{name}={value}".encode() for name, value in {_MARK: str(cwd), **environment}.items()}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")  # empty for a zombie
        except OSError:  # it ended meanwhile, or is another user's
            continue
        if wanted <= set(variables):
            found.append(int(folder.name))
    return found


def oldest(found: list[int]) -> int:
    """The one of these processes that none of the others started. Its number need not be the lowest: they wrap."""
    parents = {pid: int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in found}
    (first,) = (pid for pid, parent in parents.items() if parent not in parents)
    return first


def kill_all(cwd: Path) -> None:
    for process in processes(cwd):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
