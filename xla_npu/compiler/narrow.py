"""4-bit and 2-bit integers and float8: stored in bytes, computed in wider types."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xla_npu.compiler.dtypes import F32, I8, I32, TYPES, ElementType
from xla_npu.compiler.tensor import Tensor

if TYPE_CHECKING:
    from xla_npu.compiler.builder import Builder


def widen(b: Builder, x: Tensor) -> Tensor:
    """Integers as int8 or uint8, floats as float32, exactly."""
    if x.type.kind != "float":
        return Tensor(I8 if x.type.kind == "int" else TYPES["ui8"], x.shape, x.parts)
    values = np.arange(2**x.type.bits, dtype=np.uint8).view(x.type.numpy).astype(np.float32)
    if x.type.bits < 8:
        values = np.arange(2**x.type.bits, dtype=np.uint8).astype(np.uint8).view(x.type.numpy).astype(np.float32)
    table = Tensor(F32, values.shape, (b.graph.constant(values, "f32"),))
    index = Tensor(I32, x.shape, (b.cast_value(b.full(x).value, "i32"),))
    return b.take(table, index, 0)


def narrow(b: Builder, x: Tensor, kind: ElementType) -> Tensor:
    """Integers wrap, floats round to nearest even."""
    if kind.kind != "float":
        wide = b.convert(x, I32)
        gap = b.scalar(32 - kind.bits, wide)
        shift = b.shift_right_arithmetic if kind.kind == "int" else b.shift_right_logical
        wide = shift(b.shift_left(wide, gap), gap)
        return Tensor(kind, x.shape, (b.cast_value(wide.value, kind.storage),))
    x = b.convert(x, F32)
    # The number of boundaries below x tells which of the type's sorted values is next to it.
    codes = np.arange(2**kind.bits, dtype=np.uint8)
    values = codes.view(kind.numpy).astype(np.float32)
    finite = np.isfinite(values) | np.isinf(values)
    positive = finite & ~np.signbit(values)
    order = codes[positive][np.argsort(values[positive], kind="stable")]
    sorted_values = values[order]
    top = sorted_values[np.isfinite(sorted_values)]
    edges = _boundaries(top, kind)
    size = b.unary("Abs", x)
    below = b.broadcast_in_dim(size, (*x.shape, len(edges)), range(x.rank))
    limits = b.broadcast(Tensor(F32, edges.shape, (b.graph.constant(edges, "f32"),)), below.shape)
    count = b.reduce("ReduceSum", b.convert(b.compare(below, limits, "GT"), I32), [x.rank])
    table = np.concatenate([order[: len(top)], [_overflow(kind)]]).astype(np.int32)
    code = b.take(Tensor(I32, table.shape, (b.graph.constant(table, "i32"),)), count, 0)
    bits = Tensor(I32, x.shape, (b.bitcast_value(b.full(x).value, "i32"),))
    if (np.signbit(values) & np.isfinite(values)).any():
        sign = b.compare(bits, b.scalar(0, bits), "LT")
        zero_is_unsigned = kind.name.endswith("FNUZ")
        negative = b.or_(code, b.scalar(2 ** (kind.bits - 1), code))
        if zero_is_unsigned:
            negative = b.select(b.compare(code, b.scalar(0, code), "EQ"), code, negative)
        code = b.select(sign, negative, code)
    not_a_number = np.array(np.nan, np.float32).astype(kind.numpy).view(np.uint8)[()]
    code = b.select(b.is_nan(x), b.scalar(int(not_a_number), code), code)
    return Tensor(kind, x.shape, (b.cast_value(code.value, "u8"),))


def _overflow(kind: ElementType) -> int:
    return int(np.array(1e30, np.float32).astype(kind.numpy).view(np.uint8)[()])


def _boundaries(values: np.ndarray, kind: ElementType) -> np.ndarray:
    """For each value the largest float32 that still rounds to it; ties go to the even code."""
    middles = ((values[:-1].astype(np.float64) + values[1:]) / 2).astype(np.float32)
    rounded_down = middles.astype(kind.numpy).astype(np.float32) == values[:-1]
    edges = np.where(rounded_down, middles, np.nextafter(middles, np.float32(-np.inf)))
    last = values[-1]
    high = np.float32(last + (last - values[-2]))
    # The largest float that does not overflow, by bisection over float32's bits.
    low_bits, high_bits = int(last.view(np.int32)), int(np.float32(high).view(np.int32)) + 1
    while high_bits - low_bits > 1:
        middle = (low_bits + high_bits) // 2
        value = np.array(middle, np.int32).view(np.float32)
        if value.astype(kind.numpy).astype(np.float32) == last:
            low_bits = middle
        else:
            high_bits = middle
    return np.append(edges, np.array(low_bits, np.int32).view(np.float32)).astype(np.float32)
