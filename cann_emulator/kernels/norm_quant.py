"""RMS norm and gated units that quantise what they return."""

import torch
import torch.nn.functional as F

from cann_emulator.kernels import registry
from cann_emulator.kernels.norm import rms_normalised
from cann_emulator.kernels.precision import deliver, wide
from cann_emulator.kernels.quantisation import quantise_rows, write_quantised
from cann_emulator.kernels.registry import kernel, refuse


def _norm(x: torch.Tensor, gamma: torch.Tensor, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm of x, 1 / rms) in fp32, both of x's rank."""
    result, rstd = rms_normalised(x, gamma, epsilon)
    return result.view(x.shape), rstd


def _static(y, values, scale, zero_point, divide: bool) -> None:
    """Quantises with a given scale."""
    if y is None or scale is None:
        return
    scaled = values / wide(scale) if divide else values * wide(scale)
    write_quantised(y, scaled if zero_point is None else scaled + wide(zero_point))


@kernel("aclnnRmsNormQuant")
def rms_norm_quant(x, gamma, beta, scale, offset, epsilon, y):
    values, _ = _norm(wide(x), wide(gamma), epsilon)
    _static(y, values if beta is None else values + wide(beta), scale, offset, True)


@kernel("aclnnRmsNormQuantV3")
def rms_norm_quant_v3(x, gamma, scale, offset, beta, epsilon, divide, want_rstd, y, rstd):
    values, statistic = _norm(wide(x), wide(gamma), epsilon)
    _static(y, values if beta is None else values + wide(beta), scale, offset, divide)
    if want_rstd:
        deliver(rstd, statistic)


# What A2 and A3 have binaries for: dtypes of x, of the scales and of the zero points.
_BINARIES = (
    (torch.float16, torch.float32, torch.int32),
    (torch.bfloat16, torch.bfloat16, torch.bfloat16),
)


def _check_binary(x: torch.Tensor, scales, zero_points) -> None:
    if registry.product() not in ("Atlas A2", "Atlas A3"):
        return
    for scale, zero_point in zip(scales, zero_points, strict=True):
        given = [None if tensor is None else tensor.dtype for tensor in (scale, zero_point)]
        fits = (
            x.dtype == of_x and given[0] in (None, of_scale) and given[1] in (None, of_zero)
            for of_x, of_scale, of_zero in _BINARIES
        )
        if not any(fits):
            refuse(
                561000,
                f"AddRmsNormQuant has no kernel binary for x {x.dtype}, scales {given[0]}, zero points {given[1]}; it"
                " has them for float16, float32, int32 and for bfloat16 throughout",
            )


def _add_rms_norm_quant(x1, x2, gamma, scales, zero_points, beta, epsilon, divide, outputs, x, plain) -> None:
    _check_binary(x1, scales, zero_points)
    total = wide(x1) + wide(x2)
    deliver(x, total)
    values, _ = _norm(total, wide(gamma), epsilon)
    deliver(plain, values)
    values = values if beta is None else values + wide(beta)
    for y, scale, zero_point in zip(outputs, scales, zero_points, strict=True):
        _static(y, values, scale, zero_point, divide)


@kernel("aclnnAddRmsNormQuant")
def add_rms_norm_quant(x1, x2, gamma, scales1, scales2, zero1, zero2, axis, epsilon, divide, y1, y2, x):
    _add_rms_norm_quant(x1, x2, gamma, (scales1, scales2), (zero1, zero2), None, epsilon, divide, (y1, y2), x, None)


@kernel("aclnnAddRmsNormQuantV2")
def add_rms_norm_quant_v2(
    x1, x2, gamma, scales1, scales2, zero1, zero2, beta, axis, epsilon, divide, y1, y2, x, plain
):  # fmt: skip
    _add_rms_norm_quant(x1, x2, gamma, (scales1, scales2), (zero1, zero2), beta, epsilon, divide, (y1, y2), x, plain)


@kernel("aclnnAddRmsNormDynamicQuantV2")
def add_rms_norm_dynamic_quant(x1, x2, gamma, smooth1, smooth2, beta, epsilon, mask, y1, y2, x, scale1, scale2):
    total = wide(x1) + wide(x2)
    deliver(x, total)
    values, _ = _norm(total, wide(gamma), epsilon)
    values = values if beta is None else values + wide(beta)
    wanted = mask or [True, smooth1 is not None and smooth2 is not None]
    for want, smooth, y, scale in zip(wanted, (smooth1, smooth2), (y1, y2), (scale1, scale2), strict=True):
        if want:
            quantise_rows(values if smooth is None else values * wide(smooth), y, scale)


@kernel("aclnnGeluQuant")
def gelu_quant(x, scale, offset, approximate, mode, round_mode, dtype, y, out_scale):
    values = F.gelu(wide(x), approximate=approximate or "none")
    values = values if scale is None else values * wide(scale)
    if mode == "static":
        write_quantised(y, values if offset is None else values + wide(offset), round_mode)
    elif mode == "dynamic":
        quantise_rows(values, y, out_scale)
    else:
        refuse(161002, f"quantMode is {mode!r}; it is static or dynamic")


def _group_rows(groups: torch.Tensor | None, list_type: int, rows: int) -> list[tuple[int, int]]:
    """(begin, end) of every group of rows; all rows where there are no groups."""
    if groups is None:
        return [(0, rows)]
    ends = groups.tolist() if list_type == 0 else torch.cumsum(groups, 0).tolist()
    return list(zip([0, *ends[:-1]], ends, strict=True))


@kernel("aclnnSwiGluQuantV2")
def swiglu_quant(x, smooth, offsets, groups, activate_left, mode, list_type, dtype, y, scale):
    left, right = wide(x).chunk(2, -1)
    active, other = (left, right) if activate_left else (right, left)
    values = (F.silu(active) * other).reshape(-1, active.shape[-1])
    target = y.view(-1, y.shape[-1])
    for i, (begin, end) in enumerate(_group_rows(groups, list_type, values.shape[0])):
        part = values[begin:end]
        if smooth is not None:
            part = part * wide(smooth)[i]
        if mode == "dynamic" or not mode:
            factor = torch.empty(part.shape[0], dtype=torch.float32)
            quantise_rows(part, target[begin:end], factor)
            deliver(scale.view(-1)[begin:end], factor)
        elif mode == "static":
            write_quantised(target[begin:end], part if offsets is None else part + wide(offsets)[i])
        else:
            refuse(161002, f"quantMode is {mode!r}; it is static or dynamic")


@kernel("aclnnMaskedSoftmaxWithRelPosBias")
def masked_softmax_with_rel_pos_bias(x, mask, bias, scale, precision, out):
    scores = wide(x) * scale + wide(bias)
    deliver(out, torch.softmax(scores if mask is None else scores + wide(mask), -1))
