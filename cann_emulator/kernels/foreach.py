"""Operators on lists of tensors. Each writes its outputs directly, so in-place calls need no second list.

The scalar comes as a number (V2 and the rest), as a one-element tensor (the first versions), as a list of numbers
(ScalarList) or as a tensor of them (addcdiv and addcmul).
"""

from collections.abc import Callable, Iterable

import torch

from cann_emulator.kernels.precision import wide
from cann_emulator.kernels.registry import kernel, refuse


def _number(scalar):
    return scalar.item() if isinstance(scalar, torch.Tensor) else scalar


def _numbers(scalars) -> list:
    return scalars.tolist() if isinstance(scalars, torch.Tensor) else scalars


_UNARY = {
    "Abs": torch.abs, "Acos": torch.acos, "Asin": torch.asin, "Atan": torch.atan, "Cos": torch.cos, "Cosh": torch.cosh,
    "Erf": torch.erf, "Erfc": torch.erfc, "Exp": torch.exp, "Expm1": torch.expm1, "Log": torch.log,
    "Log10": torch.log10, "Log1p": torch.log1p, "Log2": torch.log2, "Neg": torch.neg, "Reciprocal": torch.reciprocal,
    "Sigmoid": torch.sigmoid, "Sign": torch.sign, "Sin": torch.sin, "Sinh": torch.sinh, "Sqrt": torch.sqrt,
    "Tan": torch.tan, "Tanh": torch.tanh,
}  # fmt: skip


def _maximum(x, scalar, out):
    torch.clamp(x, min=scalar, out=out)


def _minimum(x, scalar, out):
    torch.clamp(x, max=scalar, out=out)


_WITH_SCALAR = {
    "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Div": torch.div, "Pow": torch.pow,
    "Maximum": _maximum, "Minimum": _minimum,
}  # fmt: skip
_WITH_LIST = {
    "Mul": torch.mul, "Div": torch.div, "Pow": torch.pow, "Maximum": torch.maximum, "Minimum": torch.minimum,
}  # fmt: skip
_SCALED_LIST = {"Add": torch.add, "Sub": torch.sub}
_TERNARY = {"Addcdiv": torch.addcdiv, "Addcmul": torch.addcmul}


def _register_unary(name: str, function: Callable) -> None:
    @kernel(f"aclnnForeach{name}")
    def apply(x, out):
        for tensor, output in zip(x, out, strict=True):
            function(tensor, out=output)


def _register_scalar(name: str, function: Callable) -> None:
    def each(x, scalars: Iterable, out) -> None:
        for tensor, scalar, output in zip(x, scalars, out, strict=True):
            function(tensor, scalar, out=output)

    @kernel(f"aclnnForeach{name}Scalar", f"aclnnForeach{name}ScalarV2")
    def apply(x, scalar, out):
        each(x, [_number(scalar)] * len(x), out)

    @kernel(f"aclnnForeach{name}ScalarList")
    def apply_list(x, scalars, out):
        each(x, _numbers(scalars), out)


def _register_list(name: str, function: Callable) -> None:
    @kernel(f"aclnnForeach{name}List")
    def apply(x1, x2, out):
        for left, right, output in zip(x1, x2, out, strict=True):
            function(left, right, out=output)


def _register_scaled_list(name: str, function: Callable) -> None:
    @kernel(f"aclnnForeach{name}List", f"aclnnForeach{name}ListV2")
    def apply(x1, x2, alpha, out):
        alpha = _number(alpha)
        for left, right, output in zip(x1, x2, out, strict=True):
            function(left, right, alpha=alpha, out=output)


def _register_ternary(name: str, function: Callable) -> None:
    def each(x1, x2, x3, scalars: Iterable, out) -> None:
        for base, left, right, scalar, output in zip(x1, x2, x3, scalars, out, strict=True):
            if output.dtype == wide(output).dtype:
                function(base, left, right, value=scalar, out=output)
            else:
                output.copy_(function(wide(base), wide(left), wide(right), value=scalar))

    @kernel(f"aclnnForeach{name}Scalar", f"aclnnForeach{name}ScalarV2")
    def apply(x1, x2, x3, scalar, out):
        each(x1, x2, x3, [_number(scalar)] * len(x1), out)

    @kernel(f"aclnnForeach{name}ScalarList")
    def apply_list(x1, x2, x3, scalars, out):
        each(x1, x2, x3, _numbers(scalars), out)


for _register, _table in (
    (_register_unary, _UNARY),
    (_register_scalar, _WITH_SCALAR),
    (_register_list, _WITH_LIST),
    (_register_scaled_list, _SCALED_LIST),
    (_register_ternary, _TERNARY),
):
    for _name, _function in _table.items():
        _register(_name, _function)


@kernel("aclnnForeachPowScalarAndTensor")
def pow_scalar_and_tensor(base, x, out):
    for tensor, output in zip(x, out, strict=True):
        torch.pow(base, tensor, out=output)


@kernel("aclnnForeachLerpScalar")
def lerp_scalar(x1, x2, weight, out):
    for start, end, output in zip(x1, x2, out, strict=True):
        output.copy_(torch.lerp(wide(start), wide(end), weight))


@kernel("aclnnForeachLerpList")
def lerp_list(x1, x2, weights, out):
    for start, end, weight, output in zip(x1, x2, weights, out, strict=True):
        output.copy_(torch.lerp(wide(start), wide(end), wide(weight)))


@kernel("aclnnForeachCopy")
def copy(x, out):
    for tensor, output in zip(x, out, strict=True):
        output.copy_(tensor)


@kernel("aclnnForeachZeroInplace")
def zero(x):
    for tensor in x:
        tensor.zero_()


@kernel("aclnnForeachNorm")
def norm(x, order, out):
    # The CPU sums one after another: in float32 a norm of millions of numbers would be off in the fourth digit.
    for tensor, output in zip(x, out, strict=True):
        output.copy_(torch.linalg.vector_norm(tensor, order, dtype=torch.float64).reshape(output.shape))


_ROUNDING = {1: torch.round, 2: torch.floor, 3: torch.ceil, 5: torch.trunc, 7: torch.frac}


@kernel("aclnnForeachRoundOffNumber", "aclnnForeachRoundOffNumberV2")
def round_off_number(x, mode, out):
    function = _ROUNDING.get(int(_number(mode)))
    if function is None:
        refuse(161002, f"roundMode is {_number(mode)}; it is one of {list(_ROUNDING)}")
    for tensor, output in zip(x, out, strict=True):
        function(tensor, out=output)


@kernel("aclnnForeachNonFiniteCheckAndUnscale")
def non_finite_check_and_unscale(grads, found_inf, inverse_scale):
    scale = inverse_scale.item()
    finite = True
    for grad in grads:
        # A sum is finite only if every term is (overflow of a finite sum is settled by the exact test).
        finite = finite and (bool(torch.isfinite(grad.sum(dtype=torch.float64))) or bool(torch.isfinite(grad).all()))
        grad.mul_(scale)
    if not finite:
        found_inf.fill_(1)
