"""Plain attention: a mask, two matrix products and a softmax, in the dtype it is given with a float32 softmax.

Replaces: `FlexAttention.Config` and `VarlenAttention.Config` in preset `reference`, because upstream's own kernels do
not exist on NPU. It uses no fused operator and saves nothing: it is what the converters are compared with. It runs on
any device.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torchtitan.config.override import derive, override
from torchtitan.models.common.attention import FlexAttention, VarlenAttention, VarlenMetadata

from torchtitan_npu.converters.attention import PackedAttention, refuse_score_mod


class ReferenceAttention(PackedAttention):
    @dataclass(kw_only=True, slots=True)
    class Config(PackedAttention.Config):
        pass

    def forward(
        self,
        q_BLNH: torch.Tensor,
        k_BLNH: torch.Tensor,
        v_BLNH: torch.Tensor,
        *,
        attention_masks: VarlenMetadata,
        scale: float | None = None,
        out_transform: Any = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        refuse_score_mod(kwargs.get("score_mod"))
        batch, chunk, heads, width = q_BLNH.shape
        query, key, value = (tensor.transpose(1, 2) for tensor in (q_BLNH, k_BLNH, v_BLNH))
        groups = heads // key.shape[1]
        if groups > 1:
            key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
        scores = (query @ key.transpose(-2, -1)).float() * (width**-0.5 if scale is None else scale)
        first = 0 if self.context is None else self.context.rank * chunk
        visible = self._visible(attention_masks.cu_seq_q, batch, k_BLNH.shape[1])[:, first : first + chunk]
        scores = scores.masked_fill(~visible[:, None], float("-inf"))
        output = (scores.softmax(dim=-1).to(value.dtype) @ value).transpose(1, 2)
        return output if out_transform is None else out_transform(output, scores.logsumexp(dim=-1).transpose(1, 2))

    def _visible(self, offsets: torch.Tensor, batch: int, length: int) -> torch.Tensor:
        """Which keys each query sees, [batch, query, key]: those of its own document within the window."""
        token = torch.arange(batch * length, device=offsets.device)
        document = torch.bucketize(token, offsets[1:], right=True).view(batch, length)
        position = torch.arange(length, device=offsets.device)
        distance = position[:, None] - position[None, :]
        left, right = self.window_size
        window = torch.ones_like(distance, dtype=torch.bool)
        if left >= 0:
            window &= distance <= left
        if right >= 0:
            window &= distance >= -right
        return (document[:, :, None] == document[:, None, :]) & window


@override(target=VarlenAttention.Config, description="mask, matmul, softmax", exact=True)
def reference_varlen_attention(config: VarlenAttention.Config) -> ReferenceAttention.Config:
    return derive(config, ReferenceAttention.Config)


@override(target=FlexAttention.Config, description="mask, matmul, softmax", exact=True)
def reference_flex_attention(config: FlexAttention.Config) -> ReferenceAttention.Config:
    return derive(config, ReferenceAttention.Config)
