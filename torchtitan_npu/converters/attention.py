"""Flex and varlen attention on `npu_fusion_attention`.

Replaces: `FlexAttention.Config` and `VarlenAttention.Config`. Operator: torch_npu's `npu_fusion_attention` in TND
layout (aclnnFlashAttentionVarLenScore and its gradient): rows of a batch are packed and the document offsets keep them
apart. Constraints: query, key and value share one dtype (float16, bfloat16 or float32, which stays float32: upstream's
varlen module casts to bfloat16); the window is causal, causal with a left limit, or none; no `score_mod`, no
`out_transform`, no context parallelism. Saves: the score matrix, and all launches of attention but one each way.

The operator wants the offsets as host integers. They arrive as a device tensor and are read inside the operator, so
that a traced model holds no host synchronisation, and once a step: every layer is given the same tensor.

The flex replacement is also a `VarlenAttention.Config`, which is what makes upstream build offsets, not block masks.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torchtitan.config.override import derive, override
from torchtitan.models.common.attention import FlexAttention, VarlenAttention, VarlenMetadata

from torchtitan_npu.errors import UserError

_CAUSAL, _BAND, _FULL = 3, 4, 0  # sparse_mode of the operator
_MASK_SIDE = 2048  # the compressed mask's size, fixed by the operator for causal and band modes
_UNLIMITED = 2147483647


class _LastOffsets:
    """Host copy of the offsets tensor seen last, found again by identity: one device read a step, not one a layer."""

    def __init__(self) -> None:
        self._tensor: weakref.ref[torch.Tensor] | None = None
        self._version = -1
        self._ends: list[int] = []

    def ends(self, offsets: torch.Tensor) -> list[int]:
        """Where each document ends. The first offset is always 0 and is not passed on."""
        seen = self._tensor() if self._tensor is not None else None
        version = offsets._version
        if seen is not offsets or self._version != version:
            self._ends = offsets.tolist()[1:]
            self._tensor, self._version = weakref.ref(offsets), version
        return self._ends


_last_offsets = _LastOffsets()


@cache
def _compressed_mask(device: torch.device) -> torch.Tensor:
    return torch.triu(torch.ones(_MASK_SIDE, _MASK_SIDE, dtype=torch.bool, device=device), diagonal=1)


def _pattern(left: int, right: int, device: torch.device) -> dict[str, Any]:
    """The operator's arguments for a window of `left` tokens before and `right` after; -1 is unlimited."""
    if (left, right) == (-1, -1):
        return {"sparse_mode": _FULL}
    mask = _compressed_mask(device)
    if (left, right) == (-1, 0):
        return {"sparse_mode": _CAUSAL, "atten_mask": mask}
    return {"sparse_mode": _BAND, "atten_mask": mask, "pre_tockens": left, "next_tockens": right}


@torch.library.custom_op("torchtitan_npu::attention", mutates_args=())
def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    offsets: torch.Tensor,
    scale: float,
    left: int,
    right: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention over packed documents: output, and the softmax's row maxima and sums for the gradient."""
    ends = _last_offsets.ends(offsets)
    output, row_max, row_sum, *_ = torch.ops.npu.npu_fusion_attention(
        query,
        key,
        value,
        query.shape[1],
        "TND",
        scale=scale,
        actual_seq_qlen=ends,
        actual_seq_kvlen=ends,
        **_pattern(left, right, query.device),
    )
    return output, row_max, row_sum


@_attention.register_fake
def _(query, key, value, offsets, scale, left, right):
    rows = query.new_empty((query.shape[0], query.shape[1], 8), dtype=torch.float32)
    return query.new_empty((*query.shape[:2], value.shape[-1])), rows, torch.empty_like(rows)


@torch.library.custom_op("torchtitan_npu::attention_backward", mutates_args=())
def _attention_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    row_max: torch.Tensor,
    row_sum: torch.Tensor,
    offsets: torch.Tensor,
    scale: float,
    left: int,
    right: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    ends = _last_offsets.ends(offsets)
    grads = torch.ops.npu.npu_fusion_attention_grad(
        query,
        key,
        value,
        grad,
        query.shape[1],
        "TND",
        softmax_max=row_max,
        softmax_sum=row_sum,
        attention_in=output,
        scale_value=scale,
        actual_seq_qlen=ends,
        actual_seq_kvlen=ends,
        **_pattern(left, right, query.device),
    )
    return grads[0], grads[1], grads[2]


@_attention_backward.register_fake
def _(grad, query, key, value, *rest):
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
    query, key, value, offsets, ctx.scale, ctx.left, ctx.right = inputs
    ctx.save_for_backward(query, key, value, *output, offsets)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: torch.Tensor | None, *unused: torch.Tensor | None) -> tuple:
    if grad is None:
        return (None,) * 7
    query, key, value, output, row_max, row_sum, offsets = ctx.saved_tensors
    grads = _attention_backward(
        grad.contiguous(), query, key, value, output, row_max, row_sum, offsets, ctx.scale, ctx.left, ctx.right
    )
    return (*grads, None, None, None, None)


_attention.register_autograd(_backward, setup_context=_setup_context)


class NPUAttention(VarlenAttention):
    """Attention within documents of a packed batch. Parameter names are upstream's: `local_map` checks them."""

    @dataclass(kw_only=True, slots=True)
    class Config(VarlenAttention.Config):
        pass

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        left, right = config.window_size
        if right not in (0, -1) or (right == -1 and left != -1):
            raise UserError(
                f"attention window {config.window_size} is not served on NPU",
                "use (-1, 0), (left, 0) or (-1, -1), or --npu.converters reference",
            )

    def forward(
        self,
        q_BLNH: torch.Tensor,
        k_BLNH: torch.Tensor,
        v_BLNH: torch.Tensor,
        *,
        attention_masks: VarlenMetadata,
        scale: float | None = None,
        out_transform: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        refuse_unserved(out_transform, kwargs.get("score_mod"))
        batch, length, heads, _ = q_BLNH.shape
        output, _, _ = _attention(
            q_BLNH.flatten(0, 1),
            k_BLNH.flatten(0, 1),
            v_BLNH.flatten(0, 1),
            attention_masks.cu_seq_q,
            q_BLNH.shape[-1] ** -0.5 if scale is None else scale,
            *self.window_size,
        )
        return output.view(batch, length, heads, -1)


def refuse_unserved(out_transform: object, score_mod: object) -> None:
    """What upstream's modules accept and ours do not; checked before the run too, in `preflight`."""
    for name, value in (("out_transform", out_transform), ("score_mod", score_mod)):
        if value is not None:
            raise UserError(f"the NPU attention has no {name}", "choose a model that does not use it")


@override(target=VarlenAttention.Config, description="npu_fusion_attention, TND", exact=True)
def varlen_attention(config: VarlenAttention.Config) -> NPUAttention.Config:
    return derive(config, NPUAttention.Config)


@override(target=FlexAttention.Config, description="npu_fusion_attention, TND", exact=True)
def flex_attention(config: FlexAttention.Config) -> NPUAttention.Config:
    return derive(config, NPUAttention.Config)
