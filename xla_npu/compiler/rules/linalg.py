"""Factorisations as loops over columns or rows, batched, for real and complex matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from xla_npu.compiler.attributes import flag, word
from xla_npu.compiler.dtypes import BOOL
from xla_npu.compiler.lowering import Lowering, rule
from xla_npu.compiler.rules.control import repeat
from xla_npu.compiler.rules.elementwise import complex_divide
from xla_npu.compiler.tensor import Tensor


def _conjugate(b: Lowering, x: Tensor) -> Tensor:
    return x if x.type.kind != "complex" else b.complex(b.real(x), b.negate(b.imag(x)), x.type)


def _divide(b: Lowering, x: Tensor, y: Tensor) -> Tensor:
    return complex_divide(b, x, y) if x.type.kind == "complex" else b.binary("RealDiv", x, y)


def _sum(b: Lowering, x: Tensor, axis: int) -> Tensor:
    if x.type.kind == "complex":
        return b.complex(b.reduce("ReduceSum", b.real(x), [axis]), b.reduce("ReduceSum", b.imag(x), [axis]), x.type)
    return b.reduce("ReduceSum", x, [axis])


def _swap(b: Lowering, x: Tensor) -> Tensor:
    """Matrices transposed."""
    return b.full(b.transpose(x, [*range(x.rank - 2), x.rank - 1, x.rank - 2]))


def _batched(b: Lowering, x: Tensor) -> Tensor:
    """One batch dimension in front of the matrices."""
    return b.reshape(b.full(x), (int(np.prod(x.shape[:-2], dtype=np.int64)), *x.shape[-2:]))


def _at(b: Lowering, x: Tensor, i: Tensor, axis: int) -> Tensor:
    """The slice number `i` along an axis, which stays with size 1."""
    return b.take(x, b.reshape(i, (1,)), axis)


def _here(b: Lowering, i: Tensor, shape: tuple[int, ...], axis: int) -> Tensor:
    """Whether a place along an axis is `i`."""
    return b.compare(b.iota(shape, axis), b.broadcast(i, shape), "EQ")


@rule("stablehlo.cholesky")
def cholesky(b: Lowering, op: Any, a: Tensor) -> Tensor:
    shape = a.shape
    if 0 in shape:
        return a
    lower = flag(op, "lower")
    matrix = _batched(b, a)
    if not lower:
        matrix = _conjugate(b, _swap(b, matrix))
    count, n, _ = matrix.shape

    def step(s: Lowering, j: Tensor, carried: list[Tensor]) -> list[Tensor]:
        matrix, factor = carried
        row = s.broadcast_in_dim(_conjugate(s, _at(s, factor, j, 1)), factor.shape, range(3))
        known = s.reshape(_sum(s, s.multiply(factor, row), 2), (count, n, 1))
        column = s.subtract(_at(s, matrix, j, 2), known)
        pivot = s.unary("Sqrt", s.real(_at(s, column, j, 1)))
        pivot = s.broadcast_in_dim(pivot, column.shape, range(3))
        parts = [s.binary("RealDiv", p, pivot) for p in _real_parts(s, column)]
        column = Tensor(column.type, column.shape, tuple(p.value for p in parts))
        below = s.compare(s.iota(column.shape, 1), s.broadcast(j, column.shape), "GE")
        column = s.select(below, column, s.scalar(0, column))
        wide = s.broadcast_in_dim(column, factor.shape, range(3))
        return [matrix, s.select(_here(s, j, factor.shape, 2), wide, factor)]

    factor = b.constant(np.zeros((), a.type.numpy), a.type, matrix.shape)
    _, factor = repeat(b, n, [matrix, factor], step)
    # A matrix that is not positive definite gives NaN everywhere, as LAPACK's caller does.
    finite = b.reduce("ReduceAny", b.is_nan(b.real(factor)), [1, 2])
    bad = b.broadcast_in_dim(finite, factor.shape, [0])
    factor = b.select(bad, b.scalar(np.nan, factor), factor)
    if not lower:
        factor = _conjugate(b, _swap(b, factor))
    return b.reshape(factor, shape)


def _real_parts(b: Lowering, x: Tensor) -> list[Tensor]:
    return [b.real(x), b.imag(x)] if x.type.kind == "complex" else [x]


@rule("stablehlo.triangular_solve")
def triangular_solve(b: Lowering, op: Any, a: Tensor, right: Tensor) -> Tensor:
    shape = right.shape
    if 0 in shape:
        return right
    lower, left_side = flag(op, "lower"), flag(op, "left_side")
    unit = flag(op, "unit_diagonal")
    transpose = word(op, "transpose_a", "NO_TRANSPOSE")
    matrix, x = _batched(b, a), _batched(b, right)
    # Solve op(A) X = B by rows; X op(A) = B is its transposed form.
    turned = transpose in ("TRANSPOSE", "ADJOINT")
    if transpose == "ADJOINT":
        matrix = _conjugate(b, matrix)
    if not left_side:
        x, turned = _swap(b, x), not turned
    if turned:
        matrix, lower = _swap(b, matrix), not lower
    n = matrix.shape[1]
    strict = np.tri(n, k=-1, dtype=bool) if lower else np.tri(n, k=-1, dtype=bool).T
    diagonal = np.eye(n, dtype=bool)[None]
    mask = Tensor(BOOL, matrix.shape, (b.graph.constant(strict[None], "bool"),))
    on_diagonal = Tensor(BOOL, matrix.shape, (b.graph.constant(diagonal, "bool"),))
    pivots = _sum(b, b.select(on_diagonal, matrix, b.scalar(0, matrix)), 2)
    pivots = b.scalar(1, pivots) if unit else pivots
    triangle = b.full(b.select(mask, matrix, b.scalar(0, matrix)))

    def step(s: Lowering, k: Tensor, carried: list[Tensor]) -> list[Tensor]:
        triangle, pivots, x = carried
        i = k if lower else s.subtract(s.scalar(n - 1, k), k)
        row = s.reshape(_at(s, triangle, i, 1), (triangle.shape[0], n, 1))
        known = _sum(s, s.multiply(s.broadcast_in_dim(row, x.shape, range(3)), x), 1)
        here = s.subtract(s.reshape(_at(s, x, i, 1), known.shape), known)
        pivot = s.broadcast_in_dim(_at(s, pivots, i, 1), here.shape, range(2))
        solved = s.broadcast_in_dim(_divide(s, here, pivot), x.shape, [0, 2])
        return [triangle, pivots, s.select(_here(s, i, x.shape, 1), solved, x)]

    # Unknown rows must not count yet: their coefficients are zero in the strict triangle.
    x = repeat(b, n, [triangle, b.full(pivots), x], step)[2]
    if not left_side:
        x = _swap(b, x)
    return b.reshape(x, shape)
