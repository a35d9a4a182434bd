"""Reductions and windows: GE's reductions where the body is one operation, else a tree of elementwise steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from xla_npu.compiler.attributes import ints, tensor_type
from xla_npu.compiler.dtypes import BOOL, F32, I32, ElementType
from xla_npu.compiler.lowering import Lowering, rule
from xla_npu.compiler.tensor import Tensor

Combine = Callable[[Sequence[Tensor], Sequence[Tensor]], list[Tensor]]

# The reduction of a body that is one operation on its two arguments.
KINDS = {
    "stablehlo.add": "ReduceSum",
    "stablehlo.multiply": "ReduceProd",
    "stablehlo.maximum": "ReduceMax",
    "stablehlo.minimum": "ReduceMin",
    "stablehlo.and": "ReduceAll",
    "stablehlo.or": "ReduceAny",
}
# What these do on booleans.
BOOLEAN = {"ReduceSum": "ReduceAny", "ReduceProd": "ReduceAll", "ReduceMax": "ReduceAny", "ReduceMin": "ReduceAll"}


def single_operation(region: ir.Region) -> str | None:
    """The name of the operation when the region returns one operation of its two arguments, else None."""
    block = region.blocks[0]
    operations = list(block.operations)
    if len(operations) != 2 or len(block.arguments) != 2:
        return None
    op, terminator = operations[0].operation, operations[1].operation
    returned = list(terminator.operands)
    arguments = set(block.arguments)
    if len(op.operands) == 2 and set(op.operands) == arguments and returned == list(op.results):
        return op.name
    return None


def identity(kind: str, type: ElementType) -> Any:
    """The value that a reduction starts from without effect."""
    if kind in ("ReduceSum", "ReduceAny"):
        return type.numpy(0)
    if kind in ("ReduceProd", "ReduceAll"):
        return type.numpy(1)
    if type.kind == "float":
        return type.numpy(-np.inf if kind == "ReduceMax" else np.inf)
    info = np.iinfo(type.numpy)
    return type.numpy(info.min if kind == "ReduceMax" else info.max)


def is_identity(kind: str, init: Tensor) -> bool:
    """Whether `init` is known to change nothing."""
    if init.constant is None or init.type.kind == "complex":
        return False
    stored = np.asarray(identity(kind, init.type)).astype(init.type.numpy)
    if init.type.kind == "uint" and init.type.storage != "u8":
        stored = stored.view(f"i{stored.itemsize}")
    return bool(init.constant.reshape(-1)[0] == stored)


def body(b: Lowering, region: ir.Region) -> Combine:
    """The region as a function of two lists of tensors."""
    return lambda left, right: b.inline(region, [*left, *right])


@rule("stablehlo.reduce")
def reduce(b: Lowering, op: Any, *operands: Tensor) -> list[Tensor]:
    count = len(operands) // 2
    inputs, inits = operands[:count], operands[count:]
    axes = ints(op, "dimensions")
    region = op.regions[0]
    shape = tuple(n for i, n in enumerate(inputs[0].shape) if i not in axes)
    combine = body(b, region)
    starts = [b.broadcast(init, shape) for init in inits]
    if 0 in inputs[0].shape:
        return starts
    kind = KINDS.get(single_operation(region) or "") if count == 1 else None
    if kind is not None:
        result = simple_reduce(b, kind, inputs[0], axes)
        if result is not None:
            return [result] if is_identity(_boolean(kind, inputs[0]), inits[0]) else combine(starts, [result])
    return combine(starts, tree(b, list(inputs), axes, combine))


def _boolean(kind: str, x: Tensor) -> str:
    return BOOLEAN.get(kind, kind) if x.type.kind == "bool" else kind


def simple_reduce(b: Lowering, kind: str, x: Tensor, axes: Sequence[int]) -> Tensor | None:
    """One of GE's reductions, or None where it has none for the type."""
    type = x.type
    kind = _boolean(kind, x)
    if type.emulated or (kind in ("ReduceAll", "ReduceAny") and type.kind != "bool"):
        return None
    if type.kind == "complex":
        if kind != "ReduceSum":
            return None
        return b.complex(b.reduce(kind, b.real(x), axes), b.reduce(kind, b.imag(x), axes), type)
    if kind in ("ReduceMax", "ReduceMin"):
        if type.kind == "uint" and type.storage != "u8":
            ordered = b.reduce(kind, b.ordered(x), axes)
            return Tensor(
                type, ordered.shape, b.xor(ordered, b.scalar(np.iinfo(ordered.type.numpy).min, ordered)).parts
            )
        result = b.reduce(kind, x, axes)
        if type.kind == "float":  # NaN wins
            nan = b.reduce("ReduceAny", b.is_nan(x), axes)
            result = b.select(nan, b.scalar(np.nan, result), result)
        return result
    if type.kind == "float" and type.bits == 16:  # one rounding, as XLA's CPU backend does
        return b.convert(b.reduce(kind, b.convert(x, F32), axes), type)
    return b.reduce(kind, x, axes)


def tree(b: Lowering, tensors: list[Tensor], axes: Sequence[int], combine: Combine) -> list[Tensor]:
    """Any associative body, in log2(n) elementwise steps over halves."""
    rest = [i for i in range(tensors[0].rank) if i not in axes]
    shape = tuple(tensors[0].shape[i] for i in rest)
    count = int(np.prod([tensors[0].shape[i] for i in axes], dtype=np.int64))
    tensors = [b.reshape(b.full(b.transpose(t, [*axes, *rest])), (count, *shape)) for t in tensors]
    while count > 1:
        half = count // 2
        first = [b.slice_axis(t, 0, 0, half) for t in tensors]
        second = [b.slice_axis(t, 0, half, 2 * half) for t in tensors]
        combined = combine(first, second)
        if count % 2:
            combined = [
                b.concatenate([t, b.slice_axis(whole, 0, count - 1, count)], 0)
                for t, whole in zip(combined, tensors, strict=True)
            ]
        tensors, count = combined, half + count % 2
    return [b.reshape(t, shape) for t in tensors]


# Up to this many elements in a window are combined one after the other when the body is not known to be associative.
LONGEST_CHAIN = 256


class Window:
    """The window attributes of reduce_window."""

    def __init__(self, op: Any, rank: int):
        ones = [1] * rank
        self.size = ints(op, "window_dimensions")
        self.stride = ints(op, "window_strides") or ones
        self.base_dilation = ints(op, "base_dilations") or ones
        self.dilation = ints(op, "window_dilations") or ones
        padding = ints(op, "padding") or [0] * (2 * rank)
        self.low, self.high = padding[0::2], padding[1::2]


@rule("stablehlo.reduce_window")
def reduce_window(b: Lowering, op: Any, *operands: Tensor) -> list[Tensor]:
    """Windows are separable: one dimension after the other, each by doubling."""
    count = len(operands) // 2
    tensors, inits = list(operands[:count]), list(operands[count:])
    shape = tensor_type(op.results[0])[1]
    window = Window(op, tensors[0].rank)
    if 0 in shape:
        return [b.constant(np.zeros(shape, t.type.numpy), t.type, shape) for t in tensors]
    inner = body(b, op.regions[0])
    kind = KINDS.get(single_operation(op.regions[0]) or "") if count == 1 else None
    # Half precision sums are rounded once.
    type = tensors[0].type
    once = kind == "ReduceSum" and type.kind == "float" and type.bits == 16
    if once:
        tensors, inits = [b.convert(tensors[0], F32)], [b.convert(inits[0], F32)]
        inner = lambda left, right: [b.add(left[0], right[0])]  # noqa: E731
    combine = inner
    gaps = [d - 1 for d in window.base_dilation]
    tensors = [b.pad(t, init, window.low, window.high, gaps) for t, init in zip(tensors, inits, strict=True)]
    if kind is None and int(np.prod(window.size)) <= LONGEST_CHAIN:  # the body may not be associative
        return _chain(b, tensors, [b.broadcast(init, shape) for init in inits], window, combine)
    for axis in range(len(shape)):
        tensors = _window_axis(b, tensors, axis, window, combine)
    if not (kind is not None and is_identity(_boolean(kind, tensors[0]), inits[0])):
        tensors = combine([b.broadcast(init, shape) for init in inits], tensors)
    return [b.convert(tensors[0], type)] if once else tensors


def _chain(b: Lowering, tensors: list[Tensor], starts: list[Tensor], window: Window, combine: Combine) -> list[Tensor]:
    """One element of each window after the other, in their order."""
    shape = starts[0].shape
    for place in np.ndindex(*window.size):
        first = [int(k) * d for k, d in zip(place, window.dilation, strict=True)]
        last = [a + (n - 1) * s + 1 for a, n, s in zip(first, shape, window.stride, strict=True)]
        starts = combine(starts, [b.slice(t, first, last, window.stride) for t in tensors])
    return starts


def _window_axis(b: Lowering, tensors: list[Tensor], axis: int, window: Window, combine: Combine) -> list[Tensor]:
    size, stride, dilation = window.size[axis], window.stride[axis], window.dilation[axis]
    length = tensors[0].shape[axis]
    positions = length - (size - 1) * dilation  # windows at stride 1
    cut = lambda ts, start, end: [b.slice_axis(t, axis, start, end) for t in ts]  # noqa: E731
    if size * 2 <= max(stride, 2):  # far apart: take each window's elements
        result = None
        for k in range(size):
            part = [b.slice_axis(t, axis, k * dilation, k * dilation + positions, stride) for t in tensors]
            result = part if result is None else combine(result, part)
        return result or tensors
    # block[i] combines the `width` elements from i on; a window is made of such blocks, one for each bit of its size.
    block, width = tensors, 1
    result, covered = None, 0
    while True:
        if size & width:
            start = covered * dilation
            part = cut(block, start, start + positions)
            result = part if result is None else combine(result, part)
            covered += width
        if width * 2 > size:
            break
        reach = width * dilation
        kept = block[0].shape[axis] - reach
        block = combine(cut(block, 0, kept), cut(block, reach, reach + kept))
        width *= 2
    assert result is not None
    return [b.slice_axis(t, axis, 0, positions, stride) for t in result]


@rule("stablehlo.select_and_scatter")
def select_and_scatter(b: Lowering, op: Any, operand: Tensor, source: Tensor, init: Tensor) -> Tensor:
    """For each window position: the chosen element's offset; then every offset's share is added in its place."""
    window = Window(op, operand.rank)
    select = body(b, op.regions[0])
    scatter_kind = single_operation(op.regions[1])
    shape = source.shape
    if 0 in shape or 0 in operand.shape:
        return b.broadcast(init, operand.shape)
    # Padding is never chosen: a flag goes along with each element.
    zero = b.constant(np.zeros((), operand.type.numpy), operand.type)
    padded = b.pad(operand, zero, window.low, window.high)
    outside = b.constant(np.False_, BOOL)
    inside = b.pad(b.constant(np.True_, BOOL, operand.shape), outside, window.low, window.high)
    offsets = list(np.ndindex(*window.size))
    taken = lambda t, offset: b.slice(  # noqa: E731
        t,
        offset,
        [o + (n - 1) * s + 1 for o, n, s in zip(offset, shape, window.stride, strict=True)],
        window.stride,
    )
    best, best_inside = taken(padded, offsets[0]), taken(inside, offsets[0])
    chosen = b.constant(np.int32(0), I32, shape)
    for number, offset in enumerate(offsets[1:], 1):
        value, valid = taken(padded, offset), taken(inside, offset)
        keep = b.and_(best_inside, b.or_(select([best], [value])[0], b.not_(valid)))
        best = b.select(keep, best, value)
        chosen = b.select(keep, chosen, b.constant(np.int32(number), I32, shape))
        best_inside = b.or_(best_inside, valid)
    total: Tensor | None = None
    combine = body(b, op.regions[1])
    nothing = b.constant(np.zeros((), source.type.numpy), source.type)
    for number, offset in enumerate(offsets):
        mine = b.compare(chosen, b.constant(np.int32(number), I32, shape), "EQ")
        low = [o - p for o, p in zip(offset, window.low, strict=True)]
        span = [(n - 1) * s + 1 for n, s in zip(shape, window.stride, strict=True)]
        high = [n - a - c for n, a, c in zip(operand.shape, low, span, strict=True)]
        gaps = [s - 1 for s in window.stride]
        if scatter_kind == "stablehlo.add":
            share = b.pad(b.select(mine, source, b.scalar(0, source)), nothing, low, high, gaps)
            total = share if total is None else b.add(total, share)
        else:
            share = b.pad(source, nothing, low, high, gaps)
            here = b.pad(mine, outside, low, high, gaps)
            current = b.broadcast(init, operand.shape) if total is None else total
            total = b.select(here, combine([current], [share])[0], current)
    assert total is not None
    return b.add(total, b.broadcast(init, operand.shape)) if scatter_kind == "stablehlo.add" else total
