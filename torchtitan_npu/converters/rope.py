"""Rotary position embedding on `npu_rotary_mul`, with real tables.

Replaces: `ComplexRoPE.Config` (adjacent pairs) and `CosSinRoPE.Config` (halves). Operator: torch_npu's
`npu_rotary_mul` (aclnnRotaryPositionEmbedding and its gradient), modes `interleave` and `half`. Constraints: complex
tensors cannot be indexed on NPU and float64 is not computed there, so the table is made on the CPU in float32 and kept
as cosines and sines; table and input share a dtype, so in bfloat16 the table is rounded, as Hugging Face's models do.
The replacements subclass the Config they replace, because upstream's HF adapters check that class.
Saves: complex multiplication (or slices, negation, concatenation and four multiplications), and two casts each way.

`reference_complex_rope` is upstream's formula written out on real tables, in float32, for preset `reference`.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torchtitan.config.override import derive, override
from torchtitan.models.common.rope import ComplexRoPE, CosSinRoPE, RoPE


class _RealTable(RoPE):
    """A table of shape (positions, 2, dim): the cosine and the sine that each element is multiplied with."""

    mode: ClassVar[str]

    def _table(self) -> torch.Tensor:
        raise NotImplementedError

    def _precompute_cache(self) -> torch.Tensor:
        target = torch.get_default_device()
        if target.type == "meta":
            return torch.empty(self.config.max_seq_len, 2, self.config.dim, dtype=torch.float32)
        with torch.device("cpu"):
            table = self._table()
        return table.to(target)

    def _reshape_cache(self, query: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
        """The table's rows for every token, (1, tokens, 2, dim), in the query's dtype."""
        batch, length = query.shape[:2]
        if positions is None:
            rows = self.cache[:length].repeat(batch, 1, 1)
        else:
            rows = F.embedding(positions.expand(batch, -1).flatten(), self.cache.flatten(1)).unflatten(-1, (2, -1))
        return rows.to(query.dtype)[None]

    @classmethod
    def _rotate(cls, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        # The batch is folded into the sequence: the operator then broadcasts one table row over the heads only.
        flat = x.flatten(0, 1)[None]
        return torch.ops.npu.npu_rotary_mul(flat, cos, sin, cls.mode).view_as(x)

    @classmethod
    def apply_rotary_emb(
        cls, query: torch.Tensor, key: torch.Tensor, rope_cache: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = rope_cache[:, :, :1], rope_cache[:, :, 1:]
        return cls._rotate(query, cos, sin), cls._rotate(key, cos, sin)


class NPUComplexRoPE(_RealTable, ComplexRoPE):
    mode = "interleave"

    @dataclass(kw_only=True, slots=True)
    class Config(ComplexRoPE.Config):
        pass

    def _table(self) -> torch.Tensor:
        turns = ComplexRoPE._precompute_cache(self)
        return torch.stack((turns.real, turns.imag), dim=1).repeat_interleave(2, dim=-1).contiguous()


class NPUCosSinRoPE(_RealTable, CosSinRoPE):
    mode = "half"

    @dataclass(kw_only=True, slots=True)
    class Config(CosSinRoPE.Config):
        pass

    def _table(self) -> torch.Tensor:
        return CosSinRoPE._precompute_cache(self).unflatten(-1, (2, -1)).contiguous()


class ReferenceComplexRoPE(NPUComplexRoPE):
    """(a + bi)(cos + i sin) on the real and imaginary parts of adjacent pairs, in float32."""

    @dataclass(kw_only=True, slots=True)
    class Config(ComplexRoPE.Config):
        pass

    def _reshape_cache(self, query: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
        return super()._reshape_cache(query.float(), positions)

    @classmethod
    def _rotate(cls, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        cos, sin = cos[..., ::2].view(*x.shape[:2], 1, -1), sin[..., ::2].view(*x.shape[:2], 1, -1)
        real, imaginary = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        turned = torch.stack((real * cos - imaginary * sin, real * sin + imaginary * cos), dim=-1)
        return turned.flatten(-2).type_as(x)


@override(target=ComplexRoPE.Config, description="npu_rotary_mul, interleave", exact=True)
def complex_rope(config: ComplexRoPE.Config) -> NPUComplexRoPE.Config:
    return derive(config, NPUComplexRoPE.Config)


@override(target=CosSinRoPE.Config, description="npu_rotary_mul, half", exact=True)
def cos_sin_rope(config: CosSinRoPE.Config) -> NPUCosSinRoPE.Config:
    return derive(config, NPUCosSinRoPE.Config)


@override(target=ComplexRoPE.Config, description="upstream's formula on real tables", exact=True)
def reference_complex_rope(config: ComplexRoPE.Config) -> ReferenceComplexRoPE.Config:
    return derive(config, ReferenceComplexRoPE.Config)
