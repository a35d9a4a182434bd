"""Fourier transforms as matrix products: the cube unit's work, split by the factors of the length."""

from __future__ import annotations

from typing import Any

import numpy as np

from xla_npu.compiler.attributes import ints, tensor_type, word
from xla_npu.compiler.dtypes import ElementType
from xla_npu.compiler.lowering import Lowering, rule
from xla_npu.compiler.tensor import Tensor

# Transforms up to this length are one product with the transform's matrix.
DENSE = 64


@rule("stablehlo.fft")
def fft(b: Lowering, op: Any, x: Tensor) -> Tensor:
    kind, shape = tensor_type(op.results[0])
    lengths = ints(op, "fft_length")
    variant = word(op, "fft_type")
    if 0 in shape or 0 in x.shape:
        return b.constant(np.zeros((), kind.numpy), kind, shape)
    axes = list(range(x.rank - len(lengths), x.rank))
    inverse = variant in ("IFFT", "IRFFT")
    whole = kind if kind.kind == "complex" else x.type
    if variant == "RFFT":
        x = b.convert(x, whole)
    for axis, length in zip(axes[:-1], lengths[:-1], strict=True):
        if variant != "RFFT":
            x = _along(b, x, axis, length, inverse)
    if variant == "IRFFT":
        x = _hermitian(b, x, lengths[-1])
    x = _along(b, x, axes[-1], lengths[-1], inverse)
    if variant == "RFFT":
        x = b.slice_axis(x, x.rank - 1, 0, lengths[-1] // 2 + 1)
        for axis, length in zip(axes[:-1], lengths[:-1], strict=True):
            x = _along(b, x, axis, length, inverse)
    return b.convert(x, kind)


def _hermitian(b: Lowering, x: Tensor, length: int) -> Tensor:
    """The whole spectrum of a real signal from its first half."""
    axis = x.rank - 1
    x = b.slice_axis(x, axis, 0, length // 2 + 1)
    mirrored = b.reverse(b.slice_axis(x, axis, 1, (length + 1) // 2), [axis])
    conjugate = b.complex(b.real(mirrored), b.negate(b.imag(mirrored)), x.type)
    return b.concatenate([x, conjugate], axis)


def _along(b: Lowering, x: Tensor, axis: int, length: int, inverse: bool) -> Tensor:
    """The transform along one axis; the inverse one divides by the length."""
    order = [i for i in range(x.rank) if i != axis] + [axis]
    turned = b.full(b.transpose(x, order))
    rows = int(np.prod(turned.shape[:-1], dtype=np.int64))
    result = _transform(b, b.reshape(turned, (rows, length)), inverse)
    if inverse:
        result = b.multiply(result, b.scalar(1 / length, result))
    result = b.reshape(result, turned.shape)
    return b.transpose(result, [order.index(i) for i in range(x.rank)])


def _constant(b: Lowering, values: np.ndarray, kind: ElementType, shape: tuple[int, ...]) -> Tensor:
    part = np.float32 if kind.bits == 32 else np.float64
    parts = (np.ascontiguousarray(values.real, part), np.ascontiguousarray(values.imag, part))
    return Tensor(kind, shape, tuple(b.graph.constant(p, kind.storage) for p in parts))


def _factor(length: int) -> int:
    """The largest divisor that a dense transform takes; 1 for a large prime."""
    return max(d for d in range(1, DENSE + 1) if length % d == 0)


def _transform(b: Lowering, x: Tensor, inverse: bool) -> Tensor:
    """[rows, n] to its transform, not normalised."""
    rows, n = x.shape
    sign = 1 if inverse else -1
    if n <= DENSE:
        return _dense(b, x, sign)
    first = _factor(n)
    if first == 1:
        return _bluestein(b, x, sign)
    second = n // first
    # Cooley and Tukey: columns, a twist, rows, and the result read in columns.
    columns = b.reshape(b.full(b.transpose(b.reshape(x, (rows, first, second)), [0, 2, 1])), (rows * second, first))
    columns = b.reshape(_dense(b, columns, sign), (rows, second, first))
    twist = np.exp(sign * 2j * np.pi * np.outer(np.arange(second), np.arange(first)) / n)
    columns = b.multiply(columns, _constant(b, twist[None], x.type, columns.shape))
    lines = b.reshape(b.full(b.transpose(columns, [0, 2, 1])), (rows * first, second))
    lines = b.reshape(_transform(b, lines, inverse), (rows, first, second))
    return b.reshape(b.full(b.transpose(lines, [0, 2, 1])), (rows, n))


def _dense(b: Lowering, x: Tensor, sign: int) -> Tensor:
    n = x.shape[1]
    matrix = np.exp(sign * 2j * np.pi * (np.outer(np.arange(n), np.arange(n)) % n) / n)
    # One real product: [real, imaginary] times [[cos, sin], [-sin, cos]].
    blocks = np.block([[matrix.real, matrix.imag], [-matrix.imag, matrix.real]])
    real = b.real(x).type
    both = b.full(b.concatenate([b.real(x), b.imag(x)], 1))
    product = b.matmul(both.value, b.graph.constant(blocks, real.storage))
    result = Tensor(real, (x.shape[0], 2 * n), (product,))
    return b.complex(b.slice_axis(result, 1, 0, n), b.slice_axis(result, 1, n, 2 * n), x.type)


def _bluestein(b: Lowering, x: Tensor, sign: int) -> Tensor:
    """A length with a large prime factor: as a convolution, of a length that is a power of two."""
    n = x.shape[1]
    size = 1 << (2 * n - 1).bit_length()
    chirp = np.exp(sign * 1j * np.pi * (np.arange(n, dtype=np.int64) ** 2 % (2 * n)) / n)
    filter_ = np.zeros(size, complex)
    filter_[:n] = chirp.conj()
    filter_[size - n + 1 :] = chirp[1:][::-1].conj()
    zero = b.constant(np.zeros((), x.type.numpy), x.type)
    turned = b.multiply(x, _constant(b, chirp[None], x.type, x.shape))
    spectrum = _transform(b, b.pad(turned, zero, [0, 0], [0, size - n]), False)
    spectrum = b.multiply(spectrum, _constant(b, np.fft.fft(filter_)[None] / size, x.type, spectrum.shape))
    result = b.slice_axis(_transform(b, spectrum, True), 1, 0, n)
    return b.multiply(result, _constant(b, chirp[None], x.type, x.shape))
