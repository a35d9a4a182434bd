"""Routed experts on `npu_grouped_matmul`, gate and up projection joined by `npu_swiglu` or `npu_clipped_swiglu`.

Replaces: `GroupedExperts.Config` and gpt-oss's `GptOssGroupedExperts.Config`. Upstream calls `torch._grouped_mm`, which
torch_npu serves with a loop over the experts and a read of the offsets to the host. Constraints: weights have the dtype
of the tokens, which is kept (upstream computes experts in bfloat16 whatever that is). Parameters, checkpoints and
sharding are upstream's. Saves: a launch for each expert and projection, forward and twice backward, and the
activation's element-wise passes.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torchtitan.config.override import derive, override
from torchtitan.distributed import ParallelDims
from torchtitan.models.common.moe import GroupedExperts
from torchtitan.models.gpt_oss.moe import GptOssGroupedExperts, ScaleBiasForward

from torchtitan_npu.converters.grouped_linear import grouped_linear
from torchtitan_npu.shards import local


def _local(parameter: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The rank's own experts: their rows vary from step to step, which DTensor cannot express."""
    return local(parameter).to(dtype)


class NPUGroupedExperts(GroupedExperts):
    """`w2(silu(w1 x) * w3 x)` of each expert on its rows."""

    @dataclass(kw_only=True, slots=True)
    class Config(GroupedExperts.Config):
        pass

    def forward(self, x_RD: torch.Tensor, num_tokens_per_expert_E: torch.Tensor) -> torch.Tensor:
        gate, up, down = (_local(weight, x_RD.dtype) for weight in (self.w1_EFD, self.w3_EFD, self.w2_EDF))
        counts = num_tokens_per_expert_E
        gate_up = torch.cat((grouped_linear(x_RD, gate, counts), grouped_linear(x_RD, up, counts)), dim=-1)
        return grouped_linear(torch.ops.npu.npu_swiglu(gate_up, -1), down, counts)


@torch.library.custom_op("torchtitan_npu::clipped_swiglu", mutates_args=())
def clipped_swiglu(x: torch.Tensor, alpha: float, limit: float) -> torch.Tensor:
    """gpt-oss's activation, gate and up in alternating columns: `gate * sigmoid(alpha * gate) * (up + 1)`, clipped.

    Args:
        x: [rows, 2 * width].
        alpha: slope of the sigmoid.
        limit: the gate is at most this, the up projection within plus and minus this.
    """
    return torch.ops.npu.npu_clipped_swiglu(x, dim=-1, alpha=alpha, limit=limit, bias=1.0, interleaved=True)


@clipped_swiglu.register_fake
def _(x, alpha, limit):
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


def _setup_context(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
    x, ctx.alpha, ctx.limit = inputs
    ctx.save_for_backward(x)


def _backward(ctx: Any, grad: torch.Tensor) -> tuple:
    """The operator has no gradient of its own: in float32 from its input."""
    (x,) = ctx.saved_tensors
    raw_gate, raw_up = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    gate, up = raw_gate.clamp(max=ctx.limit), raw_up.clamp(-ctx.limit, ctx.limit)
    open_ = torch.sigmoid(ctx.alpha * gate)
    slope = open_ * (1 + ctx.alpha * gate * (1 - open_))
    grad = grad.float()
    grad_gate = grad * (up + 1) * slope * (raw_gate <= ctx.limit)
    grad_up = grad * gate * open_ * (raw_up.abs() <= ctx.limit)
    return torch.stack((grad_gate, grad_up), dim=-1).flatten(-2).to(x.dtype), None, None


clipped_swiglu.register_autograd(_backward, setup_context=_setup_context)


def _share(bias: torch.Tensor, shares: int, dtype: torch.dtype) -> torch.Tensor:
    """A rank's share of a replicated bias. A DTensor's gradient is that of one rank, a plain tensor's is summed."""
    if isinstance(bias, DTensor):
        return ScaleBiasForward.apply(_local(bias, dtype), shares, dtype)
    return (bias if shares == 1 else bias / shares).to(dtype)


_ALPHA = 1.702  # of gpt-oss's activation


class NPUGptOssGroupedExperts(GptOssGroupedExperts):
    """gpt-oss's experts: both projections have biases, gate and up are one weight with alternating rows."""

    @dataclass(kw_only=True, slots=True)
    class Config(GptOssGroupedExperts.Config):
        pass

    _bias_shares = 1

    def parallelize(self, parallel_dims: ParallelDims) -> None:
        """Without expert parallelism the outputs of the tensor-parallel ranks are summed, and each adds the bias.

        Upstream reads their number from a DTensor weight, which backend `spmd_types` does not have.
        """
        self._bias_shares = 1 if parallel_dims.ep_enabled else parallel_dims.tp
        super().parallelize(parallel_dims)

    def forward(self, x_RD: torch.Tensor, num_tokens_per_expert_E: torch.Tensor) -> torch.Tensor:
        counts, dtype = num_tokens_per_expert_E, x_RD.dtype
        gate_up = grouped_linear(x_RD, _local(self.mlp1_weight_EGD, dtype), counts, _local(self.mlp1_bias_EG, dtype))
        hidden = clipped_swiglu(gate_up, _ALPHA, self.swiglu_limit)
        bias = _share(self.mlp2_bias_ED, self._bias_shares, dtype)
        return grouped_linear(hidden, _local(self.mlp2_weight_EDF, dtype), counts, bias)


@override(target=GroupedExperts.Config, description="npu_grouped_matmul, npu_swiglu", exact=True)
def grouped_experts(config: GroupedExperts.Config) -> NPUGroupedExperts.Config:
    return derive(config, NPUGroupedExperts.Config)


@override(target=GptOssGroupedExperts.Config, description="npu_grouped_matmul, npu_clipped_swiglu", exact=True)
def gpt_oss_experts(config: GptOssGroupedExperts.Config) -> NPUGptOssGroupedExperts.Config:
    return derive(config, NPUGptOssGroupedExperts.Config)
