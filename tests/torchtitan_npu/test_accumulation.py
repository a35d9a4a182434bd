"""One step's tokens in one batch or in several: the same loss, gradient norm, validation loss and memory."""

from pathlib import Path

import pytest
import torch

from tests.torchtitan_npu.runs import FP32, trainer
from tests.torchtitan_npu.steps import LENGTH, rows, take

SHORT = ("--module", "tests.torchtitan_npu.short", "--config", "llama", "--training.seq_len", f"{LENGTH}", *FP32)
STEP = ("--training.steps", "10", "--debug.seed", "42")


def _step(data: Path, folder: Path, valid: list[int], size: int) -> tuple[float, float]:
    """Loss and gradient norm of a step over rows with so many valid labels, `size` of them in a batch."""
    flags = (*SHORT, *STEP, "--dump_folder", str(folder), "--training.local_batch_size", f"{size}")
    with trainer(data, *flags, "--training.global_batch_size", f"{len(valid)}") as built:
        take(built, rows(valid), size)
        history = built.metrics_processor.history
        return history.losses[1], history.gradient_norms[1]


def test_a_batch_of_few_valid_tokens_weighs_as_much_as_its_tokens(data: Path, tmp_path: Path) -> None:
    """1 and 9 valid labels: the loss is the sum over all valid tokens divided by their number, not a mean of means."""
    together = _step(data, tmp_path, [1, 9], size=2)
    apart = _step(data, tmp_path, [1, 9], size=1)
    assert apart == pytest.approx(together, rel=1e-5)


def _validation_loss(data: Path, folder: Path, accumulated: int) -> float:
    flags = (*SHORT, *STEP, "--dump_folder", str(folder), "--training.local_batch_size", "2", "--validator.enable")
    with trainer(data, *flags, "--training.global_batch_size", f"{2 * accumulated}", "--validator.steps", "2") as built:
        assert built.gradient_accumulation_steps == accumulated
        built.validator.validate(built.model_parts, 1)
        return built.metrics_processor.history.validation_losses[1]


def test_validation_loss_does_not_know_of_accumulation(data: Path, tmp_path: Path) -> None:
    assert _validation_loss(data, tmp_path, 4) == _validation_loss(data, tmp_path, 1)


def _peak(data: Path, folder: Path, accumulated: int) -> int:
    """Most memory in use during a second step, in bytes."""
    flags = (*SHORT, *STEP, "--dump_folder", str(folder), "--training.local_batch_size", "1")
    with trainer(data, *flags, "--training.global_batch_size", f"{accumulated}") as built:
        for _ in range(2):
            torch.npu.reset_peak_memory_stats()
            take(built, rows([LENGTH] * accumulated), 1)
        return torch.npu.max_memory_allocated()


def test_accumulated_batches_take_no_memory_of_their_own(data: Path, tmp_path: Path) -> None:
    """Every batch is reduced into the sharded gradient: none is kept whole until the last."""
    assert _peak(data, tmp_path, 8) <= 1.02 * _peak(data, tmp_path, 1)
