"""Typed array operations on a GE graph, with StableHLO's semantics: what the lowering rules are written in."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from xla_npu.compiler.dtypes import (
    BOOL,
    F32,
    GE_ENUM,
    I32,
    I64,
    SIGNED,
    STORAGE_NUMPY,
    TYPES,
    WIDER,
    ElementType,
)
from xla_npu.compiler.errors import Unsupported
from xla_npu.compiler.graph import Graph, Value
from xla_npu.compiler.tensor import Tensor

Shape = tuple[int, ...]

COUNTED = 1 << 16  # numbers that a program may carry to count along one axis; more are made where it runs


def counts_itself(type: ElementType) -> bool:
    """Whether sums of this type are exact up to any length an axis can have."""
    return type.kind in ("int", "uint") and type.bits >= 32


@cache
def _native() -> dict[str, frozenset[str]]:
    text = files("xla_npu.compiler").joinpath("native.toml").read_text()
    return {operator: frozenset(types.split()) for operator, types in tomllib.loads(text).items()}


def takes(operator: str, dtype: str) -> bool:
    """Whether the NPU has `operator` for GE type `dtype`."""
    types = _native().get(operator)
    return types is None or dtype in types


def lacks(operator: str, dtype: str) -> Unsupported:
    """The refusal of an operator for a GE type, with what is there instead."""
    types = ", ".join(sorted(_native()[operator]))
    return Unsupported(
        f"the NPU has no {operator} for type {dtype}, but for {types} (documented for Ascend950, assumed for others). "
        "Convert with astype, or run this part on JAX's CPU backend"
    )


def wide_enough(operator: str, dtype: str) -> str:
    """The narrowest GE type that holds `dtype` and that `operator` takes."""
    wide = dtype
    while not takes(operator, wide):
        if wide not in WIDER:
            raise lacks(operator, dtype)
        wide = WIDER[wide]
    return wide


def _prod(shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _uniform(array: np.ndarray) -> bool:
    """Whether all elements have the same bits (-0.0 is not 0.0)."""
    raw = np.frombuffer(array.tobytes(), np.uint8).reshape(array.size, array.itemsize)
    return bool((raw == raw[0]).all())


class Builder:
    """Adds operators to one graph. Methods take and return `Tensor`s; names follow StableHLO or numpy."""

    def __init__(self, graph: Graph):
        self.graph = graph

    # --- values ---------------------------------------------------------------------------------------------------

    def emit(self, kind: str, inputs: Sequence[Value], dtype: str, shape: Sequence[int], **attributes: Any) -> Value:
        """One operator with one output, as it is."""
        return self.graph.add(kind, inputs, [(dtype, tuple(shape))], attributes)[0]

    def ints(self, values: Any) -> Value:
        """An int64 constant for shapes, axes and the like."""
        return self.graph.constant(np.asarray(values, np.int64).reshape(np.shape(values) or ()), "i64")

    def move(
        self, kind: str, parts: Sequence[Value], others: Sequence[Value], shape: Sequence[int], **attributes: Any
    ) -> Value:
        """An operator that moves data: `parts` share a type, which is changed for one the NPU can move and back."""
        own = parts[0].dtype
        if own == "f64" and not takes(kind, own):  # no type is wider, but bits can be moved
            moved = self.move(kind, [self.bitcast_value(part, "i64") for part in parts], others, shape, **attributes)
            return self.bitcast_value(moved, own)
        wide = wide_enough(kind, own)
        inputs = [*(self.cast_value(part, wide) for part in parts), *others]
        return self.cast_value(self.emit(kind, inputs, wide, shape, **attributes), own)

    def constant(self, array: Any, type: ElementType, shape: Shape | None = None) -> Tensor:
        """A constant; `shape` broadcasts a scalar."""
        array = np.asarray(array)
        shape = array.shape if shape is None else shape
        if array.ndim and array.size and _uniform(array):  # only one element is stored
            array = array.flat[0]
        if type.kind == "complex":
            parts: tuple[Any, ...] = (np.real(array), np.imag(array))
        elif type.name.startswith("f8") or type.name.startswith("f4"):
            parts = (np.asarray(array).astype(type.numpy).view(np.uint8),)
        elif type.kind == "uint" and type.bits >= 16:
            parts = (np.asarray(array).astype(type.numpy).view(SIGNED[type.bits].numpy),)
        else:
            parts = (np.asarray(array),)
        return Tensor(type, tuple(shape), tuple(self.graph.constant(part, type.storage) for part in parts))

    def scalar(self, value: Any, like: Tensor) -> Tensor:
        """A constant of the type and shape of `like`."""
        return self.constant(np.asarray(value).astype(like.type.numpy), like.type, like.shape)

    def iota(self, shape: Shape, axis: int, type: ElementType = I32) -> Tensor:
        """0, 1, 2, ... along `axis`."""
        stored = tuple(shape[axis] if i == axis else 1 for i in range(len(shape)))
        if shape[axis] > COUNTED and counts_itself(type):
            counted = self.reshape(self._count(shape[axis], type), stored)
        else:
            counted = self.constant(np.arange(shape[axis]).astype(type.numpy).reshape(stored), type)
        return Tensor(type, tuple(shape), counted.parts)

    def _count(self, length: int, type: ElementType) -> Tensor:
        """0, 1, 2, ... as sums of two short constants: one of this length would be most of a compiled program."""
        width = COUNTED // 16
        rows = -(-length // width)
        high = self.constant(np.arange(rows).astype(type.numpy).reshape(rows, 1) * type.numpy(width), type)
        low = self.constant(np.arange(width).astype(type.numpy).reshape(1, width), type)
        both = self.add(self.broadcast(high, (rows, width)), self.broadcast(low, (rows, width)))
        return self.slice_axis(self.reshape(both, (rows * width,)), 0, 0, length)

    def full(self, tensor: Tensor) -> Tensor:
        """The same tensor with every part as large as its shape."""
        if all(part.shape == tensor.shape for part in tensor.parts):
            return tensor
        return self._map(tensor, lambda part: self._broadcast(part, tensor.shape), tensor.shape)

    def _broadcast(self, part: Value, shape: Shape) -> Value:
        if part.shape == shape:
            return part
        if 0 in shape:
            return self.graph.constant(np.zeros(shape), part.dtype)
        return self.move("BroadcastTo", [part], [self.ints(shape)], shape)

    def _map(self, tensor: Tensor, function: Callable[[Value], Value], shape: Sequence[int]) -> Tensor:
        return Tensor(tensor.type, tuple(shape), tuple(function(part) for part in tensor.parts))

    def real(self, x: Tensor) -> Tensor:
        """The real part, of real type."""
        return Tensor(_REAL[x.type.storage], x.shape, x.parts[:1])

    def imag(self, x: Tensor) -> Tensor:
        """The imaginary part, of real type."""
        if len(x.parts) == 1:
            return self.scalar(0, x)
        return Tensor(_REAL[x.type.storage], x.shape, x.parts[1:])

    def complex(self, real: Tensor, imag: Tensor, type: ElementType) -> Tensor:
        """A complex tensor from its parts."""
        return Tensor(type, real.shape, (real.value, imag.value))

    # --- shape ----------------------------------------------------------------------------------------------------

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Row-major reshape."""
        shape = tuple(shape)
        if shape == x.shape:
            return x

        def one(part: Value) -> Value:
            if part.shape == () and part.elements == 1 and x.shape != ():
                return part
            whole = self._broadcast(part, x.shape)
            return self.reshape_value(whole, shape)

        if x.shape == ():
            return self._map(x, lambda part: part, shape)
        return self._map(x, one, shape)

    def reshape_value(self, value: Value, shape: Sequence[int]) -> Value:
        """Reshape of a GE value."""
        shape = tuple(shape)
        if value.shape == shape:
            return value
        if value.array is not None:
            return self.graph.constant(value.array.reshape(shape), value.dtype)
        return self.emit("Reshape", [value, self.ints(list(shape))], value.dtype, shape)

    def broadcast_in_dim(self, x: Tensor, shape: Sequence[int], dimensions: Sequence[int]) -> Tensor:
        """StableHLO's broadcast_in_dim; nothing is copied yet."""
        shape = tuple(shape)
        order = sorted(range(x.rank), key=lambda i: dimensions[i])
        if list(order) != list(range(x.rank)):
            x, dimensions = self.transpose(x, order), [dimensions[i] for i in order]

        def one(part: Value) -> Value:
            if part.shape == ():
                return part
            stored = [1] * len(shape)
            for i, dimension in enumerate(dimensions):
                stored[dimension] = part.shape[i]
            return self.reshape_value(part, stored)

        return self._map(x, one, shape)

    def broadcast(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """numpy's broadcasting: aligned at the last dimension."""
        shape = tuple(shape)
        return self.broadcast_in_dim(x, shape, range(len(shape) - x.rank, len(shape)))

    def transpose(self, x: Tensor, permutation: Sequence[int]) -> Tensor:
        """Dimension i of the result is dimension permutation[i] of `x`."""
        permutation = list(permutation)
        shape = tuple(x.shape[p] for p in permutation)
        if permutation == sorted(permutation):
            return x

        def one(part: Value) -> Value:
            if part.shape == ():
                return part
            stored = [part.shape[p] for p in permutation]
            if [p for p in permutation if part.shape[p] != 1] == [p for p in range(x.rank) if part.shape[p] != 1]:
                return self.reshape_value(part, stored)
            return self.move("Transpose", [part], [self.ints(permutation)], stored)

        return self._map(x, one, shape)

    def slice(
        self, x: Tensor, start: Sequence[int], limit: Sequence[int], stride: Sequence[int] | None = None
    ) -> Tensor:
        """Strided slice with positive strides."""
        stride = list(stride or [1] * x.rank)
        shape = tuple(-(-(b - a) // s) for a, b, s in zip(start, limit, stride, strict=True))
        if shape == x.shape:
            return x

        def one(part: Value) -> Value:
            if part.shape == () or 0 in shape:
                return part if 0 not in part.shape else self.graph.constant(0, part.dtype)
            whole = [part.shape[i] == 1 and x.shape[i] != 1 for i in range(x.rank)]
            begin = [0 if whole[i] else start[i] for i in range(x.rank)]
            end = [1 if whole[i] else limit[i] for i in range(x.rank)]
            size = [1 if whole[i] else shape[i] for i in range(x.rank)]
            steps = [1 if whole[i] else stride[i] for i in range(x.rank)]
            if tuple(size) == part.shape:
                return part
            if all(s == 1 for s in steps):
                return self.move("Slice", [part], [self.ints(begin), self.ints(size)], size)
            return self.move("StridedSlice", [part], [self.ints(begin), self.ints(end), self.ints(steps)], size)

        return self._map(x, one, shape)

    def slice_axis(self, x: Tensor, axis: int, start: int, limit: int, stride: int = 1) -> Tensor:
        """A slice along one axis."""
        starts, limits, strides = [0] * x.rank, list(x.shape), [1] * x.rank
        starts[axis], limits[axis], strides[axis] = start, limit, stride
        return self.slice(x, starts, limits, strides)

    def concatenate(self, tensors: Sequence[Tensor], axis: int) -> Tensor:
        """Joins tensors along an axis."""
        shape = list(tensors[0].shape)
        shape[axis] = sum(t.shape[axis] for t in tensors)
        tensors = [t for t in tensors if t.shape[axis]] or list(tensors[:1])
        if len(tensors) == 1:
            return tensors[0]
        tensors = [self.full(t) for t in tensors]
        parts = [
            self.graph.add(
                "ConcatD",
                [t.parts[i] for t in tensors],
                [(tensors[0].parts[i].dtype, tuple(shape))],
                {"concat_dim": axis, "N": len(tensors)},
                dynamic_inputs=len(tensors),
            )[0]
            for i in range(len(tensors[0].parts))
        ]
        return Tensor(tensors[0].type, tuple(shape), tuple(parts))

    def pad(
        self,
        x: Tensor,
        value: Tensor,
        low: Sequence[int],
        high: Sequence[int],
        interior: Sequence[int] | None = None,
    ) -> Tensor:
        """StableHLO's pad: negative edges cut, `interior` puts that many elements between neighbours."""
        interior = interior or [0] * x.rank
        shape = tuple(a + b + n + max(n - 1, 0) * i for n, a, b, i in zip(x.shape, low, high, interior, strict=True))
        if 0 in shape:
            return self.constant(np.zeros(shape, x.type.numpy), x.type, shape)
        if 0 in x.shape:
            return self.broadcast(value, shape)
        for axis, gap in enumerate(interior):
            if gap and x.shape[axis] > 1:
                count = x.shape[axis]
                split = self.reshape(x, (*x.shape[:axis], count, 1, *x.shape[axis + 1 :]))
                edges = [0] * split.rank
                edges[axis + 1] = gap
                split = self._pad_edges(split, value, [0] * split.rank, edges)
                merged = self.reshape(split, (*x.shape[:axis], count * (gap + 1), *x.shape[axis + 1 :]))
                x = self.slice_axis(merged, axis, 0, count * (gap + 1) - gap)
        start = [max(-a, 0) for a in low]
        limit = [n - max(-b, 0) for n, b in zip(x.shape, high, strict=True)]
        if any(a > b for a, b in zip(start, limit, strict=True)):
            # One edge cuts more than there is: pad the other one first.
            x = self._pad_edges(x, value, [max(a, 0) for a in low], [max(b, 0) for b in high])
            return self.slice(x, start, [a + n for a, n in zip(start, shape, strict=True)])
        x = self.slice(x, start, limit)
        return self._pad_edges(x, value, [max(a, 0) for a in low], [max(b, 0) for b in high])

    def _pad_edges(self, x: Tensor, value: Tensor, low: Sequence[int], high: Sequence[int]) -> Tensor:
        shape = tuple(n + a + b for n, a, b in zip(x.shape, low, high, strict=True))
        if shape == x.shape:
            return x
        if 0 in x.shape:
            return self.broadcast(value, shape)
        x = self.full(x)
        paddings = self.ints([[a, b] for a, b in zip(low, high, strict=True)])
        parts = tuple(
            self.emit("PadV3", [part, paddings, fill], part.dtype, shape, mode="constant", paddings_contiguous=True)
            for part, fill in zip(x.parts, value.parts, strict=True)
        )
        return Tensor(x.type, shape, parts)

    def reverse(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        """Reverses the order along `axes`."""

        def one(part: Value) -> Value:
            real = [axis for axis in axes if part.shape and part.shape[axis] > 1]
            if not real or 0 in part.shape:
                return part
            return self.move("ReverseV2", [part], [self.ints(real)], part.shape)

        return self._map(x, one, x.shape)

    def take(self, x: Tensor, indices: Tensor, axis: int) -> Tensor:
        """numpy's take: the dimensions of `indices` replace `axis`; indices must be in bounds."""
        shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
        if 0 in shape:
            return self.constant(np.zeros(shape, x.type.numpy), x.type, shape)
        x, indices = self.full(x), self.full(indices)
        return self._map(
            x,
            lambda part: self.move("GatherV2", [part], [indices.value, self.ints(axis)], shape, batch_dims=0),
            shape,
        )

    def take_along(self, x: Tensor, indices: Tensor, axis: int) -> Tensor:
        """numpy's take_along_axis."""
        x, indices = self.full(x), self.full(indices)
        if 0 in indices.shape:
            return self.constant(np.zeros(indices.shape, x.type.numpy), x.type, indices.shape)
        return self._map(
            x,
            lambda part: self.move("GatherElements", [part], [indices.value], indices.shape, dim=axis),
            indices.shape,
        )

    # --- elementwise ----------------------------------------------------------------------------------------------

    def _elementwise(
        self, kind: str, parts: Sequence[Value], dtype: str | None = None, first: int = 0, **attributes: Any
    ) -> Value:
        """One elementwise operator on the parts from `first` on, in a type the NPU has it for.

        `dtype` is the result's when it is not the operands'.
        """
        own = parts[first].dtype
        wide = wide_enough(kind, own)
        if wide != own:
            parts = [*parts[:first], *(self.cast_value(part, wide) for part in parts[first:])]
        shape = np.broadcast_shapes(*(part.shape for part in parts))
        if 0 in shape:
            return self.graph.constant(np.zeros(shape), dtype or own)
        result = self.emit(kind, parts, dtype or wide, shape, **attributes)
        return result if dtype else self.cast_value(result, own)

    def cast_value(self, value: Value, dtype: str) -> Value:
        """GE's Cast (integers wrap)."""
        if value.dtype == dtype:
            return value
        for one in (value.dtype, dtype):
            if not takes("Cast", one):
                raise lacks("Cast", one)
        array = value.array
        if array is not None and array.size <= 1024 and array.dtype.kind in "iub":  # integers convert exactly
            return self.graph.constant(array.astype(STORAGE_NUMPY[dtype]), dtype)
        if dtype == "f64" and value.dtype != "i64":  # float64 is made from int64 only
            if np.dtype(STORAGE_NUMPY[value.dtype]).kind not in "iub":
                raise Unsupported(
                    f"the NPU has no Cast for type f64 from {value.dtype}, but from integers. "
                    "Keep float32 with astype, or run this part on JAX's CPU backend"
                )
            value = self.cast_value(value, "i64")
        return self.emit("Cast", [value], dtype, value.shape, dst_type=GE_ENUM[dtype])

    def bitcast_value(self, value: Value, dtype: str) -> Value:
        """The same bits as another type of the same width."""
        if value.dtype == dtype:
            return value
        return self.emit("Bitcast", [value], dtype, value.shape, type=GE_ENUM[dtype], keep_dim=False)

    def unary(self, kind: str, x: Tensor, **attributes: Any) -> Tensor:
        """An elementwise operator of one operand of real type."""
        return Tensor(x.type, x.shape, (self._elementwise(kind, [x.value], **attributes),))

    def binary(self, kind: str, x: Tensor, y: Tensor) -> Tensor:
        """An elementwise operator of two operands of the same type and shape."""
        return Tensor(x.type, x.shape, (self._elementwise(kind, [x.value, y.value]),))

    def _logical(self, kind: str, *tensors: Tensor) -> Tensor:
        return Tensor(BOOL, tensors[0].shape, (self._elementwise(kind, [t.value for t in tensors], "bool"),))

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Sum; `or` for booleans."""
        if x.type.kind == "bool":
            return self.or_(x, y)
        parts = zip(x.parts, y.parts, strict=True)
        return Tensor(x.type, x.shape, tuple(self._elementwise("Add", [a, b]) for a, b in parts))

    def subtract(self, x: Tensor, y: Tensor) -> Tensor:
        """Difference; `xor` for booleans."""
        if x.type.kind == "bool":
            return self.xor(x, y)
        parts = zip(x.parts, y.parts, strict=True)
        return Tensor(x.type, x.shape, tuple(self._elementwise("Sub", [a, b]) for a, b in parts))

    def multiply(self, x: Tensor, y: Tensor) -> Tensor:
        """Product; `and` for booleans."""
        if x.type.kind == "bool":
            return self.and_(x, y)
        if x.type.kind == "complex":
            (a, b), (c, d) = x.parts, y.parts
            mul = lambda p, q: self._elementwise("Mul", [p, q])  # noqa: E731
            real = self._elementwise("Sub", [mul(a, c), mul(b, d)])
            imag = self._elementwise("Add", [mul(a, d), mul(b, c)])
            return Tensor(x.type, x.shape, (real, imag))
        return self.binary("Mul", x, y)

    def negate(self, x: Tensor) -> Tensor:
        """0 - x for unsigned types."""
        if x.type.kind == "uint":
            return self.subtract(self.scalar(0, x), x)
        return Tensor(x.type, x.shape, tuple(self._elementwise("Neg", [part]) for part in x.parts))

    def and_(self, x: Tensor, y: Tensor) -> Tensor:
        """Bitwise, or logical for booleans."""
        return self._logical("LogicalAnd", x, y) if x.type.kind == "bool" else self.binary("BitwiseAnd", x, y)

    def or_(self, x: Tensor, y: Tensor) -> Tensor:
        """Bitwise, or logical for booleans."""
        return self._logical("LogicalOr", x, y) if x.type.kind == "bool" else self.binary("BitwiseOr", x, y)

    def xor(self, x: Tensor, y: Tensor) -> Tensor:
        """Bitwise, or logical for booleans."""
        if x.type.kind == "bool":
            return self._logical("NotEqual", x, y)
        return self.binary("BitwiseXor", x, y)

    def not_(self, x: Tensor) -> Tensor:
        """Bitwise, or logical for booleans."""
        if x.type.kind == "bool":
            return self._logical("LogicalNot", x)
        return Tensor(x.type, x.shape, (self._elementwise("Invert", [x.value]),))

    def compare(self, x: Tensor, y: Tensor, direction: str) -> Tensor:
        """StableHLO's compare; `direction` is EQ, NE, LT, LE, GT or GE. NaN compares as IEEE has it."""
        kind = {"EQ": "Equal", "NE": "NotEqual", "LT": "Less", "LE": "LessEqual", "GT": "Greater", "GE": "GreaterEqual"}
        if x.type.kind == "complex":
            same = self.and_(
                self.compare(self.real(x), self.real(y), "EQ"), self.compare(self.imag(x), self.imag(y), "EQ")
            )
            return same if direction == "EQ" else self.not_(same)
        if x.type.kind == "uint" and direction not in ("EQ", "NE"):
            x, y = self.ordered(x), self.ordered(y)
        return self._logical(kind[direction], x, y)

    def ordered(self, x: Tensor) -> Tensor:
        """An unsigned tensor as the signed one of the same order."""
        if x.type.storage == "u8":
            return x
        signed = self.as_signed(x)
        return self.xor(signed, self.scalar(np.iinfo(signed.type.numpy).min, signed))

    def as_signed(self, x: Tensor) -> Tensor:
        """The same bits as a signed integer."""
        return Tensor(SIGNED[x.type.bits], x.shape, x.parts) if x.type.storage != "u8" else x

    def is_nan(self, x: Tensor) -> Tensor:
        """Whether an element is not a number."""
        return self.compare(x, x, "NE")

    def select(self, predicate: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """`x` where `predicate`, else `y`."""

        def one(a: Value, b: Value) -> Value:
            if a.dtype == "f64":  # no type is wider, but bits can be chosen
                bits = [self.bitcast_value(part, "i64") for part in (a, b)]
                return self.bitcast_value(self._elementwise("SelectV2", [predicate.value, *bits], first=1), "f64")
            return self._elementwise("SelectV2", [predicate.value, a, b], first=1)

        return Tensor(x.type, x.shape, tuple(map(one, x.parts, y.parts)))

    def maximum(self, x: Tensor, y: Tensor) -> Tensor:
        """Larger one; NaN wins."""
        return self._extreme("Maximum", "GE", x, y)

    def minimum(self, x: Tensor, y: Tensor) -> Tensor:
        """Smaller one; NaN wins."""
        return self._extreme("Minimum", "LE", x, y)

    def _extreme(self, kind: str, direction: str, x: Tensor, y: Tensor) -> Tensor:
        if x.type.kind == "bool":
            return (self.or_ if kind == "Maximum" else self.and_)(x, y)
        if x.type.kind == "uint" and x.type.storage != "u8":
            return self.select(self.compare(x, y, direction), x, y)
        if x.type.kind == "complex":  # lexicographic, as numpy orders complex numbers
            strict = "GT" if kind == "Maximum" else "LT"
            a, b = self.real(x), self.real(y)
            first = self.or_(
                self.compare(a, b, strict),
                self.and_(self.compare(a, b, "EQ"), self.compare(self.imag(x), self.imag(y), direction)),
            )
            return self.select(first, x, y)
        result = self.binary(kind, x, y)
        if x.type.kind == "float":
            for operand in (y, x):
                if operand.constant is None or np.isnan(operand.constant.astype(np.float64)).any():
                    result = self.select(self.is_nan(operand), operand, result)
        return result

    def clamp(self, x: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """`x` limited to `low` to `high`."""
        return self.minimum(self.maximum(x, low), high)

    def shift_left(self, x: Tensor, amount: Tensor) -> Tensor:
        """0 for amounts outside 0 to the width - 1."""
        return self._shift("LeftShift", x, amount, self.scalar(0, x))

    def shift_right_arithmetic(self, x: Tensor, amount: Tensor) -> Tensor:
        """Fills with the sign, however large the amount."""
        signed = Tensor(SIGNED[x.type.bits], x.shape, x.parts) if x.type.bits >= 8 else x
        if x.type.storage == "u8" and x.type.bits == 8:
            signed = Tensor(SIGNED[8], x.shape, (self.bitcast_value(x.value, "i8"),))
        limit = x.type.bits - 1
        inside = self._inside(amount)
        amount = self.select(inside, amount, self.scalar(limit, amount))
        result = self._elementwise("RightShift", [signed.value, self._like(amount.value, signed.value)])
        return Tensor(x.type, x.shape, (self.bitcast_value(result, x.type.storage),))

    def shift_right_logical(self, x: Tensor, amount: Tensor) -> Tensor:
        """Fills with zeros; 0 for amounts outside 0 to the width - 1."""
        return self._shift("RightShift", x, amount, self.scalar(0, x), unsigned=True)

    def _inside(self, amount: Tensor) -> Tensor:
        limit = amount.type.bits
        if amount.type.storage == "u8":
            return self.compare(amount, self.scalar(limit, amount), "LT")
        signed = self.as_signed(amount)
        low = self.compare(signed, self.scalar(0, signed), "GE")
        return self.and_(low, self.compare(signed, self.scalar(limit, signed), "LT"))

    def _like(self, value: Value, other: Value) -> Value:
        return value if value.dtype == other.dtype else self.bitcast_value(value, other.dtype)

    def _shift(self, kind: str, x: Tensor, amount: Tensor, outside: Tensor, unsigned: bool = False) -> Tensor:
        known = amount.constant
        always = known is not None and bool(((known >= 0) & (known < x.type.bits)).all())
        inside = None if always else self._inside(amount)
        safe = amount if inside is None else self.select(inside, amount, self.scalar(0, amount))
        storage = f"u{x.type.bits}" if unsigned else x.type.storage
        value, count = self.bitcast_value(x.value, storage), self.bitcast_value(safe.value, storage)
        result = Tensor(x.type, x.shape, (self.bitcast_value(self._elementwise(kind, [value, count]), x.type.storage),))
        return result if inside is None else self.select(inside, result, outside)

    # --- conversion -----------------------------------------------------------------------------------------------

    def convert(self, x: Tensor, type: ElementType) -> Tensor:
        """StableHLO's convert: float to integer truncates and saturates, NaN becomes 0; integers wrap."""
        if x.type == type:
            return x
        if type.kind == "complex":
            if x.type.kind == "complex":
                return self._map(Tensor(type, x.shape, x.parts), lambda p: self.cast_value(p, type.storage), x.shape)
            real = self.convert(x, _REAL[type.storage])
            return self.complex(real, self.scalar(0, real), type)
        if x.type.kind == "complex":
            if type.kind == "bool":
                return self.compare(x, self.scalar(0, x), "NE")
            return self.convert(self.real(x), type)
        from xla_npu.compiler import narrow

        if x.type.emulated:
            return self.convert(narrow.widen(self, x), type)
        if type.emulated:
            return narrow.narrow(self, x, type)
        if type.kind == "bool":
            return self.compare(x, self.scalar(0, x), "NE")
        if x.type.kind == "float" and type.kind in ("int", "uint"):
            return self._float_to_integer(x, type)
        if x.type.kind == "uint" and x.type.storage != "u8":
            if type.kind in ("int", "uint") and type.bits <= x.type.bits:
                return Tensor(type, x.shape, (self.cast_value(x.value, type.storage),))
            if x.type.bits == 64:
                return self._uint64_to_float(x, type)
            wide = self.zero_extend(x)
            return self.convert(wide, type)
        return Tensor(type, x.shape, (self.cast_value(x.value, type.storage),))

    def zero_extend(self, x: Tensor) -> Tensor:
        """A uint16 or uint32 tensor as the non-negative signed one of twice the width."""
        wide = SIGNED[2 * x.type.bits]
        value = Tensor(wide, x.shape, (self.cast_value(x.value, wide.storage),))
        return self.and_(value, self.scalar(2**x.type.bits - 1, value))

    def _uint64_to_float(self, x: Tensor, type: ElementType) -> Tensor:
        # Above 2^63: half of it, the lost bit kept for rounding, then doubled.
        signed = self.as_signed(x)
        one = self.scalar(1, signed)
        half = self.or_(self.as_signed(self.shift_right_logical(x, self.scalar(1, x))), self.and_(signed, one))
        doubled = self.convert(half, type)
        doubled = self.add(doubled, doubled)
        return self.select(self.compare(signed, self.scalar(0, signed), "LT"), doubled, self.convert(signed, type))

    def _float_to_integer(self, x: Tensor, type: ElementType) -> Tensor:
        if x.type.bits == 16:
            x = self.convert(x, F32)
        info = np.iinfo(type.numpy)
        low, high = int(info.min), int(info.max)
        via = I64 if type.bits == 64 or (type.bits == 32 and type.kind == "uint") else I32
        finite = self.select(self.is_nan(x), self.scalar(0, x), x)
        if type.bits == 64 and type.kind == "uint":
            top = self.scalar(2.0**63, x)
            above = self.compare(finite, top, "GE")
            rest = self.select(above, self.subtract(finite, top), finite)
            lower = self._saturate(rest, I64, 0, 2**63 - 1)
            return self.select(
                above,
                Tensor(type, x.shape, self.xor(lower, self.scalar(-(2**63), lower)).parts),
                Tensor(type, x.shape, lower.parts),
            )
        result = self._saturate(finite, via, low, high)
        return Tensor(type, x.shape, (self.cast_value(result.value, type.storage),))

    def _saturate(self, x: Tensor, via: ElementType, low: int, high: int) -> Tensor:
        # The bound may not be a float: the float next to it inside would be too small, so select above it.
        edge = self.scalar(float(high) if float(high) > high else float(high + 1), x)
        bottom = self.scalar(float(low), x)
        safe = self.select(self.compare(x, edge, "GE"), self.scalar(0, x), x)
        safe = self.select(self.compare(x, bottom, "LT"), self.scalar(0, x), safe)
        cast = Tensor(via, x.shape, (self.cast_value(safe.value, via.storage),))
        cast = self.select(self.compare(x, edge, "GE"), self.constant(high, via, x.shape), cast)
        return self.select(self.compare(x, bottom, "LT"), self.constant(low, via, x.shape), cast)

    # --- reduction ------------------------------------------------------------------------------------------------

    def reduce(self, kind: str, x: Tensor, axes: Sequence[int]) -> Tensor:
        """`kind` is ReduceSum, ReduceProd, ReduceMax, ReduceMin, ReduceAll or ReduceAny; real types only."""
        shape = tuple(n for i, n in enumerate(x.shape) if i not in axes)
        if not axes:
            return x
        x = self.full(x)
        own = x.value.dtype
        wide = wide_enough(kind, own)
        inputs = [self.cast_value(x.value, wide), self.ints(list(axes))]
        return Tensor(x.type, shape, (self.cast_value(self.emit(kind, inputs, wide, shape, keep_dims=False), own),))

    # --- matrix product -------------------------------------------------------------------------------------------

    def matmul(self, x: Value, y: Value, transpose_x: bool = False, transpose_y: bool = False) -> Value:
        """[m, k] times [k, n], or batches of them; each transposed in its last two dimensions when told so."""
        rows = x.shape[-1] if transpose_x else x.shape[-2]
        columns = y.shape[-2] if transpose_y else y.shape[-1]
        shape = (*x.shape[:-2], rows, columns)
        if not takes("MatMulV2", x.dtype):
            raise lacks("MatMulV2", x.dtype)
        if len(shape) == 2:
            return self.emit("MatMulV2", [x, y], x.dtype, shape, transpose_x1=transpose_x, transpose_x2=transpose_y)
        return self.emit("BatchMatMulV2", [x, y], x.dtype, shape, adj_x1=transpose_x, adj_x2=transpose_y)


# The real type of a complex type's parts, by their storage.
_REAL = {"f32": F32, "f64": TYPES["f64"]}
