"""Operators whose output shape depends on values: each returns the real shape of such outputs.

The caller gives a buffer of the greatest size; the result lies at its start without gaps.
"""

import torch
from torch import Size, Tensor

from cann_emulator.kernels.registry import kernel

_ALL_DIMENSIONS = 1000  # what torch_npu passes for "dim not given"


def _deliver(result: Tensor, buffer: Tensor | None) -> Size:
    if buffer is not None and buffer.numel() >= result.numel():
        buffer.reshape(-1)[: result.numel()].copy_(result.reshape(-1))
    return result.shape


@kernel("aclnnNonzero")
def nonzero(self: Tensor, out: Tensor) -> Size:
    return _deliver(torch.nonzero(self), out)


@kernel("aclnnNonzeroV2")
def nonzero_transposed(self: Tensor, out: Tensor) -> Size:
    return _deliver(torch.nonzero(self).T, out)


@kernel("aclnnMaskedSelect")
def masked_select(self: Tensor, mask: Tensor, out: Tensor) -> Size:
    return _deliver(torch.masked_select(self, mask.bool()), out)


@kernel("aclnnUnique")
def unique(self: Tensor, sort: bool, return_inverse: bool, values: Tensor, inverse: Tensor) -> Size:
    found, places = torch._unique(self, sort, return_inverse)
    _deliver(places, inverse)
    return _deliver(found, values)


@kernel("aclnnUnique2")
def unique2(
    self: Tensor, sort: bool, return_inverse: bool, return_counts: bool, values: Tensor, inverse: Tensor, counts: Tensor
) -> Size:
    found, places, numbers = torch._unique2(self, sort, return_inverse or return_counts, return_counts)
    _deliver(places, inverse)
    _deliver(numbers, counts)
    return _deliver(found, values)


@kernel("aclnnUniqueConsecutive")
def unique_consecutive(
    self: Tensor, return_inverse: bool, return_counts: bool, dim: int, values: Tensor, inverse: Tensor, counts: Tensor
) -> tuple[Size, Size]:
    axis = None if dim == _ALL_DIMENSIONS else dim
    found, places, numbers = torch.ops.aten.unique_consecutive(self, return_inverse, return_counts, axis)
    _deliver(places, inverse)
    return _deliver(found, values), _deliver(numbers, counts)


@kernel("aclnnUniqueDim")
def unique_dim(
    self: Tensor, sort: bool, return_inverse: bool, dim: int, values: Tensor, inverse: Tensor, counts: Tensor
) -> tuple[Size, Size]:
    found, places, numbers = torch.ops.aten.unique_dim(self, dim, sort, return_inverse, True)
    _deliver(places, inverse)
    return _deliver(found, values), _deliver(numbers, counts)
