"""What torch says of a checkpoint, told to the user: cause, and a fix that does not cost a good checkpoint."""

import errno
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.distributed import checkpoint
from torchtitan.config import ParallelismConfig

from torchtitan_npu import checkpoints, preflight
from torchtitan_npu.errors import UserError


def loading(folder: Path, **wanted: torch.Tensor) -> Exception:
    with pytest.raises(checkpoint.CheckpointException) as raised:
        checkpoint.load(dict(wanted), checkpoint_id=str(folder), no_dist=True)
    return raised.value


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    checkpoint.save({"weight": torch.ones(4)}, checkpoint_id=str(tmp_path), no_dist=True)
    return tmp_path


@pytest.mark.parametrize(
    ("wanted", "cause", "fix"),
    [
        ({"dataloader.dp_rank_1": torch.ones(1)}, "fewer data-parallel ranks wrote it", "as many ranks as wrote it"),
        ({"other": torch.ones(4)}, "another model wrote it", "name the config it was written with"),
        ({"weight": torch.ones(5)}, "another model wrote it", "name the config it was written with"),
    ],
)
def test_a_checkpoint_of_another_run_is_not_called_damaged(folder: Path, wanted: dict, cause: str, fix: str) -> None:
    error = checkpoints.unusable(loading(folder, **wanted), folder, "remove it")
    assert cause in error.cause and fix in error.fix
    assert "remove" not in error.fix


def test_a_damaged_file_is_named_with_what_was_found(folder: Path) -> None:
    (data,) = folder.glob("*.distcp")
    data.write_bytes(b"\0" * data.stat().st_size)
    error = checkpoints.unusable(loading(folder, weight=torch.ones(4)), folder, "remove it")
    assert re.search("cannot be read: .+", error.cause) and error.fix == "remove it"


def test_a_full_disk_is_told_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(checkpoint.CheckpointException) as raised:
        checkpoint.save({"weight": torch.ones(4)}, checkpoint_id=str(tmp_path), no_dist=True)
    error = checkpoints.unusable(raised.value, tmp_path, "remove it")
    assert "cannot be written" in error.cause and "No space left on device" in error.cause
    assert re.search(r"\d+ MiB are free there", error.cause)
    assert "remove" not in error.fix


@pytest.mark.parametrize(("wrote", "ranks"), [(2, 1), (1, 2)])
def test_resuming_on_more_or_fewer_ranks_names_both_numbers(tmp_path: Path, wrote: int, ranks: int) -> None:
    places = {f"dp_rank_{rank}": b"place" for rank in range(wrote)}
    checkpoint.save({"dataloader": places, "weight": torch.ones(4)}, checkpoint_id=str(tmp_path), no_dist=True)
    checkpoints.check_ranks(tmp_path, wrote)
    with pytest.raises(UserError, match=f"{wrote} wrote it, this run has {ranks}") as refused:
        checkpoints.check_ranks(tmp_path, ranks)
    assert "--checkpoint.exclude_from_loading dataloader" in refused.value.fix


def test_a_save_that_was_cut_off_does_not_hide_the_step_that_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = tmp_path / "checkpoint"
    places = {f"dp_rank_{rank}": b"place" for rank in range(2)}
    checkpoint.save({"dataloader": places, "weight": torch.ones(4)}, checkpoint_id=str(steps / "step-8"), no_dist=True)
    (steps / "step-12").mkdir()  # its ranks were killed before the metadata were written
    settings = SimpleNamespace(
        enable=True, create_seed_checkpoint=False, folder="checkpoint", load_step=-1, exclude_from_loading=[]
    )
    config = SimpleNamespace(dump_folder=str(tmp_path), checkpoint=settings, parallelism=ParallelismConfig())
    monkeypatch.setenv("WORLD_SIZE", "2")
    preflight._checkpoint(config)
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(UserError, match="step-8 holds the places in the data of data-parallel ranks: 2 wrote it"):
        preflight._checkpoint(config)
