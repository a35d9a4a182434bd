"""Rearranging operators without an ATen counterpart."""

import torch
from torch import Tensor

from cann_emulator.kernels.registry import kernel


@kernel("aclnnConfusionTranspose")
def confusion_transpose(x: Tensor, perm: list[int], shape: list[int], transpose_first: bool, out: Tensor) -> None:
    out.copy_(x.permute(perm).reshape(shape) if transpose_first else x.reshape(shape).permute(perm))


@kernel("aclnnOneHot")
def one_hot(self: Tensor, classes: int, on: Tensor, off: Tensor, axis: int, out: Tensor) -> None:
    # Indices outside [0, classes) leave a row of `off`.
    hot = self.unsqueeze(-1) == torch.arange(classes, dtype=self.dtype)
    if axis != -1:
        hot = hot.movedim(-1, axis)
    out.copy_(torch.where(hot, on.reshape(()), off.reshape(())))


@kernel("aclnnStridedSlice")
def strided_slice(
    self: Tensor,
    begin: list[int],
    end: list[int],
    strides: list[int],
    begin_mask: int,
    end_mask: int,
    ellipsis_mask: int,
    new_axis_mask: int,
    shrink_axis_mask: int,
    out: Tensor,
) -> None:
    index: list[object] = []
    for i, (first, last, stride) in enumerate(zip(begin, end, strides, strict=True)):
        bit = 1 << i
        if ellipsis_mask & bit:
            index.append(...)
        elif new_axis_mask & bit:
            index.append(None)
        elif shrink_axis_mask & bit:
            index.append(first)
        else:
            index.append(slice(None if begin_mask & bit else first, None if end_mask & bit else last, stride))
    out.copy_(self[tuple(index)])
