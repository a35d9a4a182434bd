"""Gather and scatter."""

import torch

from .registry import Node, bits, kernel

_MODES = {"Update": 0, "Add": 1, "Sub": 2, "Max": 3, "Min": 4, "Mul": 5, "Div": 6}


@kernel("Gather", "GatherV2", "GatherV2D")
def gather(n: Node) -> None:
    """Slices along an axis, by index."""
    x, y, indices = bits(n.x), bits(n.y), n.indices
    axis = n.ints("axis")[0] % x.dim() if n.type != "Gather" else 0
    batch = n.attr("batch_dims", 0)
    if batch < 0:
        batch += indices.dim()
    n.call("cann_emulator::gather", x, indices, axis, batch, y)


@kernel("GatherNd")
def gather_nd(n: Node) -> None:
    """Slices by tuples of indices."""
    n.call("cann_emulator::gather_nd", bits(n.x), n.indices, bits(n.y))


@kernel("GatherElements")
def gather_elements(n: Node) -> None:
    """Elements along a dimension, by index."""
    n.call("cann_emulator::gather_elements", bits(n.x), n.attr("dim", 0), n.index, bits(n.y))


@kernel(*[f"TensorScatter{mode}" for mode in ("Update", "Add", "Sub", "Max", "Min")],
        *[f"ScatterNd{mode}" for mode in ("Update", "Add", "Sub", "Max", "Min")])  # fmt: skip
def scatter_nd(n: Node) -> None:
    """Writes slices by tuples of indices; the last of equal ones counts, or all in their order."""
    var = next(iter(n.inputs.values()))
    n.begin_as(var)
    mode = _MODES[n.type.removeprefix("TensorScatter").removeprefix("ScatterNd")]
    y, updates = (bits(n.out), bits(n.updates)) if mode == 0 else (n.out, n.updates)
    n.call("cann_emulator::scatter_nd", y, n.indices, updates, mode)


@kernel("ScatterNd")
def scatter_nd_new(n: Node) -> None:
    """Adds slices to zeros."""
    n.call("fill_.Scalar", bits(n.y), 0)
    n.call("cann_emulator::scatter_nd", n.y, n.indices, n.x, _MODES["Add"])


@kernel(*[f"Scatter{mode}" for mode in ("Update", "Add", "Sub", "Max", "Min", "Mul", "Div")])
def scatter(n: Node) -> None:
    """Writes slices of the first dimension."""
    n.begin_as(n.inputs["var"])
    mode = _MODES[n.type.removeprefix("Scatter")]
    y, updates = (bits(n.out), bits(n.updates)) if mode == 0 else (n.out, n.updates)
    n.call("cann_emulator::scatter_nd", y, n.indices.unsqueeze(-1), updates, mode)


@kernel("ScatterElements", "ScatterElementsV2")
def scatter_elements(n: Node) -> None:
    """Writes elements along a dimension, by index."""
    var, indices, updates = n.inputs["var" if "var" in n.inputs else "data"], n.indices, n.updates
    n.begin_as(var)
    reduction = n.attr("reduction", "none")
    n.run(_scatter_elements, n.out, indices, updates, n.attr("axis", 0), reduction)


def _scatter_elements(y: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, axis: int, reduction: str) -> None:
    index = indices.long()
    if reduction in ("none", ""):
        bits(y).scatter_(axis, index, bits(updates))
    else:
        names = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin", "amax": "amax", "amin": "amin"}
        y.scatter_reduce_(axis, index, updates, names[reduction])


@kernel("OneHot", "OneHotD")
def one_hot(n: Node) -> None:
    """A value at the index, another elsewhere."""
    n.run(_one_hot, n.x, n.on_value, n.off_value, n.y, n.attr("axis", -1))


def _one_hot(x: torch.Tensor, on: torch.Tensor, off: torch.Tensor, y: torch.Tensor, axis: int) -> None:
    axis = x.dim() if axis == -1 else axis
    shape = [1] * y.dim()
    shape[axis] = y.shape[axis]
    hot = x.unsqueeze(axis) == torch.arange(y.shape[axis]).reshape(shape)
    y.copy_(torch.where(hot, on.reshape(()), off.reshape(())))
