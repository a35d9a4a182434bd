"""Gather, scatter and slices at positions that are data.

An element's position in the flattened operand is the sum of a part that depends on the start index and a part that
depends on the place in the window. Both are arrays that broadcast against each other, so one addition gives all
positions, whatever the dimension numbers; GatherV2 and the scatter operators then work on one dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxlib.mlir.dialects import stablehlo

from xla_npu.compiler.attributes import flag, ints, tensor_type
from xla_npu.compiler.builder import wide_enough
from xla_npu.compiler.dtypes import BOOL, F32, I32, I64, ElementType
from xla_npu.compiler.lowering import Lowering, rule
from xla_npu.compiler.rules.control import repeat
from xla_npu.compiler.rules.reduce import single_operation
from xla_npu.compiler.tensor import Tensor


def _index_type(shape: Sequence[int]) -> ElementType:
    return I32 if int(np.prod(shape, dtype=np.int64)) < 2**31 - 1 else I64


def _strides(shape: Sequence[int]) -> list[int]:
    return [int(np.prod(shape[i + 1 :], dtype=np.int64)) for i in range(len(shape))]


def to_index(b: Lowering, x: Tensor, kind: ElementType, highest: int) -> Tensor:
    """Any integer as an index type. Unsigned values that do not fit are out of bounds: so is `highest` + 1."""
    if x.type == kind:
        return x
    if x.type.kind == "uint" and x.type.bits >= 32:
        limit = b.scalar(min(highest + 1, np.iinfo(x.type.numpy).max), x)
        x = b.minimum(x, limit)
    elif x.type.kind == "int" and x.type.bits > kind.bits:
        info = np.iinfo(kind.numpy)
        x = b.clamp(x, b.scalar(info.min, x), b.scalar(info.max, x))
    return b.convert(x, kind)


class _Positions:
    """Where the elements of gather's windows, or scatter's updates, are in the operand.

    Dimension numbers as gather has them; `window_dims` are the result's (or the updates') dimensions that walk through
    the window, the other ones walk through the indices.
    """

    def __init__(
        self,
        operand: Sequence[int],
        indices: Sequence[int],
        result: Sequence[int],
        window_dims: Sequence[int],
        dropped: Sequence[int],
        operand_batch: Sequence[int],
        indices_batch: Sequence[int],
        index_map: Sequence[int],
        vector_dim: int,
        window: Sequence[int],
    ):
        self.operand, self.result = list(operand), list(result)
        self.kind = _index_type(operand)
        self.vector_dim, self.index_map = vector_dim, list(index_map)
        self.window = list(window)
        self.window_dims = list(window_dims)
        self.batch_dims = [i for i in range(len(result)) if i not in window_dims]
        self.kept = [i for i in range(len(operand)) if i not in dropped and i not in operand_batch]
        self.index_dims = [i for i in range(len(indices)) if i != vector_dim]
        self.batching = list(zip(operand_batch, [self.index_dims.index(i) for i in indices_batch], strict=True))
        self.strides = _strides(operand)

    def starts(self, b: Lowering, indices: Tensor) -> list[Tensor]:
        """The start index of each indexed operand dimension, as tensors of the batch shape."""
        starts = []
        for i, dimension in enumerate(self.index_map):
            one = indices
            if self.vector_dim < indices.rank:
                one = b.slice_axis(indices, self.vector_dim, i, i + 1)
                one = b.reshape(one, [n for j, n in enumerate(indices.shape) if j != self.vector_dim])
            starts.append(to_index(b, one, self.kind, self.operand[dimension]))
        return starts

    def base(self, b: Lowering, starts: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
        """The positions of the windows' first elements, as a tensor of the batch shape."""
        total = b.constant(self.kind.numpy(0), self.kind, tuple(shape))
        for dimension, start in zip(self.index_map, starts, strict=True):
            total = b.add(total, b.multiply(start, b.scalar(self.strides[dimension], start)))
        for dimension, axis in self.batching:
            place = b.iota(tuple(shape), axis, self.kind)
            total = b.add(total, b.multiply(place, b.scalar(self.strides[dimension], place)))
        return total

    def offsets(self) -> np.ndarray:
        """The offsets of a window's elements from its first, of the result's rank."""
        total = np.zeros([1] * len(self.result), np.int64)
        for axis, dimension in zip(self.window_dims, self.kept, strict=True):
            shape = [1] * len(self.result)
            shape[axis] = self.result[axis]
            total = total + (np.arange(self.result[axis]) * self.strides[dimension]).reshape(shape)
        return total

    def spread(self, b: Lowering, per_window: Tensor) -> Tensor:
        """A tensor of the batch shape as one that broadcasts to the result's."""
        return b.broadcast_in_dim(per_window, self.result, self.batch_dims)

    def all(self, b: Lowering, base: Tensor) -> Tensor:
        """Every element's position."""
        offsets = b.constant(self.offsets().astype(self.kind.numpy), self.kind)
        return b.add(self.spread(b, base), Tensor(self.kind, tuple(self.result), offsets.parts))


@rule("stablehlo.gather")
def gather(b: Lowering, op: Any, operand: Tensor, indices: Tensor) -> Tensor:
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    kind, shape = tensor_type(op.results[0])
    sizes = ints(op, "slice_sizes")
    places = _Positions(
        operand.shape,
        indices.shape,
        shape,
        list(numbers.offset_dims),
        list(numbers.collapsed_slice_dims),
        list(numbers.operand_batching_dims),
        list(numbers.start_indices_batching_dims),
        list(numbers.start_index_map),
        numbers.index_vector_dim,
        sizes,
    )
    if 0 in shape or 0 in operand.shape:
        return b.constant(np.zeros((), kind.numpy), kind, shape)
    starts = []
    for dimension, start in zip(places.index_map, places.starts(b, indices), strict=True):
        highest = operand.shape[dimension] - sizes[dimension]
        starts.append(b.clamp(start, b.scalar(0, start), b.scalar(highest, start)))
    # Whole slices along one dimension: GatherV2 itself.
    if len(places.index_map) == 1 and not places.batching:
        (axis,) = places.index_map
        whole = all(n == sizes[i] or i == axis for i, n in enumerate(operand.shape))
        leading = places.window_dims == [*range(axis), *range(axis + len(places.batch_dims), len(shape))]
        if whole and sizes[axis] == 1 and axis not in places.kept and leading:
            return b.take(operand, starts[0], axis)
    base = places.base(b, starts, [indices.shape[i] for i in places.index_dims])
    flat = b.reshape(b.full(operand), (int(np.prod(operand.shape, dtype=np.int64)),))
    return b.take(flat, places.all(b, base), 0)


@rule("stablehlo.dynamic_slice")
def dynamic_slice(b: Lowering, op: Any, operand: Tensor, *starts: Tensor) -> Tensor:
    sizes = ints(op, "slice_sizes")
    for axis, start in enumerate(starts):
        highest = operand.shape[axis] - sizes[axis]
        if highest == 0:
            continue
        start = to_index(b, start, I32, highest)
        start = b.clamp(start, b.scalar(0, start), b.scalar(highest, start))
        place = b.iota((sizes[axis],), 0)
        operand = b.take(operand, b.add(b.broadcast(start, (sizes[axis],)), place), axis)
    return operand


@rule("stablehlo.dynamic_update_slice")
def dynamic_update_slice(b: Lowering, op: Any, operand: Tensor, update: Tensor, *starts: Tensor) -> Tensor:
    if 0 in update.shape:
        return operand
    clamped = []
    for axis, start in enumerate(starts):
        highest = operand.shape[axis] - update.shape[axis]
        start = to_index(b, start, _index_type(operand.shape), highest)
        clamped.append(b.clamp(start, b.scalar(0, start), b.scalar(highest, start)))
    partial = [i for i in range(operand.rank) if operand.shape[i] != update.shape[i]]
    if not partial:
        return update
    # The dimensions behind the last partial one move as whole rows.
    rows = partial[-1] + 1
    strides = _strides(operand.shape[:rows])
    base = None
    for axis in partial:
        part = b.multiply(clamped[axis], b.scalar(strides[axis], clamped[axis]))
        base = part if base is None else b.add(base, part)
    assert base is not None
    offsets = np.zeros([1] * rows, np.int64)
    for axis in range(rows):
        shape = [1] * rows
        shape[axis] = update.shape[axis]
        offsets = offsets + (np.arange(update.shape[axis]) * strides[axis]).reshape(shape)
    count = offsets.size
    positions = b.constant(offsets.reshape(count).astype(base.type.numpy), base.type)
    positions = b.add(b.broadcast(base, (count,)), Tensor(base.type, (count,), positions.parts))
    width = operand.shape[rows:]
    lines = b.reshape(b.full(operand), (int(np.prod(operand.shape[:rows], dtype=np.int64)), *width))
    written = scatter_rows(b, "update", lines, positions, b.reshape(b.full(update), (count, *width)))
    return b.reshape(written, operand.shape)


def scatter_rows(b: Lowering, kind: str, target: Tensor, positions: Tensor, updates: Tensor) -> Tensor:
    """Updates rows of `target` at `positions` (all in bounds); `kind` is update, add, max or min."""
    operator = {"update": "TensorScatterUpdate", "add": "ScatterNdAdd", "max": "ScatterNdMax", "min": "ScatterNdMin"}
    index = b.reshape(b.full(positions), (*positions.shape, 1)).value
    name = operator[kind]
    target, updates = b.full(target), b.full(updates)

    def one(part: Any, new: Any) -> Any:
        wide = wide_enough(name, part.dtype)
        inputs = [b.cast_value(part, wide), index, b.cast_value(new, wide)]
        extra = {} if kind == "update" else {"use_locking": False}
        if kind != "update" and inputs[0].node.type in ("Data", "Const"):
            # These operators write into their first operand, which must not be the program's.
            inputs[0] = b.emit("Identity", [inputs[0]], wide, part.shape)
        return b.cast_value(b.emit(name, inputs, wide, part.shape, **extra), part.dtype)

    parts = zip(target.parts, updates.parts, strict=True)
    return Tensor(target.type, target.shape, tuple(one(a, u) for a, u in parts))


SCATTER_KINDS = {"stablehlo.add": "add", "stablehlo.maximum": "max", "stablehlo.minimum": "min"}


@rule("stablehlo.scatter")
def scatter(b: Lowering, op: Any, *operands: Tensor) -> list[Tensor]:
    count = (len(operands) - 1) // 2
    targets, indices, updates = list(operands[:count]), operands[count], list(operands[count + 1 :])
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    shape, target_shape = updates[0].shape, targets[0].shape
    if 0 in shape or 0 in target_shape:
        return targets
    window_dims = list(numbers.update_window_dims)
    places = _Positions(
        target_shape,
        indices.shape,
        shape,
        window_dims,
        list(numbers.inserted_window_dims),
        list(numbers.input_batching_dims),
        list(numbers.scatter_indices_batching_dims),
        list(numbers.scattered_dims_to_operand_dims),
        numbers.index_vector_dim,
        [],
    )
    extent = [1] * len(target_shape)
    for axis, dimension in zip(window_dims, places.kept, strict=True):
        extent[dimension] = shape[axis]
    # A window that does not fit is left out whole: it goes to a row behind the last.
    batch_shape = tuple(indices.shape[i] for i in places.index_dims)
    valid = b.constant(np.True_, BOOL, batch_shape)
    starts = places.starts(b, indices)
    for dimension, start in zip(places.index_map, starts, strict=True):
        low = b.compare(start, b.scalar(0, start), "GE")
        high = b.compare(start, b.scalar(target_shape[dimension] - extent[dimension], start), "LE")
        valid = b.and_(valid, b.and_(low, high))
    # Only dimensions up to the last one that is not taken whole need positions; the rest are rows.
    rows = 1 + max(
        (
            i
            for i in range(len(target_shape))
            if extent[i] != target_shape[i] or i in places.index_map or i in [d for d, _ in places.batching]
        ),
        default=0,
    )
    trailing = [a for a, d in zip(window_dims, places.kept, strict=True) if d >= rows]
    if trailing != list(range(len(shape) - len(trailing), len(shape))):
        rows, trailing = len(target_shape), []
    width = tuple(target_shape[rows:])
    places.strides = [*_strides(target_shape[:rows]), *[0] * (len(target_shape) - rows)]
    total = int(np.prod(target_shape[:rows], dtype=np.int64))
    places.result = [n for i, n in enumerate(shape) if i not in trailing]
    places.window_dims = [i for i in window_dims if i not in trailing]
    places.kept = [d for d in places.kept if d < rows]
    places.batch_dims = [i for i in range(len(places.result)) if i not in places.window_dims]
    base = places.base(b, starts, batch_shape)
    positions = places.all(b, base)
    positions = b.select(places.spread(b, valid), positions, b.scalar(total, positions))
    number = int(np.prod(places.result, dtype=np.int64))
    positions = b.reshape(b.full(positions), (number,))
    lines = [_with_spare_row(b, b.reshape(b.full(t), (total, *width))) for t in targets]
    news = [b.reshape(b.full(u), (number, *width)) for u in updates]
    written = _scatter_lines(b, op, lines, positions, news, number, flag(op, "unique_indices"))
    return [b.reshape(b.slice_axis(t, 0, 0, total), target_shape) for t in written]


def _with_spare_row(b: Lowering, lines: Tensor) -> Tensor:
    zero = b.constant(np.zeros((), lines.type.numpy), lines.type)
    return b.pad(lines, zero, [0] * lines.rank, [1] + [0] * (lines.rank - 1))


def _scatter_lines(
    b: Lowering, op: Any, lines: list[Tensor], positions: Tensor, news: list[Tensor], count: int, unique: bool
) -> list[Tensor]:
    region = op.regions[0]
    block = region.blocks[0]
    returned = list(list(block.operations)[-1].operation.operands)
    arguments = list(block.arguments)
    if returned == arguments[len(lines) :]:  # the update replaces what was there
        return [scatter_rows(b, "update", t, positions, u) for t, u in zip(lines, news, strict=True)]
    kind = SCATTER_KINDS.get(single_operation(region) or "") if len(lines) == 1 else None
    if kind is not None:
        result = _scatter_simple(b, kind, lines[0], positions, news[0])
        if result is not None:
            return [result]
    if unique or count == 1:
        old = [b.take(t, positions, 0) for t in lines]
        combined = b.inline(region, [*old, *news])
        return [scatter_rows(b, "update", t, positions, u) for t, u in zip(lines, combined, strict=True)]
    return _scatter_loop(b, region, lines, positions, news, count)


def _scatter_simple(b: Lowering, kind: str, lines: Tensor, positions: Tensor, news: Tensor) -> Tensor | None:
    type = lines.type
    if type.emulated:
        return None
    if type.kind == "bool":
        wide = scatter_rows(
            b, "min" if kind == "min" else "max", b.convert(lines, I32), positions, b.convert(news, I32)
        )
        return b.convert(wide, type)
    if kind == "add":
        if type.kind == "float" and type.bits == 16:
            return b.convert(scatter_rows(b, kind, b.convert(lines, F32), positions, b.convert(news, F32)), type)
        return scatter_rows(b, kind, lines, positions, news)
    if type.kind == "complex":
        return None
    if type.kind == "uint" and type.storage != "u8":
        result = scatter_rows(b, kind, b.ordered(lines), positions, b.ordered(news))
        return Tensor(type, lines.shape, b.xor(result, b.scalar(np.iinfo(result.type.numpy).min, result)).parts)
    result = scatter_rows(b, kind, lines, positions, news)
    if type.kind == "float":  # NaN wins: count the NaNs that reach each place
        nan = scatter_rows(b, "max", b.convert(b.is_nan(lines), I32), positions, b.convert(b.is_nan(news), I32))
        result = b.select(b.compare(nan, b.scalar(0, nan), "NE"), b.scalar(np.nan, result), result)
    return result


def _scatter_loop(
    b: Lowering, region: Any, lines: list[Tensor], positions: Tensor, news: list[Tensor], count: int
) -> list[Tensor]:
    """Any body with repeated positions: one update after the other."""

    def step(inner: Lowering, at: Tensor, carried: list[Tensor]) -> list[Tensor]:
        inside, where, fresh = carried[: len(lines)], carried[len(lines)], carried[len(lines) + 1 :]
        row = inner.reshape(at, (1,))
        place = inner.take(where, row, 0)
        old = [inner.take(t, place, 0) for t in inside]
        combined = inner.inline(region, [*old, *(inner.take(n, row, 0) for n in fresh)])
        written = [scatter_rows(inner, "update", t, place, u) for t, u in zip(inside, combined, strict=True)]
        return [*written, where, *fresh]

    return repeat(b, count, [*lines, positions, *news], step)[: len(lines)]
