"""Flex and varlen attention on `npu_fusion_attention`.

Replaces: `FlexAttention.Config` and `VarlenAttention.Config`. Operator: torch_npu's `npu_fusion_attention` in TND
layout (aclnnFlashAttentionVarLenScore and its gradient): rows of a batch are packed and the document offsets keep them
apart. Constraints: query, key and value share one dtype (float16, bfloat16 or float32, which stays float32: upstream's
varlen module casts to bfloat16); heads of query and key may be wider than those of the value, as in MLA; the window is
causal, causal with a left limit, or none; no `score_mod`. The operator has no gradient for the log-sum-exp, so that an
`out_transform` is refused but for gpt-oss's attention sinks, which become the operator's own argument `sink`. Saves:
the score matrix, and all launches of attention but one each way.

The operator wants the offsets as host integers. They arrive as a device tensor and are read inside the operator, so
that a traced model holds no host synchronisation, and once a step: every layer is given the same tensor.

With context parallelism a rank's queries are a chunk of every row: see `context_parallel`. The modules are no
`VarlenAttention`, since upstream refuses context parallelism for it; their configs are.

The flex replacement is also a `VarlenAttention.Config`, which is what makes upstream build offsets, not block masks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torchtitan.config.override import derive, override
from torchtitan.models.common.attention import FlexAttention, VarlenAttention, VarlenMetadata
from torchtitan.models.gpt_oss.model import Attention as GptOssAttention
from torchtitan.protocols.module import Module
from torchtitan.protocols.sharding import ShardingConfig

from torchtitan_npu.converters import context_parallel, packed
from torchtitan_npu.converters.context_parallel import Context, Way
from torchtitan_npu.converters.ring_attention import ring_attention
from torchtitan_npu.errors import UserError

_CAUSAL, _BAND, _FULL = 3, 4, 0  # sparse_mode of the operator
_UNLIMITED = 2147483647


def _pattern(left: int, right: int, device: torch.device) -> dict[str, Any]:
    """The operator's arguments for a window of `left` tokens before and `right` after; -1 is unlimited."""
    if (left, right) == (-1, -1):
        return {"sparse_mode": _FULL}
    mask = packed.compressed_mask(device)
    if (left, right) == (-1, 0):
        return {"sparse_mode": _CAUSAL, "atten_mask": mask}
    return {"sparse_mode": _BAND, "atten_mask": mask, "pre_tockens": left, "next_tockens": right}


def _lengths(
    query: torch.Tensor, key: torch.Tensor, offsets: torch.Tensor, rows: int, rank: int
) -> tuple[list[int], list[int], list[packed.Span] | None]:
    """Ends of the documents among queries and among keys, and which keys are kept; None where all are."""
    ends = packed.last_offsets.ends(offsets)
    if query.shape[0] == key.shape[0]:
        return ends, ends, None
    part = context_parallel.segments(ends, rows, key.shape[0] // rows, query.shape[0] // rows, rank)
    return part.query_ends, part.key_ends, part.keys


def _spread(grad: torch.Tensor, kept: list[packed.Span] | None, whole: torch.Tensor) -> torch.Tensor:
    """The gradient of the kept keys as one of all keys."""
    if kept is None:
        return grad
    result = torch.zeros_like(whole)
    packed.put(result, kept, grad)
    return result


@torch.library.custom_op("torchtitan_npu::attention", mutates_args=())
def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    offsets: torch.Tensor,
    sinks: torch.Tensor | None,
    scale: float,
    left: int,
    right: int,
    rows: int,
    rank: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention over packed documents: output, and the softmax's row maxima and sums for the gradient.

    Queries are the chunk that context-parallel rank `rank` has of each of `rows` rows; without it they are all.
    """
    query_ends, key_ends, kept = _lengths(query, key, offsets, rows, rank)
    key, value = packed.tokens(key, kept), packed.tokens(value, kept)
    output, row_max, row_sum, *_ = torch.ops.npu.npu_fusion_attention(
        query,
        key,
        value,
        query.shape[1],
        "TND",
        scale=scale,
        actual_seq_qlen=query_ends,
        actual_seq_kvlen=key_ends,
        sink=sinks,
        **_pattern(left, right, query.device),
    )
    return output, row_max, row_sum


@_attention.register_fake
def _(query, key, value, offsets, sinks, scale, left, right, rows, rank):
    return packed.unfilled(query, value)


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
    sinks: torch.Tensor | None,
    scale: float,
    left: int,
    right: int,
    rows: int,
    rank: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of query, key, value and sinks; the last is empty without sinks."""
    query_ends, key_ends, kept = _lengths(query, key, offsets, rows, rank)
    whole = key, value
    key, value = packed.tokens(key, kept), packed.tokens(value, kept)
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
        actual_seq_qlen=query_ends,
        actual_seq_kvlen=key_ends,
        sink=sinks,
        **_pattern(left, right, query.device),
    )
    of_sinks = query.new_empty(0, dtype=torch.float32) if sinks is None else grads[4]
    of_key, of_value = (_spread(grad, kept, like) for grad, like in zip(grads[1:3], whole, strict=True))
    return grads[0], of_key, of_value, of_sinks


@_attention_backward.register_fake
def _(grad, query, key, value, output, row_max, row_sum, offsets, sinks, *rest):
    of_sinks = query.new_empty(0 if sinks is None else sinks.shape, dtype=torch.float32)
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), of_sinks


def _setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
    query, key, value, offsets, sinks, *ctx.settings = inputs
    ctx.save_for_backward(query, key, value, *output, offsets, sinks)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: torch.Tensor | None, *unused: torch.Tensor | None) -> tuple:
    if grad is None:
        return (None,) * 10
    query, key, value, output, row_max, row_sum, offsets, sinks = ctx.saved_tensors
    of_query, of_key, of_value, of_sinks = _attention_backward(
        grad.contiguous(), query, key, value, output, row_max, row_sum, offsets, sinks, *ctx.settings
    )
    return of_query, of_key, of_value, None, None if sinks is None else of_sinks, *(None,) * 5


_attention.register_autograd(_backward, setup_context=_setup_context)


class PackedAttention(Module):
    """Attention within documents of a packed batch, whose rows may be spread over context-parallel ranks.

    Parameter names of `forward` are upstream's: `local_map` checks them.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(VarlenAttention.Config):
        context_parallel: Way = "all_gather"

    context: Context | None = None
    _sharding_config: ShardingConfig | None

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.window_size = config.window_size
        self.way = config.context_parallel

    def parallelize(self, parallel_dims: Any) -> None:
        mesh = parallel_dims.get_optional_mesh("cp")
        if mesh is not None and mesh.size() > 1:
            if self.way == "all_gather" and self.window_size[1] != 0:
                raise UserError(
                    f"attention window {self.window_size} needs keys of later ranks, which all_gather leaves out",
                    "--npu.context_parallel ulysses",
                )
            if self.way == "ring" and self.window_size != (-1, 0):
                raise UserError(
                    f"attention window {self.window_size}: keys that go round the ranks are attended to causally, all",
                    "--npu.context_parallel auto",
                )
            self.context = Context(mesh, self.way)
            if self.context.way != "all_gather" and self._sharding_config is not None:
                self._sharding_config = context_parallel.without_gathering(self._sharding_config)
        super().parallelize(parallel_dims)


class NPUAttention(PackedAttention):
    @dataclass(kw_only=True, slots=True)
    class Config(PackedAttention.Config):
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
        refuse_score_mod(kwargs.get("score_mod"))
        sinks = _sinks(out_transform)
        scale = q_BLNH.shape[-1] ** -0.5 if scale is None else scale
        if self.context is not None and self.context.way == "ring":
            return self._ring(q_BLNH, k_BLNH, v_BLNH, attention_masks.cu_seq_q, sinks, scale, self.context)
        trading = self.context if self.context is not None and self.context.way == "ulysses" else None
        query, key, value = q_BLNH, k_BLNH, v_BLNH
        if trading is not None:
            query, key, value = (context_parallel.tokens_for_heads(x, trading) for x in (query, key, value))
            sinks = None if sinks is None else context_parallel.share_of_heads(sinks, trading)
        batch, length, heads, _ = query.shape
        output, _, _ = _attention(
            query.flatten(0, 1),
            key.flatten(0, 1),
            value.flatten(0, 1),
            attention_masks.cu_seq_q,
            None if sinks is None else sinks.float(),
            scale,
            *self.window_size,
            batch,
            0 if self.context is None else self.context.rank,
        )
        output = output.view(batch, length, heads, -1)
        return output if trading is None else context_parallel.heads_for_tokens(output, trading)

    @staticmethod
    def _ring(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        offsets: torch.Tensor,
        sinks: torch.Tensor | None,
        scale: float,
        context: Context,
    ) -> torch.Tensor:
        if sinks is not None:
            raise UserError(
                "attention sinks are not served by npu.context_parallel ring", "--npu.context_parallel auto"
            )
        batch, chunk, heads, _ = query.shape
        query, key, value = (x.flatten(0, 1) for x in (query, key, value))
        output, _, _ = ring_attention(query, key, value, offsets, scale, batch, context.group_name)
        return output.view(batch, chunk, heads, -1)


def _sinks(out_transform: Callable | None) -> torch.Tensor | None:
    """The sinks behind gpt-oss's output transform, one a head; other transforms have no gradient here."""
    if out_transform is None:
        return None
    if not isinstance(out_transform, MethodType) or out_transform.__func__ is not GptOssAttention._apply_sinks:
        raise UserError(
            "the NPU attention has no out_transform: npu_fusion_attention gives no gradient for the log-sum-exp",
            "choose a model that does not use it, or --npu.reference_parts attention",
        )
    sinks: torch.Tensor = out_transform.__self__.sinks  # type: ignore[attr-defined]
    return sinks.to_local(grad_placements=sinks.placements) if isinstance(sinks, DTensor) else sinks


def refuse_score_mod(score_mod: object) -> None:
    """What upstream's flex module accepts and ours do not."""
    if score_mod is not None:
        raise UserError("the NPU attention has no score_mod", "choose a model that does not use it")


@override(target=VarlenAttention.Config, description="npu_fusion_attention, TND", exact=True)
def varlen_attention(config: VarlenAttention.Config, context_parallel: Way = "all_gather") -> NPUAttention.Config:
    return derive(config, NPUAttention.Config, context_parallel=context_parallel)


@override(target=FlexAttention.Config, description="npu_fusion_attention, TND", exact=True)
def flex_attention(config: FlexAttention.Config, context_parallel: Way = "all_gather") -> NPUAttention.Config:
    return derive(config, NPUAttention.Config, context_parallel=context_parallel)
