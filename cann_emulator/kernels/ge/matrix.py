"""Matrix products and linear algebra."""

import torch

from .registry import Node, kernel


def _operand(x: torch.Tensor, flip: bool, batch: list[int]) -> torch.Tensor:
    """A matrix operand with one batch dimension, or none; a view where there is one."""
    if flip:
        x = x.transpose(-1, -2)
    if not batch:
        return x.reshape(x.shape[-2:])
    return x.expand(batch + list(x.shape[-2:])).flatten(0, -3)


@kernel("MatMul", "MatMulV2", "MatMulV3", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def matmul(n: Node) -> None:
    """A product of matrices, in fp32 or wider, rounded once."""
    a, b, y = n.x1, n.x2, n.y
    flips = [bool(n.attr(f"transpose_x{i}", n.attr(f"adj_x{i}", False))) for i in (1, 2)]
    bias = n.inputs.get("bias")
    if not y.numel():
        return
    batch = list(y.shape[:-2])
    if all(size == 1 for size in batch):
        batch = []
    if (
        a.numel()
        and _viewable(a, flips[0], batch)
        and _viewable(b, flips[1], batch)
        and y.dtype == a.dtype
        and y.element_size() >= 4
    ):
        a, b = _operand(a, flips[0], batch), _operand(b, flips[1], batch)
        n.call("bmm.out" if batch else "mm.out", a, b, out=y.view([*a.shape[:-1], b.shape[-1]]))
        if bias is not None:
            n.call("add_.Tensor", y, bias)
        return
    n.run(_matmul, a, b, y, flips, bias)


def _viewable(x: torch.Tensor, flip: bool, batch: list[int]) -> bool:
    """Whether the operand with one batch dimension is a view, which a loaded model may keep."""
    if not batch:
        return True
    wide = (x.transpose(-1, -2) if flip else x).expand(
        [*batch, x.shape[-1 if flip else -2], x.shape[-2 if flip else -1]]
    )
    try:
        wide.view([-1, *wide.shape[-2:]])
    except RuntimeError:
        return False
    return True


def _matmul(a: torch.Tensor, b: torch.Tensor, y: torch.Tensor, flips: list[bool], bias: torch.Tensor | None) -> None:
    a = a.transpose(-1, -2) if flips[0] else a
    b = b.transpose(-1, -2) if flips[1] else b
    wide = (
        torch.int32
        if not a.is_floating_point() and not a.is_complex()
        else torch.float32
        if a.element_size() < 4
        else a.dtype
    )
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
