"""The router's choice of experts on `npu_moe_gating_top_k`.

Replaces: `TokenChoiceTopKRouter.Config`. Operator: torch_npu's `npu_moe_gating_top_k` (aclnnMoeGatingTopK) with its
backward: softmax or sigmoid, bias for the choice only, node-limited groups by their two best, the chosen scores, their
normalisation and scale. Constraints: at most 2048 experts, more than two in a group; the operator always normalises
sigmoid scores and never those of softmax (its renorm must be 0), so that a softmax router's normalisation follows it
and a sigmoid router without one is upstream's own, as is `moe_force_load_balance`. Among equal scores the operator
takes the first. Saves: softmax, top-k, gather and the element-wise passes around them, and theirs in backward.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torchtitan.config.override import derive, override
from torchtitan.models.common.moe import TokenChoiceTopKRouter

_SOFTMAX, _SIGMOID = 0, 1  # norm_type
_BEST_TWO = 1  # group_select_mode
_EPSILON = 1e-20  # upstream's
_MOST_EXPERTS = 2048


@torch.library.custom_op("torchtitan_npu::gating_top_k", mutates_args=())
def gating_top_k(
    logits: torch.Tensor, bias: torch.Tensor | None, k: int, groups: int, kept_groups: int, sigmoid: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores [tokens, k] and int32 numbers [tokens, k] of the chosen experts, and all scores [tokens, experts]."""
    scores, experts, all_scores = torch.ops.npu.npu_moe_gating_top_k(
        logits,
        k,
        bias=bias,
        k_group=kept_groups,
        group_count=groups,
        group_select_mode=_BEST_TWO,
        renorm=0,
        norm_type=_SIGMOID if sigmoid else _SOFTMAX,
        out_flag=True,
        routed_scaling_factor=scale,
        eps=_EPSILON,
    )
    return scores, experts, all_scores


@gating_top_k.register_fake
def _(logits, bias, k, groups, kept_groups, sigmoid, scale):
    shape = (logits.shape[0], k)
    all_scores = torch.empty_like(logits, dtype=torch.float32)
    return logits.new_empty(shape), logits.new_empty(shape, dtype=torch.int32), all_scores


@torch.library.custom_op("torchtitan_npu::gating_top_k_backward", mutates_args=())
def _gating_backward(
    grad: torch.Tensor, experts: torch.Tensor, all_scores: torch.Tensor, sigmoid: bool, scale: float
) -> torch.Tensor:
    return torch.ops.npu.npu_moe_gating_top_k_backward(
        all_scores,
        grad.contiguous(),
        experts,
        renorm=0,
        norm_type=_SIGMOID if sigmoid else _SOFTMAX,
        routed_scaling_factor=scale,
        eps=_EPSILON,
    )


@_gating_backward.register_fake
def _(grad, experts, all_scores, sigmoid, scale):
    return torch.empty_like(all_scores, dtype=grad.dtype)


def _setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
    _, _, _, _, _, ctx.sigmoid, ctx.scale = inputs
    _, experts, all_scores = output
    ctx.mark_non_differentiable(experts)
    ctx.save_for_backward(experts, all_scores)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: torch.Tensor | None, _: None, grad_all: torch.Tensor | None) -> tuple:
    experts, all_scores = ctx.saved_tensors
    total = None if grad is None else _gating_backward(grad, experts, all_scores, ctx.sigmoid, ctx.scale)
    if grad_all is not None:  # a loss on the scores themselves
        if ctx.sigmoid:
            extra = grad_all * all_scores * (1 - all_scores)
        else:
            extra = all_scores * (grad_all - (grad_all * all_scores).sum(-1, keepdim=True))
        total = extra if total is None else total + extra
    return total, None, None, None, None, None, None


gating_top_k.register_autograd(_backward, setup_context=_setup_context)


class NPURouter(TokenChoiceTopKRouter):
    @dataclass(kw_only=True, slots=True)
    class Config(TokenChoiceTopKRouter.Config):
        pass

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        groups = config.num_expert_groups or 1
        self._sigmoid = config.score_func == "sigmoid"
        self._served = (
            config.num_experts <= _MOST_EXPERTS
            and config.num_experts // groups > 2
            and config.num_experts % groups == 0
            and (groups == 1 or config.num_limited_groups is not None)
            and config.score_func in ("sigmoid", "softmax")
            and (config.route_norm or not self._sigmoid)
            and not config._debug_force_load_balance
        )

    def forward(
        self, x_BLD: torch.Tensor, expert_bias_E: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if not self._served or isinstance(x_BLD, DTensor):
            return super().forward(x_BLD, expert_bias_E)
        with torch.autocast(device_type=x_BLD.device.type, dtype=torch.float32):
            logits = self.gate(x_BLD)
        groups = self.num_expert_groups or 1
        normalise_here = self.route_norm and not self._sigmoid
        scores, experts, all_scores = gating_top_k(
            logits.flatten(0, 1).float(),
            expert_bias_E,
            self.top_k,
            groups,
            self.num_limited_groups if groups > 1 else 1,
            self._sigmoid,
            1.0 if normalise_here else self.route_scale,
        )
        if normalise_here:
            scores = scores / (scores.sum(dim=-1, keepdim=True) + _EPSILON)
            scores = scores if self.route_scale == 1.0 else scores * self.route_scale
        shape = (*x_BLD.shape[:2], -1)
        return scores.view(shape), experts.long().view(shape), all_scores.view(shape)


@override(target=TokenChoiceTopKRouter.Config, description="npu_moe_gating_top_k", exact=True)
def router(config: TokenChoiceTopKRouter.Config) -> NPURouter.Config:
    return derive(config, NPURouter.Config)
