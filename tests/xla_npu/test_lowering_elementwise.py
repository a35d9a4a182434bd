"""Elementwise operations against XLA's CPU backend, special values included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from tests.xla_npu.programs import assert_same, on_npu

FLOATS = (np.float32, np.float16, ml_dtypes.bfloat16)
INTEGERS = (np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32)
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.25, np.inf, -np.inf, np.nan)

few = settings(max_examples=8, deadline=None)


@st.composite
def arrays(draw: st.DrawFn, dtypes: tuple[Any, ...], count: int = 1) -> list[np.ndarray]:
    """`count` arrays of one shape and dtype; small values, special ones among them."""
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
    size = int(np.prod(shape))
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        numbers: Any = st.sampled_from([0, 1, 2, 7, info.max, info.min, info.max - 1]) | st.integers(info.min, info.max)
    else:
        numbers = st.sampled_from(SPECIAL) | st.floats(-4, 4, width=16)
    return [
        np.array(draw(st.lists(numbers, min_size=size, max_size=size))).astype(dtype).reshape(shape)
        for _ in range(count)
    ]


UNARY: list[Callable[..., Any]] = [
    lax.abs, lax.neg, lax.exp, lax.expm1, lax.log1p, lax.sqrt, lax.rsqrt, lax.sin, lax.cos, lax.tanh, lax.logistic,
    lax.floor, lax.ceil, lax.sign, lax.is_finite, lax.cbrt, jnp.isinf, jnp.round, lax.erf, lax.asinh, lax.atan,
]  # fmt: skip


@pytest.mark.parametrize("function", UNARY, ids=lambda f: f.__name__)
@few
@given(arrays(FLOATS))
def test_unary_float_operations_agree(function, operands):
    assert_same(function, *operands)


@pytest.mark.parametrize("away", [True, False])
@few
@given(arrays((np.float32,)))
def test_rounding_to_integers_agrees(away, operands):
    method = lax.RoundingMethod.AWAY_FROM_ZERO if away else lax.RoundingMethod.TO_NEAREST_EVEN
    assert_same(lambda x: lax.round(x, method), *operands)


BINARY: list[Callable[..., Any]] = [lax.add, lax.sub, lax.mul, lax.max, lax.min, lax.eq, lax.ne, lax.lt, lax.le]


@pytest.mark.parametrize("function", [*BINARY, lax.div, lax.rem, lax.pow, lax.atan2], ids=lambda f: f.__name__)
@few
@given(arrays(FLOATS, 2))
def test_binary_float_operations_agree(function, operands):
    assert_same(function, *operands)


@pytest.mark.parametrize(
    "function", [*BINARY, lax.div, lax.rem, lax.bitwise_and, lax.bitwise_or, lax.bitwise_xor], ids=lambda f: f.__name__
)
@few
@given(arrays(INTEGERS, 2))
def test_integer_operations_agree_with_division_by_zero_and_overflow(function, operands):
    assert_same(function, *operands)


@pytest.mark.parametrize(
    "function", [lax.shift_left, lax.shift_right_logical, lax.shift_right_arithmetic], ids=lambda f: f.__name__
)
@few
@given(arrays(INTEGERS), st.integers(0, 40))
def test_shifts_agree_beyond_the_width(function, operands, amount):
    (x,) = operands
    assert_same(function, x, np.full_like(x, min(amount, np.iinfo(x.dtype).max)))


@few
@given(arrays(INTEGERS))
def test_bit_counts_agree(operands):
    assert_same(lambda x: (lax.population_count(x), lax.clz(x), lax.bitwise_not(x)), *operands)


@pytest.mark.parametrize("target", [np.int32, np.uint32, np.int8, np.uint8, np.int16, np.uint16, np.bool_])
@few
@given(arrays((np.float32, np.float16)))
def test_conversion_of_floats_saturates_and_takes_nan_to_zero(target, operands):
    (x,) = operands
    # XLA's CPU backend wraps where it should saturate for types below 32 bits: only values that fit are compared.
    if np.dtype(target).itemsize < 4:
        x = np.where(np.isfinite(x), x, 1).astype(x.dtype)
        x = np.abs(x) if np.dtype(target).kind == "u" else x
    elif np.dtype(target).kind == "u":
        x = np.where(x < 0, 0, x).astype(x.dtype)
    assert_same(lambda x: lax.convert_element_type(x, target), x)


@pytest.mark.parametrize(
    "target", [np.float32, np.float16, ml_dtypes.bfloat16, np.int8, np.uint32, np.uint16, np.bool_]
)
@few
@given(arrays(INTEGERS))
def test_conversion_of_integers_wraps(target, operands):
    assert_same(lambda x: lax.convert_element_type(x, target), *operands)


@pytest.mark.parametrize(
    "narrow", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3b11fnuz], ids=lambda d: d.__name__
)
def test_float8_rounds_as_ml_dtypes_does(narrow):
    x = np.concatenate([np.linspace(-500, 500, 257), np.logspace(-9, 3, 99), [0, -0.0, np.inf, -np.inf, np.nan]])
    x = x.astype(np.float32)
    (got,) = on_npu(lambda x: x.astype(narrow), x)
    np.testing.assert_array_equal(got.astype(np.float32), x.astype(narrow).astype(np.float32))


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_total_order_puts_negative_nan_first_and_nan_last(dtype):
    values = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1, -1], dtype)
    assert_same(lambda x: lax.lt_to_p.bind(x[:, None], x[None, :]), values)


@few
@given(arrays((np.float32,)), st.sampled_from([(5, 10), (8, 7), (4, 3), (5, 2)]))
def test_reduced_precision_agrees(operands, bits):
    assert_same(lambda x: lax.reduce_precision(x, *bits), *operands, rtol=0)


@pytest.mark.parametrize(
    "function",
    [jnp.exp, jnp.sqrt, jnp.tanh, jnp.sin, jnp.abs, jnp.sign, jnp.conj, jnp.log1p, jnp.expm1, lax.rsqrt],
    ids=lambda f: f.__name__,
)
def test_complex_functions_agree(function):
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(4, 5)) + 1j * rng.normal(size=(4, 5))).astype(np.complex64)
    assert_same(function, x, rtol=2e-4)


def test_complex_arithmetic_agrees():
    rng = np.random.default_rng(1)
    x, y = ((rng.normal(size=7) + 1j * rng.normal(size=7)).astype(np.complex64) for _ in range(2))
    assert_same(lambda x, y: (x + y, x - y, x * y, x / y, x**y, x == y, jnp.where(x.real > 0, x, y)), x, y, rtol=1e-4)


def test_complex_tangents_without_a_limit_are_not_a_number():
    ends = [complex(a, c) for a in (0.5, np.inf, -np.inf, np.nan) for c in (0.5, 20, 1e30, np.inf, -np.inf)]
    assert_same(lambda x: (jnp.tan(x), jnp.tanh(x.imag + 1j * x.real)), np.array(ends, np.complex64))


def test_complex_angles_agree():
    rng = np.random.default_rng(2)
    x, y = ((rng.normal(size=40) + 1j * rng.normal(size=40)).astype(np.complex64) for _ in range(2))
    assert_same(lax.atan2, x, y, rtol=2e-4)


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_the_upper_half_of_a_product(dtype):
    ends = np.iinfo(dtype)
    values = np.array([ends.min, ends.min + 1, ends.max, ends.max - 1, ends.max // 3, 0, 1, 77], dtype)
    x, y = (part.reshape(-1) for part in np.meshgrid(values, values))
    with jax.enable_x64(True):
        (got,) = on_npu(lax.mulhi, x, y)
    want = [int(a) * int(c) >> ends.bits for a, c in zip(x, y, strict=True)]
    np.testing.assert_array_equal(got, np.array(want, dtype))


@pytest.mark.parametrize("pair", [(np.float32, np.uint8), (np.uint8, np.float32), (np.uint16, ml_dtypes.bfloat16)])
def test_bits_are_reinterpreted_across_widths(pair):
    source, target = pair
    x = np.arange(8, dtype=np.uint8).repeat(4).reshape(2, 4, 4)
    x = x.view(source) if np.dtype(source).itemsize > 1 else x
    assert_same(lambda x: lax.bitcast_convert_type(x, target), x, rtol=0)


def test_a_bfloat16_constant_compiles():
    assert_same(lambda: jnp.exp(jnp.bfloat16(7)))


def test_int4_arithmetic_wraps():
    x = np.arange(-8, 8).astype(ml_dtypes.int4)
    (got,) = on_npu(lambda x: x + x, jnp.asarray(x))
    np.testing.assert_array_equal(got.astype(np.int32), (np.arange(-8, 8) * 2 + 8) % 16 - 8)


def test_int4_has_a_sign_whatever_else_is_in_the_byte():
    x = np.arange(-8, 8).astype(ml_dtypes.int4)  # -1 is 0x0F in NumPy's byte, or 0xFF
    assert_same(lambda x, y: (lax.sign(x), lax.min(x, y), x.astype(jnp.int8)), x, x[::-1])


def test_uint32_random_bits_are_exact():
    key = jax.random.PRNGKey(7)
    assert_same(lambda k: jax.random.bits(k, (33,), np.uint32), key)
