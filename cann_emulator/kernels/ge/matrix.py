"""Matrix products and linear algebra."""

import itertools
import math

import torch

from .registry import Node, kernel

_CALLS = 64  # products that a batch is cut into rather than copied


def _joined(sizes: list[int], strides: list[int]) -> int:
    """How many of the last dimensions one stride walks."""
    count = 0
    expected: int | None = None
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size != 1:
            if expected is not None and stride != expected:
                break
            expected = size * stride
        count += 1
    return count


@kernel("MatMul", "MatMulV2", "MatMulV3", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def matmul(n: Node) -> None:
    """A product of matrices, in fp32 or wider, rounded once."""
    a, b, y = n.x1, n.x2, n.y
    flips = [bool(n.attr(f"transpose_x{i}", n.attr(f"adj_x{i}", False))) for i in (1, 2)]
    a, b = (x.transpose(-1, -2) if flip else x for x, flip in zip((a, b), flips, strict=True))
    bias = n.inputs.get("bias")
    if not y.numel():
        return
    batch = list(y.shape[:-2])
    a, b = (x.expand(batch + list(x.shape[-2:])) for x in (a, b))
    if not a.numel():
        n.call("fill_.Scalar", y, 0)
        if bias is not None:
            n.call("add_.Tensor", y, bias)
        return
    # Batch dimensions that one stride walks go together; a product for each index of the others.
    together = min(_joined(batch, list(x.stride()[:-2])) for x in (a, b))
    outer = batch[: len(batch) - together]
    if y.dtype != a.dtype or y.element_size() < 4 or math.prod(outer) > _CALLS:
        n.run(_matmul, a, b, y, bias)
        return
    single = math.prod(batch[len(batch) - together :]) == 1
    for index in itertools.product(*map(range, outer)):
        parts = [x[index].view(*([] if single else [-1]), *x.shape[-2:]) for x in (a, b, y)]
        n.call("mm.out" if single else "bmm.out", *parts[:2], out=parts[2])
    if bias is not None:
        n.call("add_.Tensor", y, bias)


def _matmul(a: torch.Tensor, b: torch.Tensor, y: torch.Tensor, bias: torch.Tensor | None) -> None:
    if a.is_floating_point() or a.is_complex():
        wide = torch.float32 if a.element_size() < 4 else a.dtype
    else:
        wide = torch.int32
    product = torch.matmul(a.to(wide), b.to(wide))
    y.copy_(product if bias is None else product + bias.to(wide))


@kernel("Einsum")
def einsum(n: Node) -> None:
    """Einstein's sum."""
    n.run(_einsum, n.equation, n.x, n.y)


def _einsum(equation: str, x: list[torch.Tensor], y: torch.Tensor) -> None:
    half = y.element_size() < 4
    y.copy_(torch.einsum(equation, *[value.float() if half else value for value in x]))


@kernel("Cholesky")
def cholesky(n: Node) -> None:
    """The lower Cholesky factor; NaN where a matrix is not positive definite."""
    n.run(_cholesky, n.x, n.y)


def _cholesky(x: torch.Tensor, y: torch.Tensor) -> None:
    factor, info = torch.linalg.cholesky_ex(x)
    y.copy_(torch.where((info != 0)[..., None, None], torch.nan, factor))


@kernel("MatrixTriangularSolve")
def triangular_solve(n: Node) -> None:
    """Solves with a triangular matrix."""
    n.run(_triangular_solve, n.matrix, n.rhs, n.y, n.attr("lower", True), n.attr("adjoint", False))


def _triangular_solve(a: torch.Tensor, b: torch.Tensor, y: torch.Tensor, lower: bool, adjoint: bool) -> None:
    a = a.mH if adjoint else a
    y.copy_(torch.linalg.solve_triangular(a, b, upper=lower == adjoint))


@kernel("MatrixInverse")
def inverse(n: Node) -> None:
    """Inverse matrices."""
    n.run(lambda x, y: y.copy_(torch.linalg.inv(x)), n.x, n.y)


@kernel("Svd")
def svd(n: Node) -> None:
    """Singular values and vectors; v is not transposed."""
    n.run(_svd, n.x, n.sigma, n.u, n.v, n.attr("compute_uv", True), n.attr("full_matrices", False))


def _svd(
    x: torch.Tensor, sigma: torch.Tensor, u: torch.Tensor, v: torch.Tensor, vectors: bool, full_matrices: bool
) -> None:
    if not vectors:
        sigma.copy_(torch.linalg.svdvals(x))
        return
    left, values, right = torch.linalg.svd(x, full_matrices=full_matrices)
    sigma.copy_(values)
    u.copy_(left)
    v.copy_(right.mH)


@kernel("Lu")
def lu(n: Node) -> None:
    """An LU decomposition with row exchanges: both factors in one matrix, and the order of rows."""
    n.run(_lu, n.inputs["input"], n.lu, n.p)


def _lu(x: torch.Tensor, factors: torch.Tensor, order: torch.Tensor) -> None:
    packed, pivots = torch.linalg.lu_factor(x)
    rows, _, _ = torch.lu_unpack(packed, pivots, unpack_data=False)
    factors.copy_(packed)
    order.copy_(rows.argmax(-2))


@kernel("MatrixDiag", "Diag")
def diag(n: Node) -> None:
    """Matrices with a given diagonal."""
    n.call("fill_.Scalar", n.y, 0)
    if n.type == "Diag":
        n.copy(n.y.view(n.x.numel(), n.x.numel()).diagonal().view(n.x.shape), n.x)
    else:
        n.copy(n.y.diagonal(dim1=-2, dim2=-1), n.x)


@kernel("MatrixDiagPart", "DiagPart")
def diag_part(n: Node) -> None:
    """The diagonals of matrices."""
    if n.type == "DiagPart":
        n.run(lambda x, y: y.view(-1).copy_(x.reshape(y.numel(), y.numel()).diagonal()), n.x, n.y)
    else:
        n.copy(n.y, n.x.diagonal(dim1=-2, dim2=-1))


@kernel("Eye")
def eye(n: Node) -> None:
    """Unit matrices."""
    n.call("fill_.Scalar", n.y, 0)
    n.call("fill_.Scalar", n.y.diagonal(dim1=-2, dim2=-1), 1)
