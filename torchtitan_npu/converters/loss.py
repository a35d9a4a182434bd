"""Cross-entropy on `npu_cross_entropy_loss`.

Replaces: `CrossEntropyLoss.Config` and multi-token prediction's `MTPLoss.Config`. Operator: torch_npu's
`npu_cross_entropy_loss` (aclnnCrossEntropyLoss and its gradient) in float32, as a sum over tokens. Constraints: whole
vocabularies; over a vocabulary that tensor parallelism spreads over ranks the loss is upstream's own. Saves: one launch
forward and one backward for each chunk of the loss or depth of prediction, and a pass over the logits each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torchtitan.components.loss import IGNORE_INDEX, CrossEntropyLoss, cross_entropy_loss
from torchtitan.config import CompileConfig
from torchtitan.config.override import derive, override
from torchtitan.distributed.spmd_types import spmd_mesh_size
from torchtitan.models.deepseek_v3.mtp import MTPLoss


@torch.library.custom_op("torchtitan_npu::cross_entropy", mutates_args=())
def summed_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss summed over tokens, and the log-probabilities for the gradient.

    Args:
        logits: float32 [tokens, vocabulary].
        labels: int64 [tokens]; upstream's IGNORE_INDEX is left out.
    """
    loss, log_probabilities, _, _ = torch.ops.npu.npu_cross_entropy_loss(
        logits, labels, reduction="sum", ignore_index=IGNORE_INDEX
    )
    return loss.reshape(()), log_probabilities


@summed_cross_entropy.register_fake
def _(logits, labels):
    return logits.new_empty(()), torch.empty_like(logits)


@torch.library.custom_op("torchtitan_npu::cross_entropy_backward", mutates_args=())
def _gradient(grad: torch.Tensor, log_probabilities: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.ops.npu.npu_cross_entropy_loss_backward(
        grad.reshape(1), log_probabilities, labels, reduction="sum", ignore_index=IGNORE_INDEX
    )


@_gradient.register_fake
def _(grad, log_probabilities, labels):
    return torch.empty_like(log_probabilities)


def _setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
    _, labels = inputs
    _, log_probabilities = output
    ctx.mark_non_differentiable(log_probabilities)
    ctx.save_for_backward(log_probabilities, labels)


def _backward(ctx: Any, grad: torch.Tensor, _: Any) -> tuple:
    return _gradient(grad, *ctx.saved_tensors), None


summed_cross_entropy.register_autograd(_backward, setup_context=_setup_context)


def npu_cross_entropy_loss(
    pred: torch.Tensor, labels: torch.Tensor, *, global_vocab_size: int | None = None
) -> torch.Tensor:
    """Upstream's `cross_entropy_loss`: the sum over tokens, in float32."""
    if isinstance(pred, DTensor) or spmd_mesh_size("tp") > 1:
        return cross_entropy_loss(pred, labels, global_vocab_size=global_vocab_size)
    return summed_cross_entropy(pred.flatten(0, 1).float(), labels.flatten(0, 1))[0]


class NPUCrossEntropyLoss(CrossEntropyLoss):
    @dataclass(kw_only=True, slots=True)
    class Config(CrossEntropyLoss.Config):
        pass

    def __init__(self, config: Config, *, compile_config: CompileConfig | None = None) -> None:
        super().__init__(config)
        self.fn: Callable[..., torch.Tensor] = npu_cross_entropy_loss
        self._maybe_compile(compile_config)


class NPUMTPLoss(MTPLoss):
    @dataclass(kw_only=True, slots=True)
    class Config(MTPLoss.Config):
        pass

    def __init__(self, config: Config, *, compile_config: CompileConfig | None = None) -> None:
        super().__init__(config)
        self.fn: Callable[..., torch.Tensor] = npu_cross_entropy_loss
        self._maybe_compile(compile_config)


@override(target=CrossEntropyLoss.Config, description="npu_cross_entropy_loss", exact=True)
def cross_entropy(config: CrossEntropyLoss.Config) -> NPUCrossEntropyLoss.Config:
    return derive(config, NPUCrossEntropyLoss.Config)


@override(target=MTPLoss.Config, description="npu_cross_entropy_loss", exact=True)
def multi_token_cross_entropy(config: MTPLoss.Config) -> NPUMTPLoss.Config:
    return derive(config, NPUMTPLoss.Config)
