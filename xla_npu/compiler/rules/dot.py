"""Matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxlib.mlir.dialects import stablehlo

from xla_npu.compiler.attributes import precisions, tensor_type
from xla_npu.compiler.dtypes import BOOL, F32, I32, ElementType
from xla_npu.compiler.lowering import Lowering, rule
from xla_npu.compiler.tensor import Tensor


def _prod(values: Any) -> int:
    return int(np.prod(list(values), dtype=np.int64))


@rule("stablehlo.dot_general")
def dot_general(b: Lowering, op: Any, x: Tensor, y: Tensor) -> Tensor:
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    kind, _ = tensor_type(op.results[0])
    if kind == F32:
        b.program.precisions |= precisions(op)
    return dot(
        b,
        x,
        y,
        (list(numbers.lhs_batching_dimensions), list(numbers.rhs_batching_dimensions)),
        (list(numbers.lhs_contracting_dimensions), list(numbers.rhs_contracting_dimensions)),
        kind,
    )


@rule("stablehlo.dot")
def plain_dot(b: Lowering, op: Any, x: Tensor, y: Tensor) -> Tensor:
    return dot(b, x, y, ([], []), ([x.rank - 1], [0]), tensor_type(op.results[0])[0])


def dot(
    b: Lowering,
    x: Tensor,
    y: Tensor,
    batch: tuple[list[int], list[int]],
    contract: tuple[list[int], list[int]],
    kind: ElementType,
) -> Tensor:
    """dot_general: the result has the batch dimensions, then those left of `x`, then those left of `y`."""
    left = [i for i in range(x.rank) if i not in batch[0] and i not in contract[0]]
    right = [i for i in range(y.rank) if i not in batch[1] and i not in contract[1]]
    batch_shape = [x.shape[i] for i in batch[0]]
    left_shape, right_shape = [x.shape[i] for i in left], [y.shape[i] for i in right]
    shape = (*batch_shape, *left_shape, *right_shape)
    depth = _prod(x.shape[i] for i in contract[0])
    if 0 in shape or depth == 0:
        return b.constant(np.zeros((), kind.numpy), kind, shape)
    if kind.kind == "complex":
        return _complex_dot(b, b.convert(x, kind), b.convert(y, kind), batch, contract, kind)
    compute = _compute_type(x.type, y.type, kind)
    x, y = b.convert(x, compute), b.convert(y, compute)
    if compute.kind != "float":
        return b.convert(_integer_dot(b, x, y, batch, contract, left, right, shape), kind)
    x, x_transposed = _matrix(b, x, batch[0], left, contract[0])
    y, y_transposed = _matrix(b, y, batch[1], right, contract[1])
    # _matrix gives [batch, free, contracted]: the second operand is transposed by the product unless it came turned.
    product = b.matmul(x.value, y.value, x_transposed, not y_transposed)
    result = Tensor(compute, product.shape, (product,))
    return b.convert(b.reshape(result, shape), kind)


def _compute_type(x: ElementType, y: ElementType, result: ElementType) -> ElementType:
    if result.kind == "float":
        same = x == y == result and result.name in ("f32", "f16", "bf16", "f64")
        return result if same else F32
    if result.kind == "bool":
        return BOOL
    return I32 if result.bits < 32 else result


def _matrix(b: Lowering, x: Tensor, batch: list[int], free: list[int], contract: list[int]) -> tuple[Tensor, bool]:
    """`x` as [batch, free, contracted], or as [batch, contracted, free] (and True) when that needs no transposition.

    Without batch dimensions there is none.
    """
    rows, depth = _prod(x.shape[i] for i in free), _prod(x.shape[i] for i in contract)
    batches = [_prod(x.shape[i] for i in batch)] if batch else []
    if [*batch, *contract, *free] == list(range(x.rank)):
        return b.full(b.reshape(x, (*batches, depth, rows))), True
    turned = b.transpose(x, [*batch, *free, *contract])
    return b.full(b.reshape(turned, (*batches, rows, depth))), False


def _integer_dot(
    b: Lowering,
    x: Tensor,
    y: Tensor,
    batch: tuple[list[int], list[int]],
    contract: tuple[list[int], list[int]],
    left: list[int],
    right: list[int],
    shape: tuple[int, ...],
) -> Tensor:
    """The cube unit multiplies no wide integers: products, then a sum."""
    count = _prod(x.shape[i] for i in batch[0])
    rows, columns = _prod(x.shape[i] for i in left), _prod(y.shape[i] for i in right)
    depth = _prod(x.shape[i] for i in contract[0])
    x = b.reshape(b.full(b.transpose(x, [*batch[0], *left, *contract[0]])), (count, rows, 1, depth))
    y = b.reshape(b.full(b.transpose(y, [*batch[1], *right, *contract[1]])), (count, 1, columns, depth))
    whole = (count, rows, columns, depth)
    x, y = (b.broadcast_in_dim(t, whole, range(4)) for t in (x, y))
    if x.type == BOOL:
        return b.reshape(b.reduce("ReduceAny", b.and_(x, y), [3]), shape)
    return b.reshape(b.reduce("ReduceSum", b.multiply(x, y), [3]), shape)


def _complex_dot(
    b: Lowering,
    x: Tensor,
    y: Tensor,
    batch: tuple[list[int], list[int]],
    contract: tuple[list[int], list[int]],
    kind: ElementType,
) -> Tensor:
    real_kind = b.real(x).type
    product = lambda p, q: dot(b, p, q, batch, contract, real_kind)  # noqa: E731
    (a, i), (c, d) = (b.real(x), b.imag(x)), (b.real(y), b.imag(y))
    return b.complex(b.subtract(product(a, c), product(i, d)), b.add(product(a, d), product(i, c)), kind)
