"""Writing source values to positions given by an index tensor."""

import torch
from torch import Tensor

from cann_emulator.kernels.precision import wide
from cann_emulator.kernels.registry import kernel, refuse

_REDUCTIONS = {1: "sum", 2: "prod", 3: "amax", 4: "amin", 5: "mean"}


def _scatter(self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: int, include_self: bool, out: Tensor) -> None:
    if reduce == 0:
        out.copy_(self.scatter(dim, index.long(), src.to(self.dtype)))
    elif reduce in _REDUCTIONS:
        values = wide(src).to(wide(self).dtype)
        out.copy_(wide(self).scatter_reduce(dim, index.long(), values, _REDUCTIONS[reduce], include_self=include_self))
    else:
        refuse(161002, f"reduce is {reduce}; allowed are 0 (none), 1 (add), 2 (multiply), 3 (max), 4 (min), 5 (mean)")


def _filled(self: Tensor, index: Tensor, value: float) -> Tensor:
    return torch.full((), value, dtype=self.dtype).expand(index.shape)


@kernel("aclnnScatter")
def scatter(self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: int, out: Tensor) -> None:
    _scatter(self, dim, index, src, reduce, True, out)


@kernel("aclnnInplaceScatter")
def inplace_scatter(self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: int) -> None:
    _scatter(self, dim, index, src, reduce, True, self)


@kernel("aclnnScatterValue")
def scatter_value(self: Tensor, dim: int, index: Tensor, value: float, reduce: int, out: Tensor) -> None:
    _scatter(self, dim, index, _filled(self, index, value), reduce, True, out)


@kernel("aclnnInplaceScatterValue")
def inplace_scatter_value(self: Tensor, dim: int, index: Tensor, value: float, reduce: int) -> None:
    _scatter(self, dim, index, _filled(self, index, value), reduce, True, self)


@kernel("aclnnScatterReduce")
def scatter_reduce(
    self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: int, include_self: bool, out: Tensor
) -> None:
    _scatter(self, dim, index, src, reduce, include_self, out)


@kernel("aclnnInplaceScatterReduce")
def inplace_scatter_reduce(self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: int, include_self: bool) -> None:
    _scatter(self, dim, index, src, reduce, include_self, self)


@kernel("aclnnScatterNdUpdate")
def scatter_nd_update(self: Tensor, indices: Tensor, updates: Tensor) -> None:
    """The last dimension of `indices` holds coordinates into the leading dimensions of `self`."""
    self[tuple(indices.long().unbind(-1))] = updates


@kernel("aclnnInplaceScatterUpdate")
def inplace_scatter_update(data: Tensor, indices: Tensor, updates: Tensor, axis: int) -> None:
    """For each row of the batch, `updates` replaces a window of `data` along `axis`.

    One-dimensional indices give the window's start by batch row, two-dimensional ones (batch row, start).
    """
    axis %= data.dim()
    length = updates.shape[axis]
    pairs = indices.tolist() if indices.dim() == 2 else enumerate(indices.tolist())
    for update, (row, start) in zip(updates, pairs, strict=False):
        data[row].narrow(axis - 1, start, length).copy_(update)


@kernel("aclnnScatterList")
def scatter_list(
    var: list[Tensor], indices: Tensor, updates: Tensor, mask: Tensor | None, reduce: str, axis: int
) -> None:
    """Tensor i of the list takes `updates[i]` as a window along `axis` that starts at `indices[i]`.

    Two-dimensional indices give (start, length); tensors whose mask is 0 are left alone.
    """
    if reduce not in ("update", None):
        refuse(161002, f'reduce is "{reduce}"; allowed is "update"')
    axis %= updates.dim()
    for i, (tensor, update) in enumerate(zip(var, updates, strict=True)):
        if mask is not None and not mask[i]:
            continue
        start, length = indices[i].tolist() if indices.dim() == 2 else (int(indices[i]), update.shape[axis - 1])
        tensor.narrow(axis - 1, start, length).copy_(update.narrow(axis - 1, 0, length))
