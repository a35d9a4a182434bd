"""Sorting. Equal elements keep their order; NaN is above all numbers."""

import torch

from .registry import Node, bits, kernel

_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


def _ordered(x: torch.Tensor) -> torch.Tensor:
    """Unsigned integers as signed ones in the same order."""
    return bits(x) ^ torch.iinfo(bits(x).dtype).min if x.dtype in _UNSIGNED else x


def _sort(x: torch.Tensor, axis: int, descending: bool, values: torch.Tensor, indices: torch.Tensor) -> None:
    _, order = torch.sort(_ordered(x), dim=axis, descending=descending, stable=True)
    order = order.narrow(axis, 0, values.shape[axis]) if values.dim() else order
    bits(values).copy_(torch.gather(bits(x), axis, order) if x.dim() else bits(x))
    indices.copy_(order)


@kernel("Sort")
def sort(n: Node) -> None:
    """Sorted elements, and where they were."""
    axis, descending = n.attr("axis", -1), n.attr("descending", False)
    if n.x.dtype in _UNSIGNED:
        n.run(_sort, n.x, axis, descending, n.y1, n.y2)
    else:
        n.call("sort.stable", n.x, stable=True, dim=axis, descending=descending, results=(n.y1, n.y2))


@kernel("TopKV2", "TopK")
def top_k(n: Node) -> None:
    """The k largest elements, and where they were; the lower index first among equal ones."""
    n.run(_sort, n.x, n.attr("dim", -1), n.attr("largest", True), n.values, n.indices)


@kernel("SortWithIndex")
def sort_with_index(n: Node) -> None:
    """Sorted elements, and the given indices in the same order."""
    n.run(_sort_with_index, n.x, n.index, n.y, n.sorted_index, n.attr("axis", -1), n.attr("descending", False))


def _sort_with_index(
    x: torch.Tensor, index: torch.Tensor, y: torch.Tensor, sorted_index: torch.Tensor, axis: int, descending: bool
) -> None:
    order = torch.empty(x.shape, dtype=torch.int64)
    _sort(x, axis, descending, y, order)
    sorted_index.copy_(torch.gather(index, axis, order) if x.dim() else index)
