"""Batch normalisation and the pieces that its synchronised form is made of."""

import torch

from cann_emulator.kernels.precision import deliver, wide, wide_all
from cann_emulator.kernels.registry import kernel


def _channels(value: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A value per channel, shaped to broadcast over x (channels are dimension 1)."""
    return value.reshape([1, -1] + [1] * (x.dim() - 2))


def _others(x: torch.Tensor) -> list[int]:
    """All dimensions but that of the channels."""
    return [d for d in range(x.dim()) if d != 1]


@kernel("aclnnBatchNorm")
def batch_norm(x, weight, bias, running_mean, running_var, training, momentum, epsilon, y, save_mean, save_invstd):
    statistics = wide_all(running_mean, running_var)
    result, mean, invstd = torch.native_batch_norm(*wide_all(x, weight, bias), *statistics, training, momentum, epsilon)
    deliver(y, result)
    if training:
        deliver(save_mean, mean)
        deliver(save_invstd, invstd)
        for running, value in zip((running_mean, running_var), statistics, strict=True):
            if running is not value:  # a half was updated in its fp32 copy
                running.copy_(value)
    elif save_mean is not None and save_mean.numel():
        deliver(save_mean, running_mean)
        deliver(save_invstd, None if running_var is None else torch.rsqrt(wide(running_var) + epsilon))


@kernel("aclnnBatchNormBackward")
def batch_norm_backward(
    grad, x, weight, running_mean, running_var, save_mean, save_invstd, training, epsilon, mask, dx, dweight, dbias
):
    results = torch.ops.aten.native_batch_norm_backward(
        *wide_all(grad, x, weight, running_mean, running_var, save_mean, save_invstd), training, epsilon, mask
    )
    for output, result in zip((dx, dweight, dbias), results, strict=True):
        deliver(output, result)


@kernel("aclnnBatchNormStats")
def batch_norm_stats(x, epsilon, mean, invstd):
    values = wide(x)
    deliver(mean, values.mean(_others(values)))
    deliver(invstd, torch.rsqrt(values.var(_others(values), correction=0) + epsilon))


@kernel("aclnnBatchNormElemt")
def batch_norm_elemt(x, weight, bias, mean, invstd, epsilon, y):
    x, weight, bias, mean, invstd = wide_all(x, weight, bias, mean, invstd)
    result = (x - _channels(mean, x)) * _channels(invstd, x)
    if weight is not None:
        result = result * _channels(weight, x)
    deliver(y, result if bias is None else result + _channels(bias, x))


@kernel("aclnnBatchNormElemtBackward")
def batch_norm_elemt_backward(grad, x, mean, invstd, weight, sum_dy, sum_dy_xmu, counter, dx):
    grad, x, mean, invstd, weight, sum_dy, sum_dy_xmu = wide_all(grad, x, mean, invstd, weight, sum_dy, sum_dy_xmu)
    count = counter.sum().to(grad.dtype)
    centred = x - _channels(mean, x)
    slope = _channels(sum_dy_xmu / count * invstd * invstd, x)
    result = (grad - _channels(sum_dy / count, x) - centred * slope) * _channels(invstd, x)
    deliver(dx, result if weight is None else result * _channels(weight, x))


@kernel("aclnnBatchNormReduce")
def batch_norm_reduce(x, total, square_total):
    values = wide(x)
    deliver(total, values.sum(_others(values)))
    deliver(square_total, values.square().sum(_others(values)))


@kernel("aclnnBatchNormReduceBackward")
def batch_norm_reduce_backward(
    grad, x, mean, invstd, weight, need_input, need_weight, need_bias, sum_dy, sum_dy_xmu, dweight, dbias
):
    grad, x, mean, invstd = wide_all(grad, x, mean, invstd)
    total = grad.sum(_others(x))
    projected = (grad * (x - _channels(mean, x))).sum(_others(x))
    if need_input:
        deliver(sum_dy, total)
        deliver(sum_dy_xmu, projected)
    if need_weight:
        deliver(dweight, projected * invstd)
    if need_bias:
        deliver(dbias, total)


def _update_running(running_mean, running_var, mean, variance, count, momentum) -> None:
    if running_mean is not None:
        running_mean.copy_(torch.lerp(wide(running_mean), mean, momentum))
    if running_var is not None:
        running_var.copy_(torch.lerp(wide(running_var), variance * (count / (count - 1)), momentum))


@kernel("aclnnBatchNormGatherStatsWithCounts")
def batch_norm_gather_stats(
    x, mean, invstd, running_mean, running_var, momentum, epsilon, counts, mean_all, invstd_all
):
    mean, invstd, counts = wide_all(mean, invstd, counts)
    counts = counts.reshape(-1, 1).to(mean.dtype)
    total = counts.sum()
    overall = (mean * counts).sum(0) / total
    squares = (1 / invstd.square() - epsilon + (mean - overall).square()) * counts
    variance = squares.sum(0) / total
    deliver(mean_all, overall)
    deliver(invstd_all, torch.rsqrt(variance + epsilon))
    _update_running(running_mean, running_var, overall, variance, total, momentum)


@kernel("aclnnSyncBatchNormGatherStats")
def sync_batch_norm_gather_stats(
    total_sum, total_square_sum, sample_count, running_mean, running_var, momentum, epsilon, batch_mean, batch_invstd
):
    count = sample_count.sum().to(torch.float32)
    mean = wide(total_sum).sum(0) / count
    variance = wide(total_square_sum).sum(0) / count - mean.square()
    deliver(batch_mean, mean)
    deliver(batch_invstd, torch.rsqrt(variance + epsilon))
    _update_running(running_mean, running_var, mean, variance, count, momentum)
