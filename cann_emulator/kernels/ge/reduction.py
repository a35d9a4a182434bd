"""Reductions and cumulative operators."""

import math

import torch

from .registry import Node, bits, kernel

# What an empty reduction gives.
_EMPTY = {"Sum": 0, "Mean": math.nan, "Prod": 1, "All": 1, "Any": 0}


def _axes(n: Node, x: torch.Tensor) -> list[int]:
    axes = n.ints("axes")
    if not axes and not n.attr("noop_with_empty_axes", False):
        axes = list(range(x.dim()))
    return sorted({axis % x.dim() for axis in axes}) if x.dim() else []


@kernel(
    "ReduceSum", "ReduceSumD", "ReduceMean", "ReduceMeanD", "ReduceMax", "ReduceMaxD", "ReduceMin", "ReduceMinD",
    "ReduceProd", "ReduceProdD", "ReduceAll", "ReduceAllD", "ReduceAny", "ReduceAnyD", "ReduceLogSumExp",
    "ReduceLogSum",
)  # fmt: skip
def reduce(n: Node) -> None:
    """Reduces over axes."""
    x, y = next(iter(n.inputs.values())), n.out
    axes = _axes(n, x)
    kind = n.type.removeprefix("Reduce").removesuffix("D")
    keep = n.attr("keep_dims", False)
    if not axes:
        n.copy(y.view(x.shape), x) if kind != "LogSum" else n.run(_log_sum, x, y.view(x.shape), axes, keep)
    elif not x.numel():
        if y.numel():
            n.call("fill_.Scalar", y, _extreme(kind, x.dtype) if kind in ("Max", "Min") else _EMPTY[kind])
    elif kind == "Sum":
        n.call("sum.IntList_out", x, axes, keep, dtype=y.dtype, out=y)
    elif kind == "Mean":
        n.call("mean.out", x, axes, keep, out=y) if x.is_floating_point() else n.run(_mean, x, y, axes, keep)
    elif kind in ("Max", "Min") and x.dtype not in (torch.uint16, torch.uint32, torch.uint64):
        n.call("amax.out" if kind == "Max" else "amin.out", x, axes, keep, out=y)
    elif kind == "Prod" and len(axes) == 1:
        n.call("prod.int_out", x, axes[0], keep, dtype=y.dtype, out=y)
    elif kind in ("All", "Any"):
        n.call("all.dims_out" if kind == "All" else "any.dims_out", x, axes, keep, out=y)
    elif kind == "LogSumExp":
        n.call("logsumexp.out", x, axes, keep, out=y)
    elif kind in ("Max", "Min"):
        n.run(_extreme_unsigned, x, y, axes, kind)
    else:
        n.run(_prod if kind == "Prod" else _log_sum, x, y, axes, keep)


def _extreme(kind: str, dtype: torch.dtype) -> float | int:
    if dtype == torch.bool:
        return int(kind == "Min")
    if dtype.is_floating_point:
        return -math.inf if kind == "Max" else math.inf
    limits = torch.iinfo(dtype)
    return limits.min if kind == "Max" else limits.max


def _mean(x: torch.Tensor, y: torch.Tensor, axes: list[int], keep: bool) -> None:
    y.copy_(x.double().mean(axes, keep).trunc())


def _prod(x: torch.Tensor, y: torch.Tensor, axes: list[int], keep: bool) -> None:
    kept = [axis for axis in range(x.dim()) if axis not in axes]
    flat = x.permute(kept + axes).reshape([x.shape[axis] for axis in kept] + [-1])
    y.copy_(flat.prod(-1, dtype=y.dtype).reshape(y.shape))


def _log_sum(x: torch.Tensor, y: torch.Tensor, axes: list[int], keep: bool) -> None:
    y.copy_(x.float().sum(axes, keep).log() if axes else x.float().log())


def _extreme_unsigned(x: torch.Tensor, y: torch.Tensor, axes: list[int], kind: str) -> None:
    top = 1 << (8 * x.element_size() - 1)
    signed = bits(x)
    flipped = signed ^ torch.tensor(top - (1 << 8 * x.element_size()), dtype=torch.int64).to(signed.dtype)
    result = flipped.amax(axes) if kind == "Max" else flipped.amin(axes)
    bits(y).copy_((result ^ torch.iinfo(signed.dtype).min).reshape(y.shape))


@kernel("ArgMaxV2", "ArgMin", "ArgMaxD", "ArgMinD")
def arg_extreme(n: Node) -> None:
    """Where the largest or smallest element is: the first of equal ones."""
    axis = n.ints("dimension")[0]
    n.call("argmax" if "Max" in n.type else "argmin", n.x, axis, False, results=(n.y,))


@kernel("ArgMaxWithValue", "ArgMinWithValue")
def arg_extreme_with_value(n: Node) -> None:
    """The largest or smallest element, and where it is."""
    indices, values = n.outputs.values()
    op = "max.dim" if "Max" in n.type else "min.dim"
    n.call(op, n.x, n.dimension, n.attr("keep_dims", False), results=(values, indices))


@kernel("Cumsum", "CumsumD", "Cumprod", "CumprodD", "CumulativeLogsumexp")
def cumulative(n: Node) -> None:
    """Sums or products of all elements up to each one."""
    axis = n.ints("axis")[0]
    op = {"Cums": "cumsum", "Cump": "cumprod", "Cumu": "logcumsumexp"}[n.type[:4]]
    exclusive, reverse = n.attr("exclusive", False), n.attr("reverse", False)
    if not n.x.dim() or exclusive or reverse or n.x.dtype in (torch.uint16, torch.uint32, torch.uint64):
        n.run(_cumulative, n.x, n.y, axis, op, exclusive, reverse)
    elif op == "logcumsumexp":
        n.call("logcumsumexp.out", n.x, axis, out=n.y)
    else:
        n.call(f"{op}.out", n.x, axis, dtype=n.y.dtype, out=n.y)


def _cumulative(x: torch.Tensor, y: torch.Tensor, axis: int, op: str, exclusive: bool, reverse: bool) -> None:
    value = bits(x).flip(axis) if reverse else bits(x)
    function = getattr(torch, op)
    result = function(value, axis) if op == "logcumsumexp" else function(value, axis, dtype=value.dtype)
    if exclusive and value.dim():
        first = {"cumsum": 0, "cumprod": 1, "logcumsumexp": -math.inf}[op]
        result = torch.cat(
            [torch.full_like(result.narrow(axis, 0, 1), first), result.narrow(axis, 0, x.shape[axis] - 1)], axis
        )
    bits(y).copy_(result.flip(axis) if reverse else result)


@kernel("Cummax", "Cummin")
def cumulative_extreme(n: Node) -> None:
    """The largest or smallest element up to each one, and where it is."""
    n.call(n.type.lower(), n.x, n.dim, results=tuple(n.outputs.values()))


@kernel("SoftmaxV2", "LogSoftmaxV2")
def softmax(n: Node) -> None:
    """Softmax over one axis."""
    x, y = next(iter(n.inputs.values())), n.out
    axes = n.attr("axes") or [-1]
    if len(axes) != 1:
        n.refuse(f"axes {axes}: one axis is supported")
    n.call("_softmax.out" if n.type == "SoftmaxV2" else "_log_softmax.out", x, axes[0], False, out=y)
