"""The bias that balances experts: updated once an optimizer step from all its tokens, whatever is recomputed."""

from pathlib import Path

import pytest
import torch

from tests.torchtitan_npu.runs import FP32, trainer

SHORT = ("--module", "tests.torchtitan_npu.short", "--config", "deepseek", "--debug.seed", "42", *FP32)
STEP = ("--training.steps", "1", "--training.seq_len", "32", "--training.global_batch_size", "2")
COEFFICIENT, TOKENS, CHOICES = 1e-3, 64, 3


def after_one_step(data: Path, folder: Path, *flags: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Each layer's bias after a step, and the token counts that upstream's update took."""
    counts: list[torch.Tensor] = []
    with trainer(data, *SHORT, *STEP, "--dump_folder", str(folder), *flags) as built:
        layers = [block.moe for block in built.model_parts[0].layers.values() if block.moe_enabled]

        def note(*args, **kwargs) -> None:  # before upstream's hook, which empties the counters
            counts.extend(moe.tokens_per_expert_E.cpu().clone() for moe in layers)

        built.optimizers.register_step_pre_hook(note)
        hooks = built.optimizers._optimizer_step_pre_hooks
        hooks.move_to_end(next(reversed(hooks)), last=False)
        built.train()
        return [moe.expert_bias_E.cpu().clone() for moe in layers], counts


@pytest.fixture(scope="module")
def plain(data: Path, tmp_path_factory: pytest.TempPathFactory):
    return after_one_step(data, tmp_path_factory.mktemp("plain"), "--training.local_batch_size", "2")


def test_bias_follows_upstreams_formula(plain) -> None:
    biases, counts = plain
    assert len(biases) == 3
    for bias, count in zip(biases, counts, strict=True):
        assert count.sum() == TOKENS * CHOICES
        delta = COEFFICIENT * torch.sign(count.mean() - count)
        torch.testing.assert_close(bias, delta - delta.mean())
        assert bias.any()


def test_accumulated_batches_give_one_update_from_all_tokens(plain, data: Path, tmp_path: Path) -> None:
    biases, counts = after_one_step(data, tmp_path, "--training.local_batch_size", "1")
    for (bias, count), (expected, whole) in zip(
        zip(biases, counts, strict=True), zip(*plain, strict=True), strict=True
    ):
        assert torch.equal(count, whole)
        torch.testing.assert_close(bias, expected)


@pytest.mark.parametrize("mode", ["full", "selective"])
def test_recomputation_does_not_change_the_bias(plain, data: Path, tmp_path: Path, mode: str) -> None:
    """Upstream's counters hold a recomputed layer's tokens twice, and its update halves them: both must agree."""
    flags = ("--training.local_batch_size", "2", f"activation-checkpoint:{mode}")
    biases, counts = after_one_step(data, tmp_path, *flags)
    for (bias, count), (expected, whole) in zip(
        zip(biases, counts, strict=True), zip(*plain, strict=True), strict=True
    ):
        assert torch.equal(count // 2, whole)
        torch.testing.assert_close(bias, expected)


def test_forced_balance_gives_every_expert_as_many_tokens(data: Path, tmp_path: Path) -> None:
    flags = ("--training.local_batch_size", "2", "--debug.moe_force_load_balance")
    biases, counts = after_one_step(data, tmp_path, *flags)
    for bias, count in zip(biases, counts, strict=True):
        assert torch.equal(count, torch.full_like(count, TOKENS * CHOICES / count.numel()))
        assert not bias.any()
