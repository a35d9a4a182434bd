"""What entry.py does to a rank's process before anything is built, and what it says when it cannot."""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.torchtitan_npu.runs import LLAMA, SMALL, command, train
from torchtitan_npu import entry
from torchtitan_npu.errors import UserError


def run(program: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env={**os.environ, **environment}
    )


def test_each_rank_computes_on_its_own_device_from_the_start() -> None:
    program = (
        "from torchtitan_npu import entry; entry._prepare_process(); import torch; "
        "print(torch.npu.current_device(), torch.ones(1, device='npu').device)"
    )
    result = run(program, LOCAL_RANK="3", LOCAL_WORLD_SIZE="4")
    assert result.stdout.split() == ["3", "npu:3"], result.stderr


def test_children_are_spawned() -> None:
    entry._prepare_process()
    assert multiprocessing.get_start_method() == "spawn"


def test_data_loading_workers_run_next_to_a_device(data: Path, tmp_path: Path) -> None:
    flags = (*LLAMA, *SMALL, "--training.steps", "2", "--dump_folder", str(tmp_path))
    assert train(data, *flags).losses == train(data, *flags, "--dataloader.num_workers", "1").losses


def test_visible_devices_that_cann_refuses_are_explained(data: Path, tmp_path: Path) -> None:
    """A list that does not ascend makes CANN count no device (207004); torch_npu only says that none is available."""
    result = command("train", "--data", str(data), *LLAMA, *SMALL, cwd=tmp_path, ASCEND_RT_VISIBLE_DEVICES="1,0")
    assert result.returncode == 2
    assert "0 NPUs are visible" in result.stderr and "now '1,0'; ids must ascend" in result.stderr


def test_a_torch_npu_that_does_not_load_is_explained(tmp_path: Path) -> None:
    (tmp_path / "torch_npu.py").write_text("raise ImportError('libascend_hal.so: cannot open shared object file')")
    program = "from torchtitan_npu import entry; entry._prepare_process()"
    result = run(program, PYTHONPATH=f"{tmp_path}:{os.getcwd()}", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert "libascend_hal.so" in result.stderr and "torchtitan-npu doctor explains" in result.stderr


def test_only_rank_0_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    assert not entry._speaks()
    monkeypatch.setenv("LOG_RANK", "0,1")
    assert entry._speaks()


def test_npu_settings_reach_the_process(data: Path, tmp_path: Path) -> None:
    flags = (*LLAMA, *SMALL, "--training.steps", "1", "--dump_folder", str(tmp_path))
    train(data, *flags, "--npu.hf32", "--npu.hccl.exec_timeout_seconds", "77", "--npu.hccl.deterministic")
    assert torch.npu.matmul.allow_hf32
    assert os.environ["HCCL_EXEC_TIMEOUT"] == "77" and os.environ["HCCL_DETERMINISTIC"] == "true"
    train(data, *flags)
    assert not torch.npu.matmul.allow_hf32


def test_a_rank_that_breaks_is_named(data: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('a mistake in the code')")
    result = command(
        *("train", "--data", str(data), *LLAMA, *SMALL, "--training.steps", "1"),
        *("--override.imports", "broken.factory"),
        cwd=tmp_path,
    )
    assert result.returncode == 1 and "a mistake in the code" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("torchtitan-npu: error: rank 0 stopped with exit code 1")


def test_error_with_and_without_a_fix() -> None:
    assert str(UserError("cause")) == "cause"
    assert str(UserError("cause", "do this")) == "cause\n  fix: do this"
