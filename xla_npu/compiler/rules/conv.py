"""Convolutions: brought to NCHW or NCDHW and one of GE's; what those lack is computed as a sum of matrix products."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxlib.mlir.dialects import stablehlo

from xla_npu.compiler.attributes import integer, ints, precisions, tensor_type
from xla_npu.compiler.dtypes import F32, ElementType
from xla_npu.compiler.lowering import Lowering, rule
from xla_npu.compiler.rules.dot import dot
from xla_npu.compiler.tensor import Tensor

# Limits of the cube unit's convolutions: padding, kernel and dilation; strides.
LARGEST, LARGEST_STRIDE = 255, 63


@dataclass(frozen=True)
class Convolution:
    """The spatial attributes, one entry for each spatial dimension, and the number of feature groups."""

    strides: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


@rule("stablehlo.convolution")
def convolution(b: Lowering, op: Any, x: Tensor, w: Tensor) -> Tensor:
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    kind, shape = tensor_type(op.results[0])
    if kind == F32:
        b.program.precisions |= precisions(op)
    rank = x.rank - 2
    if 0 in shape or 0 in x.shape or 0 in w.shape:
        return b.constant(np.zeros((), kind.numpy), kind, shape)
    x = b.transpose(
        x, [numbers.input_batch_dimension, numbers.input_feature_dimension, *numbers.input_spatial_dimensions]
    )
    w = b.transpose(
        w,
        [
            numbers.kernel_output_feature_dimension,
            numbers.kernel_input_feature_dimension,
            *numbers.kernel_spatial_dimensions,
        ],
    )
    ones = [1] * rank
    padding = ints(op, "padding") or [0] * (2 * rank)
    low, high = padding[0::2], padding[1::2]
    reversed_axes = [i + 2 for i, turn in enumerate(_flags(op, "window_reversal", rank)) if turn]
    w = b.reverse(w, reversed_axes)
    groups, batch_groups = integer(op, "feature_group_count"), integer(op, "batch_group_count")
    if batch_groups > 1:  # each group of the batch has its own output features: groups of features
        n, c, *spatial = x.shape
        x = b.reshape(x, (batch_groups, n // batch_groups, c, *spatial))
        x = b.transpose(x, [1, 0, 2, *range(3, x.rank)])
        x = b.reshape(x, (n // batch_groups, batch_groups * c, *spatial))
        groups = batch_groups
    gaps = [d - 1 for d in ints(op, "lhs_dilation") or ones]
    explicit = any(gaps) or any(not 0 <= p <= LARGEST for p in padding)
    if explicit:
        zero = b.constant(np.zeros((), x.type.numpy), x.type)
        x = b.pad(x, zero, [0, 0, *low], [0, 0, *high], [0, 0, *gaps])
        low, high = [0] * rank, [0] * rank
    spec = Convolution(
        tuple(ints(op, "window_strides") or ones),
        tuple(low),
        tuple(high),
        tuple(ints(op, "rhs_dilation") or ones),
        groups,
    )
    result = convolve(b, x, w, spec, kind)
    order = [numbers.output_batch_dimension, numbers.output_feature_dimension, *numbers.output_spatial_dimensions]
    return b.transpose(result, [order.index(i) for i in range(len(order))])


def _flags(op: Any, name: str, rank: int) -> list[bool]:
    return [bool(v) for v in op.attributes[name]] if name in op.attributes else [False] * rank


def convolve(b: Lowering, x: Tensor, w: Tensor, spec: Convolution, kind: ElementType) -> Tensor:
    """`x` is [batch, features, spatial...], `w` [features, features of a group, spatial...]; so is the result."""
    if kind.kind == "complex":
        real_kind = b.real(b.convert(x, kind)).type
        x, w = b.convert(x, kind), b.convert(w, kind)
        part = lambda p, q: convolve(b, p, q, spec, real_kind)  # noqa: E731
        real = b.subtract(part(b.real(x), b.real(w)), part(b.imag(x), b.imag(w)))
        imag = b.add(part(b.real(x), b.imag(w)), part(b.imag(x), b.real(w)))
        return b.complex(real, imag, kind)
    rank = x.rank - 2
    compute = kind
    if kind.kind == "float":
        compute = kind if x.type == w.type == kind and kind.name in ("f32", "f16", "bf16", "f64") else F32
    x, w = b.convert(x, compute), b.convert(w, compute)
    fits = all(k <= LARGEST for k in (*w.shape[2:], *spec.dilation)) and all(s <= LARGEST_STRIDE for s in spec.strides)
    if compute.name in ("f32", "f16", "bf16") and rank <= 3 and fits:
        return b.convert(_native(b, b.full(x), b.full(w), spec), kind)
    return b.convert(_by_offsets(b, x, w, spec), kind)


def _out(x: tuple[int, ...], w: tuple[int, ...], spec: Convolution) -> tuple[int, ...]:
    return tuple(
        (n + a + c - (k - 1) * d - 1) // s + 1
        for n, k, a, c, d, s in zip(x[2:], w[2:], spec.low, spec.high, spec.dilation, spec.strides, strict=True)
    )


def _native(b: Lowering, x: Tensor, w: Tensor, spec: Convolution) -> Tensor:
    spatial = _out(x.shape, w.shape, spec)
    missing = max(2 - (x.rank - 2), 0)  # without spatial dimensions, or with one: ones in front
    if missing:
        ones = (1,) * missing
        x = b.reshape(x, (*x.shape[:2], *ones, *x.shape[2:]))
        w = b.reshape(w, (*w.shape[:2], *ones, *w.shape[2:]))
        zeros = (0,) * missing
        spec = replace(
            spec,
            strides=(*ones, *spec.strides),
            dilation=(*ones, *spec.dilation),
            low=(*zeros, *spec.low),
            high=(*zeros, *spec.high),
        )
    shape = (x.shape[0], w.shape[0], *_out(x.shape, w.shape, spec))
    flat = x.rank == 4
    layout = "NCHW" if flat else "NCDHW"
    attributes = {
        "strides": [1, 1, *spec.strides],
        "pads": [p for pair in zip(spec.low, spec.high, strict=True) for p in pair],
        "dilations": [1, 1, *spec.dilation],
        "groups": spec.groups,
        "data_format": layout,
    }
    (value,) = b.graph.add(
        "Conv2D" if flat else "Conv3DV2",
        [x.value, w.value],
        [(x.value.dtype, shape)],
        attributes,
        layout=layout,
    )
    result = Tensor(x.type, shape, (value,))
    return b.reshape(result, (*shape[:2], *spatial))


def _by_offsets(b: Lowering, x: Tensor, w: Tensor, spec: Convolution) -> Tensor:
    """Any rank and type: for each place of the kernel, a strided slice of the input times that place's weights."""
    spatial = _out(x.shape, w.shape, spec)
    zero = b.constant(np.zeros((), x.type.numpy), x.type)
    x = b.pad(x, zero, [0, 0, *spec.low], [0, 0, *spec.high])
    n, c = x.shape[:2]
    o, depth = w.shape[:2]
    g = spec.groups
    total: Tensor | None = None
    for offset in itertools.product(*map(range, w.shape[2:])):
        start = [k * d for k, d in zip(offset, spec.dilation, strict=True)]
        limit = [a + (m - 1) * s + 1 for a, m, s in zip(start, spatial, spec.strides, strict=True)]
        part = b.slice(x, [0, 0, *start], [n, c, *limit], [1, 1, *spec.strides])
        part = b.reshape(part, (n, g, depth, int(np.prod(spatial, dtype=np.int64))))
        weights = b.slice(w, [0, 0, *offset], [o, depth, *(k + 1 for k in offset)])
        weights = b.reshape(weights, (g, o // g, depth))
        product = dot(b, weights, part, ([0], [1]), ([2], [2]), x.type)  # [g, o / g, n, places]
        total = product if total is None else b.add(total, product)
    assert total is not None
    result = b.reshape(b.transpose(total, [2, 0, 1, 3]), (n, o, *spatial))
    return result
