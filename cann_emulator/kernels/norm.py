"""Normalisation: RMS, layer, deep and group norms with their fused neighbours.

Statistics and sums are fp32 (the operators' rstd and mean outputs are fp32 too). A norm runs over the trailing
dimensions that gamma has.
"""

import torch

from cann_emulator.kernels.fused import find
from cann_emulator.kernels.precision import deliver, wide, wide_all
from cann_emulator.kernels.registry import kernel, refuse


def _rows(x: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
    """x as a matrix whose rows are normalised."""
    if x.shape[x.dim() - gamma.dim() :] != gamma.shape:
        refuse(161002, f"gamma has shape {list(gamma.shape)}, which is not how x of shape {list(x.shape)} ends")
    return x.reshape(-1, gamma.numel()) if gamma.numel() else x.reshape(0, 0)


def _over_rms(x: torch.Tensor, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(x / rms, 1 / rms) by row."""
    rstd = torch.rsqrt(torch.linalg.vecdot(x, x).div_(max(x.shape[-1], 1)).add_(epsilon)).unsqueeze(-1)
    return x * rstd, rstd


def rms_normalised(x: torch.Tensor, gamma: torch.Tensor, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    normalised, rstd = _over_rms(_rows(x, gamma), epsilon)
    return normalised.mul_(gamma.reshape(-1)), rstd


@kernel("aclnnRmsNorm")
def rms_norm(x, gamma, epsilon, y, rstd):
    fused = find("rms_norm", x, gamma, y, rstd)
    if fused and gamma.dtype in (x.dtype, torch.float32) and y.dtype == x.dtype:
        _rows(x, gamma)
        fused(x, gamma, epsilon, y, rstd)
        return
    result, scale = rms_normalised(wide(x), wide(gamma), epsilon)
    deliver(y, result)
    deliver(rstd, scale)


@kernel("aclnnGemmaRmsNorm")
def gemma_rms_norm(x, gamma, epsilon, y, rstd):
    result, scale = rms_normalised(wide(x), wide(gamma) + 1, epsilon)
    deliver(y, result)
    deliver(rstd, scale)


@kernel("aclnnRmsNormGrad")
def rms_norm_grad(dy, x, rstd, gamma, dx, dgamma):
    fused = find("rms_norm_grad", x, dy, rstd, gamma, dx, dgamma)
    if fused and dy.dtype == dx.dtype == x.dtype and gamma.dtype in (x.dtype, torch.float32):
        _rows(x, gamma)
        fused(dy, x, rstd, gamma, dx, dgamma)
        return
    gamma_row = wide(gamma)
    grad, rows = _rows(wide(dy), gamma_row), _rows(wide(x), gamma_row)
    normalised = rows * rstd.reshape(-1, 1)
    deliver(dgamma, torch.linalg.vecdot(grad, normalised, dim=0))
    scaled = grad * gamma_row.reshape(-1)
    slope = torch.linalg.vecdot(scaled, normalised).div_(max(rows.shape[-1], 1)).unsqueeze(-1)
    deliver(dx, torch.addcmul(scaled, normalised, slope, value=-1).mul_(rstd.reshape(-1, 1)))


@kernel("aclnnAddRmsNorm")
def add_rms_norm(x1, x2, gamma, epsilon, y, rstd, x):
    total = wide(x1) + wide(x2)
    deliver(x, total)
    result, scale = rms_normalised(total, wide(gamma), epsilon)
    deliver(y, result)
    deliver(rstd, scale)


@kernel("aclnnInplaceAddRmsNorm")
def inplace_add_rms_norm(x1, x2, gamma, epsilon, rstd):
    add_rms_norm(x1, x2, gamma, epsilon, x1, rstd, x2)


@kernel("aclnnAddRmsNormCast")
def add_rms_norm_cast(x1, x2, gamma, epsilon, y1, y2, rstd, x):
    total = wide(x1) + wide(x2)
    deliver(x, total)
    result, scale = rms_normalised(total, wide(gamma), epsilon)
    deliver(y1, result)
    deliver(y2, result)
    deliver(rstd, scale)


def _layer_norm(x, gamma, beta, epsilon, y, mean, rstd):
    results = torch.native_layer_norm(x, list(gamma.shape), gamma, beta, epsilon)
    for output, result in zip((y, mean, rstd), results, strict=True):
        deliver(output, result)


def _layer_norm_grad(dy, x, gamma, mean, rstd, dgamma, dbeta):
    dx, dgamma_result, dbeta_result = torch.ops.aten.native_layer_norm_backward(
        dy, x, list(gamma.shape), mean, rstd, gamma, torch.zeros_like(gamma), [True, True, True]
    )
    deliver(dgamma, dgamma_result)
    deliver(dbeta, dbeta_result)
    return dx


def _statistic(value: torch.Tensor, x: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
    """A mean or rstd with the dimensions ATen expects: x's, those of gamma being 1."""
    return value.reshape(*x.shape[: x.dim() - gamma.dim()], *[1] * gamma.dim())


@kernel("aclnnAddLayerNorm")
def add_layer_norm(x1, x2, gamma, beta, bias, epsilon, additional_output, y, mean, rstd, x):
    x1, x2, gamma, beta, bias = wide_all(x1, x2, gamma, beta, bias)
    total = x1 + x2 if bias is None else x1 + x2 + bias
    if additional_output:
        deliver(x, total)
    _layer_norm(total, gamma, beta, epsilon, y, mean, rstd)


@kernel("aclnnAddLayerNormGrad")
def add_layer_norm_grad(dy, x1, x2, rstd, mean, gamma, dsum, dx, dgamma, dbeta):
    dy, x1, x2, gamma, dsum = wide_all(dy, x1, x2, gamma, dsum)
    total = x1 + x2
    grad = _layer_norm_grad(
        dy, total, gamma, _statistic(mean, total, gamma), _statistic(rstd, total, gamma), dgamma, dbeta
    )
    deliver(dx, grad if dsum is None else grad + dsum)


@kernel("aclnnDeepNorm")
def deep_norm(x, gx, beta, gamma, alpha, epsilon, mean, rstd, y):
    x, gx, beta, gamma = wide_all(x, gx, beta, gamma)
    _layer_norm(torch.add(gx, x, alpha=alpha), gamma, beta, epsilon, y, mean, rstd)


@kernel("aclnnDeepNormGrad")
def deep_norm_grad(dy, x, gx, gamma, mean, rstd, alpha, dx, dgx, dbeta, dgamma):
    dy, x, gx, gamma = wide_all(dy, x, gx, gamma)
    total = torch.add(gx, x, alpha=alpha)
    grad = _layer_norm_grad(
        dy, total, gamma, _statistic(mean, total, gamma), _statistic(rstd, total, gamma), dgamma, dbeta
    )
    deliver(dgx, grad)
    deliver(dx, grad * alpha)


def _group_norm(x, gamma, beta, groups, epsilon, mean, rstd):
    samples, channels = x.shape[:2]
    size = x[0, 0].numel() if x.numel() else 0
    result, mean_result, rstd_result = torch.native_group_norm(
        x.contiguous(), gamma, beta, samples, channels, size, groups, epsilon
    )
    deliver(mean, mean_result)
    deliver(rstd, rstd_result)
    return result


@kernel("aclnnGroupNormSilu")
def group_norm_silu(x, gamma, beta, groups, epsilon, y, mean, rstd):
    x, gamma, beta = wide_all(x, gamma, beta)
    deliver(y, torch.nn.functional.silu(_group_norm(x, gamma, beta, groups, epsilon, mean, rstd)))


@kernel("aclnnGroupNormSwish")
def group_norm_swish(x, gamma, beta, groups, data_format, epsilon, activate, scale, y, mean, rstd):
    x, gamma, beta = wide_all(x, gamma, beta)
    result = _group_norm(x, gamma, beta, groups, epsilon, mean, rstd)
    deliver(y, result * torch.sigmoid(result * scale) if activate else result)


@kernel("aclnnGroupNormSwishGrad")
def group_norm_swish_grad(
    dy, mean, rstd, x, gamma, beta, groups, data_format, scale, need_dgamma, need_dbeta, dx, dgamma, dbeta
):
    dy, mean, rstd, x, gamma, beta = wide_all(dy, mean, rstd, x, gamma, beta)
    samples, channels = x.shape[:2]
    grouped = x.reshape(samples, groups, -1)
    normalised = (grouped - mean.reshape(samples, groups, 1)) * rstd.reshape(samples, groups, 1)
    by_channel = [1, channels] + [1] * (x.dim() - 2)
    value = normalised.reshape(x.shape) * gamma.reshape(by_channel) + beta.reshape(by_channel)
    gate = torch.sigmoid(scale * value)
    grad = dy * gate * (1 + scale * value * (1 - gate))
    results = torch.ops.aten.native_group_norm_backward(
        grad.contiguous(), x.contiguous(), mean.reshape(samples, groups), rstd.reshape(samples, groups), gamma,
        samples, channels, x.numel() // max(samples * channels, 1), groups, [True, need_dgamma, need_dbeta],
    )  # fmt: skip
    for output, result in zip((dx, dgamma, dbeta), results, strict=True):
        deliver(output, result)
