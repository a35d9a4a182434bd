"""Pooling whose arguments or index formats differ from ATen's."""

import torch

from cann_emulator.kernels.precision import deliver, wide, wide_all
from cann_emulator.kernels.registry import kernel


def _divisor(override: int) -> int | None:
    return override or None  # 0 stands for "not given"


@kernel("aclnnAvgPool2d")
def avg_pool2d(x, size, stride, padding, ceil_mode, include_pad, divisor, cube_math_type, out):
    result = torch.ops.aten.avg_pool2d(wide(x), size, stride, padding, ceil_mode, include_pad, _divisor(divisor))
    deliver(out, result)


@kernel("aclnnAvgPool3d")
def avg_pool3d(x, size, stride, padding, ceil_mode, include_pad, divisor, out):
    result = torch.ops.aten.avg_pool3d(wide(x), size, stride, padding, ceil_mode, include_pad, _divisor(divisor))
    deliver(out, result)


@kernel("aclnnAvgPool2dBackward")
def avg_pool2d_backward(grad, x, size, stride, padding, ceil_mode, include_pad, divisor, cube_math_type, dx):
    grad, x = wide_all(grad, x)
    args = (size, stride, padding, ceil_mode, include_pad, _divisor(divisor))
    deliver(dx, torch.ops.aten.avg_pool2d_backward(grad, x, *args))


@kernel("aclnnAvgPool3dBackward")
def avg_pool3d_backward(grad, x, size, stride, padding, ceil_mode, include_pad, divisor, dx):
    grad, x = wide_all(grad, x)
    args = (size, stride, padding, ceil_mode, include_pad, _divisor(divisor))
    deliver(dx, torch.ops.aten.avg_pool3d_backward(grad, x, *args))


@kernel("aclnnAdaptiveMaxPool2dBackward")
def adaptive_max_pool2d_backward(grad, x, indices, dx):
    deliver(dx, torch.ops.aten.adaptive_max_pool2d_backward(*wide_all(grad, x), indices.long()))


@kernel("aclnnAdaptiveMaxPool3dBackward")
def adaptive_max_pool3d_backward(grad, x, indices, dx):
    deliver(dx, torch.ops.aten.adaptive_max_pool3d_backward(*wide_all(grad, x), indices.long()))


@kernel("aclnnMaxPool2dWithIndicesBackward")
def max_pool2d_with_indices_backward(grad, x, indices, size, stride, padding, dilation, ceil_mode, dx):
    result = torch.ops.aten.max_pool2d_with_indices_backward(
        *wide_all(grad, x), size, stride, padding, dilation, ceil_mode, indices.long()
    )
    deliver(dx, result)


@kernel("aclnnMaxPool3dWithArgmaxBackward")
def max_pool3d_with_argmax_backward(grad, x, indices, size, stride, padding, dilation, ceil_mode, dx):
    result = torch.ops.aten.max_pool3d_with_indices_backward(
        *wide_all(grad, x), size, stride, padding, dilation, ceil_mode, indices.long()
    )
    deliver(dx, result)


def _mask_bytes(mask: torch.Tensor, count: int) -> torch.Tensor:
    """The part of a pooling mask that holds one int32 index per output, as int32.

    The mask is opaque to callers: only the backward operator reads it. It has at least 32 bytes per 16 outputs and
    window position, which is room for an index each wherever the window has two positions or more.
    """
    return mask.view(torch.uint8).reshape(-1)[: 4 * count].view(torch.int32)


@kernel("aclnnMaxPool2dWithMask")
def max_pool2d_with_mask(x, size, stride, padding, dilation, ceil_mode, out, mask):
    values, indices = torch.ops.aten.max_pool2d_with_indices(x, size, stride, padding, dilation, ceil_mode)
    deliver(out, values)
    room = mask.numel() // 4
    if indices.numel() <= room:
        _mask_bytes(mask, indices.numel()).copy_(indices.reshape(-1))


@kernel("aclnnMaxPool2dWithMaskBackward")
def max_pool2d_with_mask_backward(grad, x, mask, size, stride, padding, dilation, ceil_mode, dx):
    grad, x = wide_all(grad, x)
    if grad.numel() <= mask.numel() // 4:
        indices = _mask_bytes(mask, grad.numel()).reshape(grad.shape).long()
    else:  # a window of one position: its index follows from the shape alone
        indices = torch.ops.aten.max_pool2d_with_indices(x, size, stride, padding, dilation, ceil_mode)[1]
    result = torch.ops.aten.max_pool2d_with_indices_backward(
        grad, x, size, stride, padding, dilation, ceil_mode, indices
    )
    deliver(dx, result)
