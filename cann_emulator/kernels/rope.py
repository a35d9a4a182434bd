"""Rotary position embedding: y = x * cos + rotated(x) * sin.

`mode` numbers the ways to rotate: 0 half, 1 interleave, 2 quarter, 3 interleave-half. Rotation is linear, so the
gradient is dy * cos plus the transposed rotation of dy * sin.
"""

import torch

from cann_emulator.kernels.fused import find
from cann_emulator.kernels.precision import deliver, wide, wide_all
from cann_emulator.kernels.registry import kernel, refuse

_MODES = {"half": 0, "interleave": 1, "quarter": 2, "interleave-half": 3}


def _rotate(x: torch.Tensor, mode: int) -> torch.Tensor:
    """The rotated half turn of x: pairs (a, b) become (-b, a)."""
    if mode == 1:
        pairs = x.unflatten(-1, (-1, 2))
        return torch.stack((-pairs[..., 1], pairs[..., 0]), dim=-1).flatten(-2)
    parts = x.chunk(4 if mode == 2 else 2, dim=-1)
    return torch.cat([p for a, b in zip(parts[::2], parts[1::2], strict=True) for p in (-b, a)], dim=-1)


def _regroup(x: torch.Tensor, mode: int) -> torch.Tensor:
    """Mode 3 first brings the even elements before the odd ones."""
    return torch.cat((x[..., ::2], x[..., 1::2]), dim=-1) if mode == 3 else x


def _ungroup(x: torch.Tensor, mode: int) -> torch.Tensor:
    return torch.stack(x.chunk(2, dim=-1), dim=-1).flatten(-2) if mode == 3 else x


def _embed(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mode: int) -> torch.Tensor:
    if mode not in (0, 1, 2, 3):
        refuse(161002, f"mode is {mode}; it is 0 (half), 1 (interleave), 2 (quarter) or 3 (interleave-half)")
    if x.shape[-1] % (4 if mode == 2 else 2):
        refuse(161002, f"the head size {x.shape[-1]} is not a multiple of {4 if mode == 2 else 2}")
    _check_tables(x, cos, sin)
    grouped = _regroup(x, mode)
    if mode in (0, 3) and cos.shape[-1] == x.shape[-1]:  # no copy of the rotated tensor
        result = grouped * cos
        half = x.shape[-1] // 2
        result[..., :half].addcmul_(grouped[..., half:], sin[..., :half], value=-1)
        result[..., half:].addcmul_(grouped[..., :half], sin[..., half:])
        return result
    return torch.addcmul(grouped * cos, _rotate(grouped, mode), sin)


def _check_tables(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    if cos.shape != sin.shape:
        refuse(161002, f"cos has shape {list(cos.shape)}, sin {list(sin.shape)}; they must agree")
    fits = cos.dim() == x.dim() and all(c in (1, size) for c, size in zip(cos.shape, x.shape, strict=True))
    if not fits or cos.shape[-1] != x.shape[-1]:
        refuse(161002, f"cos and sin of shape {list(cos.shape)} do not broadcast to x of shape {list(x.shape)}")


@kernel("aclnnRotaryPositionEmbedding")
def rotary_position_embedding(x, cos, sin, mode, out):
    fused = find("rotary", x, cos, sin, out) if mode in (0, 1) and x.shape[-1] % 2 == 0 else None
    if fused and cos.dtype == sin.dtype == out.dtype == x.dtype:
        _check_tables(x, cos, sin)
        fused(x, cos, sin, mode == 1, out)
        return
    deliver(out, _embed(wide(x), wide(cos), wide(sin), mode))


@kernel("aclnnRotaryPositionEmbeddingV2")
def rotary_position_embedding_v2(x, cos, sin, mode, rotate, out):
    if rotate is None:
        return rotary_position_embedding(x, cos, sin, mode, out)
    x, cos, sin, rotate = wide_all(x, cos, sin, rotate)
    _check_tables(x, cos, sin)
    deliver(out, torch.addcmul(x * cos, x @ rotate, sin))
    return None


def _sum_to(value: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Sums over the dimensions in which a table of `shape` was broadcast."""
    over = [d for d, (size, wanted) in enumerate(zip(value.shape, shape, strict=True)) if size != wanted]
    return value.sum(over, keepdim=True) if over else value


@kernel("aclnnRotaryPositionEmbeddingGrad")
def rotary_position_embedding_grad(dy, cos, sin, x, mode, dx, dcos, dsin):
    fused = find("rotary_grad", dy, cos, sin, dx) if mode in (0, 1) and x is None and dy.shape[-1] % 2 == 0 else None
    if fused and cos.dtype == sin.dtype == dx.dtype == dy.dtype:
        _check_tables(dy, cos, sin)
        fused(dy, cos, sin, mode == 1, dx)
        return
    dy, cos, sin, x = wide_all(dy, cos, sin, x)
    _check_tables(dy, cos, sin)
    by_sin = dy * sin
    deliver(dx, _ungroup((dy * cos).sub_(_rotate(by_sin, 0 if mode == 3 else mode)), mode))
    if x is not None:
        grouped = _regroup(x, mode)
        deliver(dcos, _sum_to(dy * grouped, cos.shape))
        deliver(dsin, _sum_to(dy * _rotate(grouped, 0 if mode == 3 else mode), sin.shape))


def _apply_pair(query, key, cos, sin, layout, mode) -> None:
    # Layouts: 1 BSND, 2 SBND, 3 BNSD, 4 TND. The tables have a head dimension of 1 in the same place.
    if layout not in (1, 2, 3, 4):
        refuse(161002, f"layout is {layout}; it is 1 (BSND), 2 (SBND), 3 (BNSD) or 4 (TND)")
    cos, sin = wide_all(cos, sin)
    size = cos.shape[-1]
    for tensor in (query, key):  # a table shorter than the head rotates its front part
        part = tensor[..., :size]
        part.copy_(_embed(wide(part), cos, sin, mode))


@kernel("aclnnApplyRotaryPosEmb")
def apply_rotary_pos_emb(query, key, cos, sin, layout):
    _apply_pair(query, key, cos, sin, layout, 0)


@kernel("aclnnApplyRotaryPosEmbV2")
def apply_rotary_pos_emb_v2(query, key, cos, sin, layout, rotary_mode):
    mode = _MODES.get(rotary_mode or "half")
    if mode is None or mode == 3:
        refuse(161002, f"rotaryMode is {rotary_mode!r}; it is half, quarter or interleave")
    _apply_pair(query, key, cos, sin, layout, mode)


@kernel("aclnnInterleaveRope")
def interleave_rope(x, cos, sin, y):
    deliver(y, _embed(wide(x), wide(cos), wide(sin), 3))


def _rope_from_cache(positions, query, key, cache, sections, head_size, neox, cache_mode, query_out, key_out) -> None:
    if cache_mode:
        refuse(561000, f"cacheMode {cache_mode} is not implemented")
    size = cache.shape[-1]
    tables = wide(cache)[positions.long()]
    if sections and any(sections):  # three rows of positions, each for a section of the frequencies
        cos, sin = (
            torch.cat([part[i] for i, part in enumerate(half.split(list(sections), -1))], -1)
            for half in tables.chunk(2, -1)
        )
    else:
        cos, sin = tables.chunk(2, -1)
    mode = 0 if neox else 1
    cos, sin = ((torch.cat((t, t), -1) if neox else t.repeat_interleave(2, -1)).unsqueeze(-2) for t in (cos, sin))
    for source, target in ((query, query_out), (key, key_out)):
        heads = wide(source).unflatten(-1, (-1, head_size)).clone()
        heads[..., :size] = _embed(heads[..., :size], cos, sin, mode)
        deliver(target, heads.flatten(-2))


@kernel("aclnnRopeWithSinCosCache")
def rope_with_sin_cos_cache(positions, query, key, cache, sections, head_size, neox, query_out, key_out):
    _rope_from_cache(positions, query, key, cache, sections, head_size, neox, 0, query_out, key_out)


@kernel("aclnnRopeWithSinCosCacheV2")
def rope_with_sin_cos_cache_v2(positions, query, key, cache, sections, head_size, neox, mode, query_out, key_out):
    _rope_from_cache(positions, query, key, cache, sections, head_size, neox, mode, query_out, key_out)
