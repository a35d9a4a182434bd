"""Shapes, reductions, windows, gathers, sorts, products and control flow against XLA's CPU backend."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.experimental import checkify

from tests.xla_npu.programs import assert_same, compile_function
from xla_npu.compiler import builder
from xla_npu.compiler.errors import Unsupported

few = settings(max_examples=10, deadline=None)
rng = np.random.default_rng(0)


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Random numbers."""
    return rng.normal(size=shape).astype(dtype)


@few
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3), st.integers(0, 2)), min_size=2, max_size=2))
def test_pad_with_negative_edges_and_interior(config):
    shape = [5 + (5 - 1) * i + a + b for a, b, i in config]
    if min(shape) >= 0:
        assert_same(lambda x: lax.pad(x, np.float32(2), config), normal(5, 5))


@few
@given(st.integers(0, 3), st.integers(4, 7), st.integers(1, 3), st.permutations(range(3)))
def test_strided_slices_transposes_and_reversals(start, limit, stride, order):
    assert_same(lambda x: lax.rev(x[start:limit:stride].transpose(order), (0, 2)), normal(7, 3, 4))


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint32, np.uint16, np.int8, np.bool_])
@pytest.mark.parametrize("reduction", [jnp.sum, jnp.prod, jnp.max, jnp.min, jnp.any, jnp.argmax, jnp.argmin])
def test_reductions_over_any_axes(reduction, dtype):
    x = (normal(3, 4, 5) * 3).astype(dtype)
    axes: Any = (0, 2) if reduction not in (jnp.argmax, jnp.argmin) else 1
    assert_same(lambda x: reduction(x, axis=axes), x, rtol=1e-4)


def test_maxima_propagate_nan():
    x = normal(4, 5)
    x[1, 2] = np.nan
    assert_same(lambda x: (x.max(1), x.min(0), jnp.argmax(x, 1)), x)


def test_a_reduction_with_any_body():
    x, y = normal(6, 4), normal(6, 4)
    start = (np.float32(-np.inf), np.float32(0))
    body = lambda a, b: (jnp.maximum(a[0], b[0]), a[1] + b[1])  # noqa: E731
    assert_same(lambda x, y: lax.reduce((x, y), start, body, (0,)), x, y, rtol=1e-4)


@few
@given(
    st.sampled_from([lax.add, lax.max, lax.min, lax.mul]),
    st.tuples(st.integers(1, 4), st.integers(1, 5)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 2), st.integers(1, 3)),
    st.sampled_from(["VALID", "SAME", ((1, 2), (0, 3))]),
)
def test_windows_with_strides_and_dilations(body, size, strides, dilation, padding):
    start = {lax.add: 0, lax.max: -np.inf, lax.min: np.inf, lax.mul: 1}[body]
    if all((n - 1) * d < 11 for n, d in zip(size, dilation, strict=True)):
        assert_same(
            lambda x: lax.reduce_window(x, np.float32(start), body, size, strides, padding, (1, 2), dilation),
            normal(11, 7),
            rtol=1e-4,
        )


@pytest.mark.parametrize("function", [jnp.cumsum, jnp.cumprod, lax.cummax, lax.cumlogsumexp])
def test_cumulative_operations(function):
    assert_same(lambda x: function(x, axis=1), normal(3, 9), rtol=1e-4)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_the_gradient_of_a_max_pool_goes_to_the_chosen_element(padding):
    pool = lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 2, 1), (1, 2, 2, 1), padding)  # noqa: E731
    assert_same(jax.grad(lambda x: (pool(x) ** 2).sum()), normal(2, 7, 6, 3))


INDICES = st.lists(st.integers(-9, 9), min_size=1, max_size=5)


@few
@given(INDICES, st.sampled_from(["fill", "clip", "wrap"]))
def test_gathers_out_of_bounds(indices, mode):
    index = np.array(indices, np.int32)
    assert_same(lambda x, i: (jnp.take(x, i, axis=1, mode=mode), x[i % 4, :, i % 3]), normal(4, 5, 3), index)


@few
@given(
    INDICES, st.sampled_from(["set", "add", "mul", "min", "max"]), st.sampled_from([np.float32, np.int32, np.uint32])
)
def test_scatters_drop_what_is_out_of_bounds_and_combine_what_repeats(indices, method, dtype):
    index = np.array(indices, np.int32)
    if method == "set":  # which of several updates stays is not defined
        index = np.unique(index % 20)
    x, update = (normal(7, 3) * 5).astype(dtype), (normal(len(index), 3) * 5).astype(dtype)
    assert_same(lambda x, i, u: getattr(x.at[i], method)(u, mode="drop"), x, index, update, rtol=1e-4)


@few
@given(st.integers(-3, 9), st.integers(-3, 9))
def test_dynamic_slices_clamp_their_start(i, j):
    start = np.array([i, j], np.int32)
    assert_same(
        lambda x, u, s: (lax.dynamic_slice(x, s, (2, 3)), lax.dynamic_update_slice(x, u, s)),
        normal(5, 6), normal(2, 3), start,
    )  # fmt: skip


def test_sorts_by_several_keys_and_keeps_the_order_of_equals():
    keys = rng.integers(0, 3, (4, 9)).astype(np.int32)
    values = rng.integers(0, 2, (4, 9)).astype(np.float32)
    place = np.broadcast_to(np.arange(9, dtype=np.uint32), (4, 9))
    assert_same(lambda *t: lax.sort(t, dimension=1, num_keys=2), keys, values, np.array(place))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.uint32, np.uint8, np.bool_])
def test_sorts_any_type_with_nan_last(dtype):
    x = (normal(5, 8) * 3).astype(dtype)
    if np.dtype(dtype).kind == "f":
        x[0, :3] = [np.nan, np.inf, -0.0]
    assert_same(lambda x: (jnp.sort(x, axis=0), jnp.argsort(x, axis=1), jnp.argsort(x, descending=True)), x)


def test_a_comparator_of_any_kind():
    x = rng.integers(-9, 9, (3, 10)).astype(np.int32)

    def sort(x):
        return jnp.sort(jnp.abs(x) % 5, axis=1)

    assert_same(sort, x)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.uint32])
def test_the_largest_elements_and_their_first_places(dtype):
    assert_same(lambda x: lax.top_k(x, 3), rng.integers(0, 4, (3, 7)).astype(dtype))


@pytest.mark.parametrize("equation", ["ij,jk->ik", "bij,bkj->bik", "ij,ij->", "abc,cd->dab", "i,j->ji", "bi,bi->b"])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.complex64])
def test_products_in_any_layout(equation, dtype):
    sizes = dict(zip("abcdijk", (2, 3, 4, 5, 3, 4, 5), strict=True))
    operands = [(normal(*(sizes[c] for c in term)) * 3).astype(dtype) for term in equation.split("->")[0].split(",")]
    assert_same(lambda *t: jnp.einsum(equation, *t, precision="highest"), *operands, rtol=1e-4)


CONVOLUTIONS = {
    "1d": ((2, 3, 9), (4, 3, 3), (2,), ((1, 2),), (1,), (2,), ("NCH", "OIH", "NCH")),
    "2d": ((2, 7, 8, 3), (3, 2, 3, 4), (1, 2), "SAME", (1, 1), (1, 1), ("NHWC", "HWIO", "NHWC")),
    "transposed": ((1, 3, 5, 5), (4, 3, 3, 3), (1, 1), ((2, 1), (0, -1)), (2, 3), (1, 1), ("NCHW", "OIHW", "NCHW")),
    "dilated": ((1, 9, 9, 2), (3, 3, 2, 4), (1, 1), "VALID", (1, 1), (2, 3), ("NHWC", "HWIO", "NHWC")),
    "3d": ((1, 2, 4, 5, 6), (3, 2, 2, 2, 2), (1, 2, 1), "SAME", (1, 1, 1), (1, 1, 1), ("NCDHW", "OIDHW", "NCDHW")),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_and_their_gradients(name):
    x, w, strides, padding, lhs, rhs, numbers = CONVOLUTIONS[name]

    def convolve(x, w):
        return lax.conv_general_dilated(x, w, strides, padding, lhs, rhs, numbers, precision="highest")

    assert_same(convolve, normal(*x), normal(*w), rtol=1e-4, atol=1e-4)
    gradient = jax.grad(lambda x, w: (convolve(x, w) ** 2).sum(), (0, 1))
    assert_same(gradient, normal(*x), normal(*w), rtol=1e-3, atol=1e-3)


def test_grouped_and_batch_grouped_convolutions():
    x, w = normal(4, 6, 7, 7), normal(8, 3, 3, 3)
    assert_same(
        lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", feature_group_count=2), x, w, rtol=1e-4, atol=1e-4
    )
    x, w = normal(4, 3, 7, 7), normal(8, 3, 3, 3)
    assert_same(
        lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", batch_group_count=2), x, w, rtol=1e-4, atol=1e-4
    )


@few
@given(st.integers(-2, 5))
def test_branches_take_the_last_when_out_of_range(index):
    branches = [lambda x: x + 1, lambda x: x * 2, lambda x: -x]
    assert_same(lambda i, x: lax.switch(i, branches, x), np.int32(index), normal(3))


def test_loops_with_captured_values_and_nesting():
    def program(x, n):
        outer = x.sum()

        def body(i, carry):
            inner = lax.while_loop(lambda c: c < outer + 4, lambda c: c + x[0] ** 2 + 1, carry[0])
            return inner * 0.5, carry[1] + i

        return lax.fori_loop(0, n, body, (np.float32(0), np.int32(0)))

    assert_same(program, normal(3), np.int32(4))


def test_a_scan_of_many_steps_with_random_splits_and_scatters():
    def step(carry, i):
        key, x = carry
        key, sub = jax.random.split(key)
        j = jax.random.randint(sub, (), 0, 16)
        return (key, x.at[j].add(1.0)), x[j]

    assert_same(lambda k: lax.scan(step, (k, jnp.zeros(16)), jnp.arange(704)), jax.random.PRNGKey(3))


@pytest.mark.parametrize("shape", [(8,), (3, 12), (2, 101), (1, 300)])
def test_fourier_transforms_of_any_length(shape):
    x = normal(*shape)
    assert_same(lambda x: (jnp.fft.rfft(x), jnp.fft.ifft(x), jnp.fft.irfft(x)), x, rtol=1e-3, atol=1e-4)
    if len(shape) == 2:
        assert_same(jnp.fft.fft2, x, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("lower", [True, False])
def test_cholesky_and_triangular_solves(dtype, lower):
    a = normal(2, 5, 5).astype(dtype)
    if dtype == np.complex64:
        a = a + 1j * normal(2, 5, 5)
    a = (a @ a.conj().swapaxes(1, 2) + 5 * np.eye(5)).astype(dtype)
    y = normal(2, 5, 3).astype(dtype)
    assert_same(lambda a: jnp.linalg.cholesky(a, upper=not lower), a, rtol=1e-3, atol=1e-4)
    for side, conjugate in ((True, False), (True, True), (False, False)):
        right = y if side else y.swapaxes(1, 2)
        assert_same(
            lambda a, y, side=side, conjugate=conjugate: lax.linalg.triangular_solve(
                a, y, left_side=side, lower=lower, transpose_a=conjugate, conjugate_a=conjugate
            ),
            a, right, rtol=1e-3, atol=1e-4,
        )  # fmt: skip


def test_the_cholesky_factor_of_an_indefinite_matrix_is_nan():
    assert_same(jnp.linalg.cholesky, np.array([[1, 2], [2, 1]], np.float32))


@pytest.mark.parametrize("algorithm", [lax.RandomAlgorithm.RNG_THREE_FRY, lax.RandomAlgorithm.RNG_PHILOX])
@pytest.mark.parametrize("shape", [(), (5,), (4, 3), (3, 5)])
@pytest.mark.parametrize("dtype", [np.uint32, np.uint8, np.uint16])
def test_generators_give_xla_s_bits(algorithm, shape, dtype):
    key = np.arange(4, dtype=np.uint32) * 1234567891
    assert_same(lambda k: lax.rng_bit_generator(k, shape, dtype, algorithm), key)


@pytest.mark.parametrize("shape", [(0,), (2, 0, 3)])
def test_empty_arrays(shape):
    x = np.zeros(shape, np.float32)
    assert_same(lambda x: (x + 1, x.sum(), jnp.concatenate([x, x], 0), jnp.sort(x), jnp.tanh(x).T), x)


def test_checks_that_did_not_go_through_checkify_are_left_out_or_refused():
    run = jax.jit(lambda x: (checkify.debug_check(x > 1, "small"), x + 1)[1])
    assert run(jnp.float32(0)) == 1
    with pytest.raises(ValueError, match="not functionalized"):
        jax.jit(lambda x: (checkify.check(x > 1, "small"), x)[1])(jnp.float32(0))
    error, _ = jax.jit(checkify.checkify(lambda x: (checkify.check(x > 1, "small"), x)[1]))(jnp.float32(0))
    assert "small" in error.get()


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.float32, jnp.bfloat16, np.uint8, np.complex64])
def test_a_long_iota_is_counted_where_the_program_runs(dtype):
    length = 200_001
    assert_same(lambda x: lax.broadcasted_iota(dtype, (2, length), 1) + x, np.ones((2, 1), dtype))
    program = compile_function(lambda x: lax.iota(dtype, length) + x, np.ones((), dtype))
    assert sum(len(model) for model in program.models) < length


def test_what_the_graph_engine_refuses_is_named_with_its_place(monkeypatch):
    monkeypatch.setattr(builder, "_native", dict)  # the table that is asked before GE is
    with jax.enable_x64(True), pytest.raises(Unsupported) as refusal:
        compile_function(lambda x: jnp.sum(x * 2), np.ones(3))
    message = str(refusal.value)
    assert "Graph Engine refused the program" in message and "f64" in message
    assert message.startswith("stablehlo.") and "test_lowering_structure.py:" in message


def test_an_operation_without_a_place_has_that_of_what_it_is_in():
    with jax.enable_x64(True), pytest.raises(Unsupported) as refusal:
        compile_function(lambda x: jnp.sort(x), np.ones(3))
    first, place, operation = str(refusal.value).splitlines()
    assert first.startswith("stablehlo.compare: the NPU has no NotEqual for type f64")
    assert "test_lowering_structure.py:" in place and "stablehlo.compare" in operation
