"""Operators on lists of tensors against the CPU, out of place and in place, over dtypes."""

import pytest
import torch
import torch_npu  # noqa: F401

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
UNARY = [
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac", "log",
    "log10", "log1p", "log2", "neg", "reciprocal", "round", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh",
    "trunc",
]  # fmt: skip
BINARY = ["add", "sub", "mul", "div", "maximum", "minimum", "pow"]
SHAPES = [(3,), (4, 5), (), (0,), (2, 3, 4)]
COUNT = 30  # more than one launch takes


def lists(dtype, number, positive=True):
    generator = torch.Generator().manual_seed(1)
    shapes = [SHAPES[i % len(SHAPES)] for i in range(COUNT)]
    made = [[torch.rand(s, generator=generator) for s in shapes] for _ in range(number)]
    return [[(t * 0.8 + 0.1 if positive else t * 4 - 2).to(dtype) for t in ts] for ts in made]


def npu(tensors):
    return [t.npu() for t in tensors]


def close(actual, expected, dtype):
    tolerance = TOLERANCE.get(dtype, 0)
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.cpu(), e, rtol=tolerance, atol=tolerance, equal_nan=True)


def both(name, dtype, args, number):
    """Runs _foreach_NAME and _foreach_NAME_ on both devices."""
    tensors = lists(dtype, number)
    expected = getattr(torch, f"_foreach_{name}")(*tensors, *args)
    moved = [npu(t) for t in tensors]
    close(getattr(torch, f"_foreach_{name}")(*moved, *args), expected, dtype)
    getattr(torch, f"_foreach_{name}_")(*moved, *args)
    close(moved[0], expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name, dtype):
    both(name, dtype, (), 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BINARY)
def test_with_list(name, dtype):
    both(name, dtype, (), 2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BINARY)
def test_with_scalar(name, dtype):
    both(name, dtype, (1.5,), 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BINARY)
def test_with_list_of_scalars(name, dtype):
    both(name, dtype, ([0.5 + i / 10 for i in range(COUNT)],), 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_alpha(dtype):
    tensors = lists(dtype, 2)
    expected = torch._foreach_add(*tensors, alpha=0.25)
    moved = [npu(t) for t in tensors]
    close(torch._foreach_add(*moved, alpha=0.25), expected, dtype)
    torch._foreach_add_(*moved, alpha=0.25)
    close(moved[0], expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["addcmul", "addcdiv"])
@pytest.mark.parametrize("value", [0.5, [0.1 * i for i in range(COUNT)], torch.linspace(0.1, 1.0, COUNT)])
def test_ternary(name, dtype, value):
    both(name, dtype, (value,), 3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_lerp(dtype):
    both("lerp", dtype, (0.3,), 2)
    both("lerp", dtype, (), 3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", [1, 2, float("inf")])
def test_norm(dtype, order):
    tensors = [t for t in lists(dtype, 1, positive=False)[0] if t.numel()]
    expected = torch._foreach_norm(tensors, order)
    close(torch._foreach_norm(npu(tensors), order), expected, dtype)


def test_norm_of_many_numbers_is_that_of_its_parts() -> None:
    """As of a gradient that ranks share: the norm must not depend on how many they are."""
    x = torch.randn(2**21, generator=torch.Generator().manual_seed(0))
    whole, *parts = (norm.cpu().double() for norm in torch._foreach_norm(npu([x, *x.chunk(8)])))
    torch.testing.assert_close(whole, x.double().norm(), rtol=1e-6, atol=0)
    torch.testing.assert_close(whole, torch.stack(parts).norm(), rtol=1e-6, atol=0)


def test_integers():
    dtype = torch.int32
    tensors = [[torch.arange(1, 7).to(dtype)] * 3, [torch.full((6,), 2).to(dtype)] * 3]
    for name in ("add", "sub", "mul", "maximum", "minimum"):
        operator = getattr(torch, f"_foreach_{name}")
        close(operator(*(npu(t) for t in tensors)), operator(*tensors), dtype)
        close(operator(npu(tensors[0]), 3), operator(tensors[0], 3), dtype)


def test_copy_and_zero():
    source = lists(torch.bfloat16, 1)[0]
    target = [torch.zeros(t.shape).npu() for t in source]
    torch._foreach_copy_(target, npu(source))
    close(target, [t.float() for t in source], torch.float32)
    torch._foreach_zero_(target)
    assert all(not t.any() for t in target)


@pytest.mark.parametrize("bad", [None, float("inf"), float("nan")])
def test_unscale(bad):
    gradients = lists(torch.float32, 1, positive=False)[0]
    if bad is not None:
        gradients[1][2, 3] = bad
    moved, found = npu(gradients), torch.zeros(1).npu()
    torch._amp_foreach_non_finite_check_and_unscale_(moved, found, torch.tensor(0.5).npu())
    assert found.item() == (bad is not None)
    if bad is None:
        close(moved, [t * 0.5 for t in gradients], torch.float32)


@pytest.mark.parametrize("order", [2.0, float("inf")])
def test_clip_grad_norm(order):
    parameters = [torch.nn.Parameter(t) for t in lists(torch.float32, 1)[0] if t.numel()]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 3.0)
    moved = [torch.nn.Parameter(p.detach().npu()) for p in parameters]
    for parameter in moved:
        parameter.grad = torch.full_like(parameter, 3.0)
    expected = torch.nn.utils.clip_grad_norm_(parameters, 1.0, order, foreach=True)
    actual = torch.nn.utils.clip_grad_norm_(moved, 1.0, order, foreach=True)
    torch.testing.assert_close(actual.cpu(), expected)
    close([p.grad for p in moved], [p.grad for p in parameters], torch.float32)
