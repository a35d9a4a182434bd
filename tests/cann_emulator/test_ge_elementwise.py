"""Elementwise operators of Graph Engine against numpy and torch, alone and in chains."""

import numpy as np
import pytest
import torch
from ge.graph import DataType

from tests.cann_emulator.ge_runtime import Net, run

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 2.5, 1e-3, 100.0, np.inf, -np.inf, np.nan]
# Operator -> its meaning.
UNARY = {
    "Neg": np.negative, "Abs": np.abs, "Square": np.square, "Sqrt": np.sqrt, "Exp": np.exp, "Expm1": np.expm1,
    "Log": np.log, "Log1p": np.log1p, "Sin": np.sin, "Cos": np.cos, "Tan": np.tan, "Tanh": np.tanh, "Floor": np.floor,
    "Ceil": np.ceil, "Rint": np.rint, "Sinh": np.sinh, "Cosh": np.cosh, "Atan": np.arctan, "Asinh": np.arcsinh,
}  # fmt: skip
BINARY = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "RealDiv": np.divide, "Maximum": np.maximum,
    "Minimum": np.minimum, "Atan2": np.arctan2, "Pow": np.power,
}  # fmt: skip
COMPARE = {
    "Equal": np.equal, "NotEqual": np.not_equal, "Less": np.less, "LessEqual": np.less_equal, "Greater": np.greater,
    "GreaterEqual": np.greater_equal,
}  # fmt: skip
TOLERANCE = {np.dtype(np.float32): 2e-6, np.dtype(np.float64): 1e-14, np.dtype(np.float16): 2e-3}


def _floats(dtype, count: int) -> np.ndarray:
    values = np.random.default_rng(0).normal(scale=3, size=count).astype(dtype)
    values[: len(SPECIAL)] = SPECIAL
    return values


def _close(got: np.ndarray, want: np.ndarray) -> None:
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=TOLERANCE[want.dtype], atol=TOLERANCE[want.dtype])


# A few elements run in the fused loops, many in ATen's kernels.
@pytest.mark.parametrize("count", [64, 5000])
@pytest.mark.parametrize("type", UNARY)
def test_unary_operators_agree_with_numpy(type, count):
    x = _floats(np.float32, count)
    net = Net()
    net.output(net.op(type, net.data(x.dtype, x.shape)))
    with np.errstate(all="ignore"):
        _close(run(net, x)[0], UNARY[type](x))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("type", BINARY)
def test_binary_operators_broadcast_and_agree_with_numpy(type, dtype):
    x, y = _floats(dtype, 240).reshape(12, 1, 20), _floats(dtype, 60).reshape(3, 20)
    net = Net()
    net.output(net.op(type, net.data(dtype, x.shape), net.data(dtype, y.shape)))
    with np.errstate(all="ignore"):
        want = BINARY[type](x.astype(np.float64), y.astype(np.float64)).astype(dtype)
    _close(run(net, x, y)[0], want)


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint8, np.float32])
@pytest.mark.parametrize("type", COMPARE)
def test_comparisons_agree_with_numpy(type, dtype):
    x = np.random.default_rng(1).integers(0, 5, (7, 9)).astype(dtype)
    y = np.random.default_rng(2).integers(0, 5, (7, 9)).astype(dtype)
    net = Net()
    net.output(net.op(type, net.data(dtype, x.shape), net.data(dtype, y.shape)))
    np.testing.assert_array_equal(run(net, x, y)[0], COMPARE[type](x, y))


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64])
def test_bits_and_shifts_agree_with_numpy(dtype):
    rng = np.random.default_rng(3)
    limits = np.iinfo(dtype)
    x = rng.integers(limits.min, limits.max, 50, dtype=dtype, endpoint=True)
    by = rng.integers(0, limits.bits, 50).astype(dtype)
    net = Net()
    a, b = net.data(dtype, x.shape), net.data(dtype, by.shape)
    net.output(net.op("BitwiseXor", a, b), net.op("RightShift", a, b))
    xor, right = run(net, x, by)
    np.testing.assert_array_equal(xor, x ^ by)
    np.testing.assert_array_equal(right, x >> by)


def test_integer_arithmetic_wraps():
    x = np.array([2**31 - 1, -(2**31), 12345], np.int32)
    net = Net()
    a = net.data(np.int32, x.shape)
    net.output(net.op("Add", a, net.const(np.int32(1))), net.op("Mul", a, a), net.op("Neg", a))
    with np.errstate(over="ignore"):
        wanted = [x + np.int32(1), x * x, -x]
    for got, want in zip(run(net, x), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


SOURCES = (np.float32, np.int8, np.int16, np.int32, np.int64, np.uint8, np.bool_)
TARGETS = (np.float32, np.float16, np.int8, np.int32, np.int64, np.uint8, np.bool_)


@pytest.mark.parametrize(("source", "target"), [(a, b) for a in SOURCES for b in TARGETS if a is not b])
def test_casts_agree_with_numpy(source, target):
    from tests.cann_emulator.ge_runtime import DTYPES

    x = np.array([0, 1, 3, 100, 1, 0], source)
    net = Net()
    net.output(net.op("Cast", net.data(source, x.shape), dst_type=int(DTYPES[np.dtype(target)])))
    np.testing.assert_array_equal(run(net, x)[0], x.astype(target))


def test_casts_of_numbers_outside_the_target_saturate():
    x = np.array([1e20, -1e20, np.nan, 2.9, -2.9], np.float32)
    net = Net()
    net.output(net.op("Cast", net.data(np.float32, x.shape), dst_type=int(DataType.DT_INT32)))
    assert run(net, x)[0].tolist() == [2**31 - 1, -(2**31), 0, 2, -2]


def test_bf16_is_rounded_after_every_operator():
    x = torch.randn(300).bfloat16()
    y = torch.randn(300).bfloat16()
    net = Net()
    a, b = net.data(DataType.DT_BF16, [300]), net.data(DataType.DT_BF16, [300])
    net.output(net.op("Mul", net.op("Add", a, b), b))
    got = run(net, x.view(torch.int16).numpy(), y.view(torch.int16).numpy())[0]
    want = ((x + y) * y).view(torch.int16).numpy()
    np.testing.assert_array_equal(got.view(np.int16), want)


def test_wide_results_do_not_overwrite_narrow_operands():
    x = np.arange(-3000, 3000, dtype=np.int16)
    net = Net()
    a = net.op(
        "Cast", net.op("Mul", net.data(np.int16, x.shape), net.const(np.int16(3))), dst_type=int(DataType.DT_INT32)
    )
    b = net.op("Sub", a, net.const(np.int32(1)))
    net.output(net.op("Less", b, net.const(np.int32(7))), net.op("Cast", b, dst_type=int(DataType.DT_INT16)))
    less, back = run(net, x)
    want = (x * np.int16(3)).astype(np.int32) - 1
    np.testing.assert_array_equal(less, want < 7)
    np.testing.assert_array_equal(back, want.astype(np.int16))


def _threefry(net: Net, key, counter, rounds: int = 5):
    """The mixing of JAX's random numbers, in int32 with unsigned shifts."""

    def right(x, by: int):
        unsigned = net.op("Bitcast", x, type=DataType.DT_UINT32)
        shifted = net.op("RightShift", unsigned, net.const(np.uint32(by)))
        return net.op("Bitcast", shifted, type=DataType.DT_INT32)

    a, b = counter, key
    for i in range(rounds):
        for by in ((13, 15, 26, 6), (17, 29, 16, 24))[i % 2]:
            a = net.op("Add", a, b)
            left = net.op("LeftShift", b, net.const(np.int32(by)))
            b = net.op("BitwiseXor", net.op("BitwiseOr", left, right(b, 32 - by)), a)
    return a, b


def test_a_chain_of_integer_operators_agrees_with_numpy():
    key, counter = np.arange(1000, dtype=np.int32) * 7919, np.arange(1000, dtype=np.int32)
    net = Net()
    net.output(*_threefry(net, net.data(np.int32, [1000]), net.data(np.int32, [1000])))
    got = run(net, key, counter)
    a, b = counter.view(np.uint32).copy(), key.view(np.uint32).copy()
    for i in range(5):
        for by in ((13, 15, 26, 6), (17, 29, 16, 24))[i % 2]:
            a = a + b
            b = ((b << np.uint32(by)) | (b >> np.uint32(32 - by))) ^ a
    np.testing.assert_array_equal(got[0], a.view(np.int32))
    np.testing.assert_array_equal(got[1], b.view(np.int32))


def test_a_chain_runs_as_one_operation():
    import json

    from tests.cann_emulator.ge_runtime import compiled, program

    net = Net()
    net.output(*_threefry(net, net.data(np.int32, [1000]), net.data(np.int32, [1000])))
    assert [op["type"] for op in program(compiled(net))["main"]] == ["Elementwise"]
    assert json.dumps(program(compiled(net))).count("shr.u32") == 20


def test_chains_read_views_without_copies():
    x = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    net = Net()
    a = net.data(np.float32, x.shape)
    turned = net.op("Transpose", a, net.const([2, 0, 1], np.int64))
    part = net.op("Slice", turned, net.const([1, 0, 1], np.int64), net.const([3, 3, 2], np.int64))
    row = net.op("BroadcastTo", net.const([[1.0], [2.0], [3.0]], np.float32), net.const([3, 3, 2], np.int64))
    net.output(net.op("Mul", net.op("Add", part, row), part))
    want = x.transpose(2, 0, 1)[1:4, :, 1:3]
    np.testing.assert_array_equal(run(net, x)[0], (want + np.array([[1.0], [2.0], [3.0]], np.float32)) * want)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int8, np.int64])
def test_select_takes_from_either_side(dtype):
    condition = np.array([[True, False], [False, True]])
    x, y = np.array([[1, 0], [1, 1]], dtype), np.array([0, 1], dtype)
    net = Net()
    net.output(net.op("SelectV2", net.data(np.bool_, [2, 2]), net.data(dtype, [2, 2]), net.data(dtype, [2])))
    np.testing.assert_array_equal(run(net, condition, x, y)[0], np.where(condition, x, y))
