"""Validation with multi-token prediction, whose loss needs positions."""

from pathlib import Path

import pytest

from tests.torchtitan_npu.runs import FP32, trainer

SHORT = ("--module", "tests.torchtitan_npu.short", "--config", "multi_token", "--debug.seed", "42", *FP32)


def test_multi_token_prediction_validates_with_the_loss_it_trains_with(data: Path, tmp_path: Path) -> None:
    """On the rows that training sees first, before it has changed anything: the same loss."""
    flags = ("--training.steps", "1", "--training.seq_len", "32", "--training.local_batch_size", "2")
    rows = ("--validator.dataloader.dataset", "prepared", "--validator.dataloader.dataset_path")
    rows = ("--validator.enable", "--validator.steps", "1", *rows, str(data / "train" / "data.jsonl"))
    with trainer(data, *SHORT, *flags, *rows, "--dump_folder", str(tmp_path)) as built:
        built.validator.validate(built.model_parts, 0)
        built.train()
        history = built.metrics_processor.history
    assert history.validation_losses[0] == pytest.approx(history.losses[1], rel=1e-6)
