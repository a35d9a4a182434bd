"""Quantisation of activations to int8, uint8, int32 and float8, and products of quantised matrices.

Rounding is to the nearest, ties to even; what exceeds the target's range is clamped to it.
"""

import torch

from cann_emulator.kernels.precision import deliver, wide, wide_all
from cann_emulator.kernels.registry import kernel, refuse

_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_ROUNDING = {"round": torch.round, "rint": torch.round, "floor": torch.floor, "ceil": torch.ceil, "trunc": torch.trunc}


def _target(output: torch.Tensor) -> tuple[float, float]:
    """The range of an output's dtype."""
    if output.dtype in _FLOAT8:
        return torch.finfo(output.dtype).min, torch.finfo(output.dtype).max
    if output.dtype in (torch.int8, torch.uint8, torch.int32):
        return torch.iinfo(output.dtype).min, torch.iinfo(output.dtype).max
    return refuse(561000, f"quantisation to {output.dtype} is not implemented")


def write_quantised(output: torch.Tensor, values: torch.Tensor, mode: str | None = "round") -> None:
    """Rounds values into the range of the output's dtype."""
    low, high = _target(output)
    rounded = values if output.dtype in _FLOAT8 else _rounder(mode)(values)
    deliver(output, rounded.clamp(low, high))


def quantise_rows(values: torch.Tensor, y: torch.Tensor, scale: torch.Tensor) -> None:
    """Quantises every row by its own largest magnitude."""
    factor = values.abs().amax(-1, keepdim=True) / _target(y)[1]
    write_quantised(y, torch.where(factor == 0, 0.0, values / factor))
    deliver(scale, factor)


def _rounder(mode: str | None):
    function = _ROUNDING.get(mode or "round")
    if function is None:
        refuse(161002, f"roundMode is {mode!r}; it is one of {', '.join(_ROUNDING)}")
    return function


def _along(value: torch.Tensor | None, x: torch.Tensor, axis: int) -> torch.Tensor | None:
    """A value per element of an axis, or one for all, shaped to broadcast over x."""
    if value is None:
        return None
    if value.numel() == 1:
        return wide(value).reshape([1] * x.dim())
    if value.dim() == x.dim():
        return wide(value)
    shape = [1] * x.dim()
    shape[axis] = -1
    return wide(value).reshape(shape)


def _ascend_quant(x, scale, offset, sqrt_mode, round_mode, axis, y) -> None:
    scale, offset = _along(scale, x, axis), _along(offset, x, axis)
    values = wide(x) * scale
    if sqrt_mode:
        values = values * scale
    write_quantised(y, values if offset is None else values + offset, round_mode)


@kernel("aclnnAscendQuant")
def ascend_quant(x, scale, offset, sqrt_mode, round_mode, dtype, y):
    _ascend_quant(x, scale, offset, sqrt_mode, round_mode, -1, y)


@kernel("aclnnAscendQuantV3")
def ascend_quant_v3(x, scale, offset, sqrt_mode, round_mode, dtype, axis, y):
    _ascend_quant(x, scale, offset, sqrt_mode, round_mode, axis, y)


@kernel("aclnnAscendAntiQuant")
def ascend_anti_quant(x, scale, offset, dtype, sqrt_mode, y):
    if x.dtype != torch.int8:
        refuse(561000, f"dequantisation of {x.dtype} is not implemented")
    scale, offset = _along(scale, x, -1), _along(offset, x, -1)
    values = (x.float() if offset is None else x.float() + offset) * scale
    deliver(y, values * scale if sqrt_mode else values)


@kernel("aclnnQuantize")
def quantize(x, scales, zero_points, dtype, axis, out):
    scales, zero_points = _along(scales, x, axis), _along(zero_points, x, axis)
    values = wide(x) / scales
    write_quantised(out, values if zero_points is None else torch.round(values) + zero_points)


def _smoothed(x: torch.Tensor, smooth: torch.Tensor | None, groups: torch.Tensor | None) -> torch.Tensor:
    """x times the smoothing scales: one row of them for all tokens, or one for each group of rows."""
    values = wide(x)
    if smooth is None:
        return values
    if groups is None:
        return values * wide(smooth)
    rows = values.reshape(-1, values.shape[-1])
    counts = torch.diff(groups.long(), prepend=torch.zeros(1, dtype=torch.int64))
    factors = wide(smooth).repeat_interleave(counts, 0)
    return torch.cat((rows[: factors.shape[0]] * factors, rows[factors.shape[0] :])).view(values.shape)


def _dynamic_quant(x, smooth, groups, symmetric, mode, limit, y, scale, offset) -> None:
    values = _smoothed(x, smooth, groups)
    low, high = _target(y)
    high = limit or high
    dims = {"pertoken": [-1], "perchannel": [-2], "pertensor": list(range(values.dim()))}.get(mode or "pertoken")
    if dims is None:
        refuse(161002, f"quantMode is {mode!r}; it is pertoken, perchannel or pertensor")
    if symmetric:
        factor = values.abs().amax(dims, keepdim=True) / high
        shift = None
    else:
        top, bottom = values.amax(dims, keepdim=True), values.amin(dims, keepdim=True)
        factor = (top - bottom) / (high - low)
        shift = high - top / factor
    scaled = torch.where(factor == 0, 0.0, values / factor)
    write_quantised(y, scaled if shift is None else scaled + shift)
    deliver(scale, factor)
    deliver(offset, shift)


@kernel("aclnnDynamicQuant")
def dynamic_quant(x, smooth, y, scale):
    _dynamic_quant(x, smooth, None, True, "pertoken", 0, y, scale, None)


@kernel("aclnnDynamicQuantV2")
def dynamic_quant_v2(x, smooth, groups, dtype, y, scale, offset):
    _dynamic_quant(x, smooth, groups, offset is None, "pertoken", 0, y, scale, offset)


@kernel("aclnnDynamicQuantV3")
def dynamic_quant_v3(x, smooth, groups, dtype, symmetric, mode, y, scale, offset):
    _dynamic_quant(x, smooth, groups, symmetric, mode, 0, y, scale, offset)


@kernel("aclnnDynamicQuantV4")
def dynamic_quant_v4(x, smooth, groups, dtype, symmetric, mode, limit, y, scale, offset):
    _dynamic_quant(x, smooth, groups, symmetric, mode, limit, y, scale, offset)


@kernel("aclnnFakeQuantPerTensorAffineCachemask")
def fake_quant_per_tensor(x, scale, zero_point, enabled, low, high, out, mask):
    values, inside = torch.ops.aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
        wide(x), wide(scale), zero_point.int(), torch.tensor([int(enabled)], dtype=torch.int64), low, high
    )
    deliver(out, values)
    deliver(mask, inside)


@kernel("aclnnFakeQuantPerChannelAffineCachemask")
def fake_quant_per_channel(x, scale, zero_point, axis, low, high, out, mask):
    values, inside = torch.ops.aten.fake_quantize_per_channel_affine_cachemask(
        wide(x), wide(scale), zero_point.int(), axis, low, high
    )
    deliver(out, values)
    deliver(mask, inside)


def _trans_quant_param(scale, offset, out) -> None:
    """A scale as the fixpipe unit takes it: 19 bits of a float32, a flag, and 9 bits of an integer offset."""
    bits = (scale.float().view(torch.int32).to(torch.int64) & 0xFFFFE000) | (1 << 46)
    if offset is not None:
        shift = torch.round(offset.float()).clamp(-256, 255).to(torch.int64) & 0x1FF
        bits = (bits & 0x4000FFFFFFFF) | (shift << 37)
    out.view(torch.int64).copy_(bits.expand(out.shape))


@kernel("aclnnTransQuantParamV2")
def trans_quant_param_v2(scale, offset, out):
    _trans_quant_param(scale, offset, out)


@kernel("aclnnTransQuantParamV3")
def trans_quant_param_v3(scale, offset, round_mode, out):
    if round_mode:
        refuse(561000, "roundMode 1 is not implemented")
    _trans_quant_param(scale, offset, out)


def plain_scale(scale: torch.Tensor) -> torch.Tensor:
    """A scale as numbers; the 64-bit form holds a float32 in its lower half."""
    if scale.dtype in (torch.int64, torch.uint64):
        return scale.contiguous().view(torch.int32)[..., ::2].contiguous().view(torch.float32)
    return wide(scale)


def _quant_matmul(x1, x2, x1_scale, x2_scale, y_scale, offsets, bias, transpose_x1, transpose_x2, group_size, out):
    if any(value is not None and value.numel() for value in (y_scale, *offsets)) or group_size:
        refuse(561000, "a quantised product with yScale, offsets or groupSize is not implemented")
    if x1.dtype != x2.dtype or x1.dtype not in (torch.int8, *_FLOAT8):
        refuse(561000, f"a quantised product of {x1.dtype} and {x2.dtype} is not implemented")
    left, right = (t.mT if flag else t for t, flag in ((x1, transpose_x1), (x2, transpose_x2)))
    if left.shape[-1] != right.shape[-2]:
        refuse(161002, f"x1 has {left.shape[-1]} columns, x2 {right.shape[-2]} rows; they must agree")
    result = left.double() @ right.double()  # exact: fp64 holds every sum that int32 holds
    if bias is not None and bias.dtype == torch.int32:
        result, bias = result + bias.double(), None
    if out.dtype == torch.int32:
        deliver(out, result)
        return
    if x2_scale is not None:
        result = result * plain_scale(x2_scale).double()
    if x1_scale is not None:
        factor = wide(x1_scale).double()
        result = result * (factor.unsqueeze(-1) if factor.dim() == 1 and factor.numel() > 1 else factor)
    result = result if bias is None else result + bias.double()
    if out.dtype in (torch.int8, *_FLOAT8):
        write_quantised(out, result)
    else:
        deliver(out, result)


@kernel("aclnnQuantMatmulV5", "aclnnQuantMatmulWeightNz")
def quant_matmul(x1, x2, x1_scale, x2_scale, y_scale, x1_offset, x2_offset, y_offset, bias, transpose_x1, transpose_x2,
                 group_size, out):  # fmt: skip
    offsets = (x1_offset, x2_offset, y_offset)
    _quant_matmul(x1, x2, x1_scale, x2_scale, y_scale, offsets, bias, transpose_x1, transpose_x2, group_size, out)


def _weight_quant_matmul(x, weight, scale, offset, quant_scale, quant_offset, bias, group_size, y) -> None:
    if weight.dtype != torch.int8:
        refuse(561000, f"a weight of {weight.dtype} is not implemented; int8 is")
    x, scale, offset, bias = wide_all(x, scale, offset, bias)
    values = weight.float()
    if group_size:
        grouped = values.unflatten(0, (-1, group_size))
        grouped = grouped if offset is None else grouped + offset.unsqueeze(1)
        values = (grouped * scale.unsqueeze(1)).flatten(0, 1)
    else:
        values = (values if offset is None else values + offset) * scale
    result = x @ values
    result = result if bias is None else result + bias
    if quant_scale is not None:
        result = result * plain_scale(quant_scale)
        write_quantised(y, result if quant_offset is None else result + wide(quant_offset))
    else:
        deliver(y, result)


@kernel("aclnnWeightQuantBatchMatmulV2", "aclnnWeightQuantBatchMatmulNz")
def weight_quant_matmul(x, weight, scale, offset, quant_scale, quant_offset, bias, group_size, y):
    _weight_quant_matmul(x, weight, scale, offset, quant_scale, quant_offset, bias, group_size, y)


@kernel("aclnnWeightQuantBatchMatmulV3")
def weight_quant_matmul_v3(x, weight, scale, offset, quant_scale, quant_offset, bias, group_size, precise, y):
    _weight_quant_matmul(x, weight, scale, offset, quant_scale, quant_offset, bias, group_size, y)
