"""Operators of Graph Engine that move, reduce, multiply, sort and index, against numpy and torch."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from ge.graph import DataType, Format

from tests.cann_emulator.ge_runtime import AclError, Net, run

RNG = np.random.default_rng(0)


def _one(type, inputs, consts=(), **attrs):
    """Runs one operator: inputs are fed, consts are constants after them."""
    net = Net()
    edges = [net.data(x.dtype, x.shape) for x in inputs] + [net.const(c) for c in consts]
    node, _ = net.op(type, *edges, **attrs)
    from ge._compiler.prototypes import prototype

    count = len(prototype(type).outputs)
    net.output(*[(node, i) for i in range(count)])
    return run(net, *inputs)


def _ints(*values):
    return np.array(values, np.int64)


X = RNG.normal(size=(3, 4, 5)).astype(np.float32)
MOVES = {
    "Reshape": (("Reshape", [X], [_ints(5, -1)]), X.reshape(5, 12)),
    "Transpose": (("Transpose", [X], [_ints(2, 0, 1)]), X.transpose(2, 0, 1)),
    "BroadcastTo": (("BroadcastTo", [X[:, :1]], [_ints(2, 3, 4, 5)]), np.broadcast_to(X[:, :1], (2, 3, 4, 5))),
    "Tile": (("Tile", [X], [_ints(2, 1, 3)]), np.tile(X, (2, 1, 3))),
    "ReverseV2": (("ReverseV2", [X], [_ints(0, 2)]), X[::-1, :, ::-1]),
    "Slice": (("Slice", [X], [_ints(1, 0, 2), _ints(2, 3, -1)]), X[1:3, 0:3, 2:]),
    "StridedSlice": (("StridedSlice", [X], [_ints(0, 3, 0), _ints(3, 0, 5), _ints(2, -1, 2)]), X[0:3:2, 3:0:-1, 0:5:2]),
    "Pad": (("Pad", [X], [_ints([1, 0], [0, 2], [3, 1])]), np.pad(X, [(1, 0), (0, 2), (3, 1)])),
    "Unsqueeze": (("Unsqueeze", [X], []), X[:, None]),
}  # fmt: skip


@pytest.mark.parametrize("name", MOVES)
def test_elements_are_moved_as_numpy_moves_them(name):
    (type, inputs, consts), want = MOVES[name]
    attrs = {"axes": [1]} if type == "Unsqueeze" else {}
    np.testing.assert_array_equal(_one(type, inputs, consts, **attrs)[0], want)


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.uint32, np.int64, np.float16, np.bool_, np.complex64])
def test_concatenation_keeps_bits_of_every_dtype(dtype):
    a, b = (RNG.integers(0, 2, size).astype(dtype) for size in ((2, 3), (2, 2)))
    net = Net()
    edges = [net.data(dtype, part.shape) for part in (a, b)]
    net.output(net.op("ConcatD", *edges, concat_dim=1, N=2))
    np.testing.assert_array_equal(run(net, a, b)[0], np.concatenate([a, b], 1))


def test_padding_with_a_value_and_negative_amounts():
    got = _one("PadV3", [X], [_ints(1, 0, -1, 0, 0, -2), np.float32(7)], mode="constant")[0]
    np.testing.assert_array_equal(got, np.pad(X, [(1, 0), (0, 0), (0, 0)], constant_values=7)[:, 1:, :-2])


@pytest.mark.parametrize("mode", ["reflect", "symmetric", "edge"])
def test_padding_from_inside(mode):
    got = _one("PadV3", [X], [_ints(1, 1, 2, 0, 0, 2)], mode=mode)[0]
    np.testing.assert_array_equal(got, np.pad(X, [(1, 1), (2, 0), (0, 2)], mode=mode))


REDUCTIONS = {
    "ReduceSum": np.sum, "ReduceMax": np.max, "ReduceMin": np.min, "ReduceProd": np.prod, "ReduceMean": np.mean,
}  # fmt: skip


@pytest.mark.parametrize("axes", [(0,), (1, 2), (0, 1, 2), (-1,)])
@pytest.mark.parametrize("type", REDUCTIONS)
def test_reductions_agree_with_numpy(type, axes):
    for keep in (False, True):
        got = _one(type, [X], [_ints(*axes)], keep_dims=keep)[0]
        np.testing.assert_allclose(got, REDUCTIONS[type](X, axis=axes, keepdims=keep), rtol=1e-5, atol=1e-6)


def test_reductions_of_truth_values_and_of_nothing():
    x = np.array([[True, False], [True, True]])
    assert _one("ReduceAll", [x], [_ints(1)])[0].tolist() == [False, True]
    assert _one("ReduceAny", [x], [_ints(0)])[0].tolist() == [True, True]
    assert _one("ReduceMax", [np.zeros((0, 2), np.float32)], [_ints(0)])[0].tolist() == [-np.inf] * 2
    assert _one("ReduceSum", [np.zeros((0, 2), np.float32)], [_ints(0)])[0].tolist() == [0, 0]


def test_the_largest_element_is_found_where_it_is_first():
    x = np.array([[1, 3, 3], [5, 5, 0]], np.float32)
    assert _one("ArgMaxV2", [x], [np.array([1], np.int32)], dtype=DataType.DT_INT32)[0].tolist() == [1, 0]


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_cumulative_sums(exclusive, reverse):
    got = _one("Cumsum", [X], [np.int32(1)], exclusive=exclusive, reverse=reverse)[0]
    turned = X[:, ::-1] if reverse else X
    want = np.cumsum(turned, 1) - (turned if exclusive else 0)
    np.testing.assert_allclose(got, want[:, ::-1] if reverse else want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("flip", [(False, False), (True, False), (False, True), (True, True)])
def test_matrix_products(flip):
    a, b = RNG.normal(size=(2, 3, 4)).astype(np.float32), RNG.normal(size=(2, 4, 5)).astype(np.float32)
    left = a.transpose(0, 2, 1).copy() if flip[0] else a
    right = b.transpose(0, 2, 1).copy() if flip[1] else b
    got = _one("BatchMatMulV2", [left, right], adj_x1=flip[0], adj_x2=flip[1])[0]
    np.testing.assert_allclose(got, a @ b, rtol=1e-5, atol=1e-5)
    got = _one("MatMulV2", [left[0], right[0]], transpose_x1=flip[0], transpose_x2=flip[1])[0]
    np.testing.assert_allclose(got, a[0] @ b[0], rtol=1e-5, atol=1e-5)


def test_matrix_products_broadcast_batches_and_sum_halves_in_fp32():
    a, b = RNG.normal(size=(2, 1, 3, 64)).astype(np.float16), RNG.normal(size=(5, 64, 2)).astype(np.float16)
    got = _one("BatchMatMulV2", [a, b])[0]
    np.testing.assert_allclose(
        got, (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16), rtol=2e-3, atol=2e-3
    )


CONVOLUTIONS = {
    "plain": ((2, 3, 8, 9), (4, 3, 3, 3), [1, 1], [0, 0, 0, 0], [1, 1], 1),
    "strided": ((2, 4, 9, 9), (6, 4, 3, 2), [2, 1], [1, 1, 2, 2], [1, 2], 1),
    "uneven": ((1, 2, 7, 7), (2, 2, 3, 3), [1, 2], [0, 2, 1, 0], [1, 1], 1),
    "grouped": ((1, 4, 6, 6), (8, 2, 3, 3), [1, 1], [1, 1, 1, 1], [1, 1], 2),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_and_their_gradients_agree_with_torch(name):
    shape, kernel, strides, pads, dilations, groups = CONVOLUTIONS[name]
    x, w = RNG.normal(size=shape).astype(np.float32), RNG.normal(size=kernel).astype(np.float32)
    attrs = {"strides": [1, 1, *strides], "pads": pads, "dilations": [1, 1, *dilations], "groups": groups,
             "data_format": "NCHW"}  # fmt: skip
    tx, tw = torch.tensor(x, requires_grad=True), torch.tensor(w, requires_grad=True)
    want = F.conv2d(F.pad(tx, [pads[2], pads[3], pads[0], pads[1]]), tw, None, strides, 0, dilations, groups)
    net = Net()
    net.output(net.op("Conv2D", net.data(np.float32, shape, Format.FORMAT_NCHW), net.data(np.float32, kernel), **attrs))
    np.testing.assert_allclose(run(net, x, w)[0], want.detach(), rtol=1e-4, atol=1e-4)
    grad = RNG.normal(size=tuple(want.shape)).astype(np.float32)
    want.backward(torch.tensor(grad))
    net = Net()
    net.output(net.op("Conv2DBackpropInput", net.const(list(shape), np.int32), net.data(np.float32, kernel),
                      net.data(np.float32, grad.shape), **attrs))  # fmt: skip
    np.testing.assert_allclose(run(net, w, grad)[0], tx.grad, rtol=1e-4, atol=1e-4)
    net = Net()
    net.output(net.op("Conv2DBackpropFilter", net.data(np.float32, shape), net.const(list(kernel), np.int32),
                      net.data(np.float32, grad.shape), **attrs))  # fmt: skip
    np.testing.assert_allclose(run(net, x, grad)[0], tw.grad, rtol=1e-4, atol=1e-4)


def test_pooling_agrees_with_torch():
    x = RNG.normal(size=(2, 3, 7, 8)).astype(np.float32)
    attrs = {"ksize": [1, 1, 3, 2], "strides": [1, 1, 2, 2], "padding_mode": "CALCULATED", "pads": [1, 1, 0, 0],
             "data_format": "NCHW"}  # fmt: skip
    want = F.max_pool2d(torch.tensor(x), (3, 2), (2, 2), (1, 0))
    np.testing.assert_array_equal(_one("MaxPoolV3", [x], **attrs)[0], want)
    want = F.avg_pool2d(torch.tensor(x), (3, 2), (2, 2), (1, 0), count_include_pad=False)
    # Sums of six in another order: what cancels is off by float32's unit of the terms, not of the sum.
    np.testing.assert_allclose(_one("AvgPoolV2", [x], **attrs, exclusive=True)[0], want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint32, np.int8])
def test_sorting_keeps_the_order_of_equal_elements(dtype):
    x = RNG.integers(0, 5, (4, 17)).astype(dtype)
    if dtype is np.uint32:
        x[0, :3] = 2**32 - 1
    values, indices = _one("Sort", [x], axis=1, stable=True)
    np.testing.assert_array_equal(values, np.sort(x, 1))
    np.testing.assert_array_equal(indices, np.argsort(x, 1, kind="stable"))


def test_the_largest_elements_come_with_the_lower_index_first():
    x = np.array([[1, 4, 4, 2, np.nan]], np.float32)
    values, indices = _one("TopKV2", [x], [np.int32(3)], sorted=True)
    np.testing.assert_array_equal(values, [[np.nan, 4, 4]])
    assert indices.tolist() == [[4, 1, 2]]


def test_gathers_agree_with_numpy():
    index = np.array([[0, 2], [1, 1]], np.int32)
    np.testing.assert_array_equal(_one("GatherV2", [X, index], [np.int32(1)])[0], X[:, index])
    np.testing.assert_array_equal(_one("GatherNd", [X, index])[0], X[index[:, 0], index[:, 1]])
    wide = RNG.integers(0, 3, (3, 4, 5))
    np.testing.assert_array_equal(_one("GatherElements", [X, wide], dim=0)[0], np.take_along_axis(X, wide, 0))
    batched = np.array([[0, 3], [1, 1], [2, 0]], np.int64)
    got = _one("GatherV2", [X, batched], [np.int64(1)], batch_dims=1)[0]
    np.testing.assert_array_equal(got, np.stack([X[b][batched[b]] for b in range(3)]))


@pytest.mark.parametrize("mode", ["Update", "Add", "Max", "Min", "Sub"])
def test_scatters_agree_with_numpy(mode):
    index = np.array([[0, 1], [2, 3], [0, 1]], np.int32)
    updates = RNG.normal(size=(3, 5)).astype(np.float32)
    want = X.copy()
    for (i, j), row in zip(index, updates, strict=True):
        combine = {"Update": lambda a, b: b, "Add": np.add, "Sub": np.subtract, "Max": np.maximum, "Min": np.minimum}
        want[i, j] = combine[mode](want[i, j], row)
    np.testing.assert_allclose(_one(f"TensorScatter{mode}", [X, index, updates])[0], want, rtol=1e-6)


def test_an_index_outside_of_the_tensor_is_an_error():
    with pytest.raises(AclError, match="index 3 is outside of a dimension of size 3"):
        _one("GatherV2", [X, np.array([3], np.int32)], [np.int32(0)])


def test_linear_algebra_agrees_with_numpy():
    a = RNG.normal(size=(2, 4, 4)).astype(np.float32)
    spd = a @ a.transpose(0, 2, 1) + 4 * np.eye(4, dtype=np.float32)
    np.testing.assert_allclose(_one("Cholesky", [spd])[0], np.linalg.cholesky(spd), rtol=1e-4, atol=1e-5)
    low, b = np.tril(a) + 4 * np.eye(4, dtype=np.float32), RNG.normal(size=(2, 4, 3)).astype(np.float32)
    got = _one("MatrixTriangularSolve", [low, b], lower=True, adjoint=True)[0]
    np.testing.assert_allclose(got, np.linalg.solve(low.transpose(0, 2, 1), b), rtol=1e-4, atol=1e-4)
    assert np.isnan(_one("Cholesky", [-spd])[0]).all()


def test_fourier_transforms_agree_with_numpy():
    x = (RNG.normal(size=(3, 8)) + 1j * RNG.normal(size=(3, 8))).astype(np.complex64)
    np.testing.assert_allclose(_one("FFT", [x])[0], np.fft.fft(x), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        _one("RFFT", [x.real.copy()], [np.array([8], np.int32)])[0], np.fft.rfft(x.real), rtol=1e-4, atol=1e-5
    )


def test_constants_of_bf16_and_float64_are_taken_as_they_are():
    from ge.graph import Tensor, TensorDesc

    net = Net()

    def constant(dtype: DataType, data: torch.Tensor):
        node = net.graph._add(f"const_{dtype.name}", "Const")
        desc = TensorDesc([1], Format.FORMAT_ND, dtype)
        node._attrs["value"] = Tensor._from_bytes(desc, data.view(torch.uint8).numpy().tobytes())
        return node, 0

    half = net.op("Exp", constant(DataType.DT_BF16, torch.tensor([7.0]).bfloat16()))
    wide = net.op("Cast", constant(DataType.DT_DOUBLE, torch.tensor([7.5]).double()), dst_type=int(DataType.DT_FLOAT))
    net.output(net.op("Cast", half, dst_type=int(DataType.DT_FLOAT)), wide)
    exponential, number = run(net)
    assert exponential.tolist() == torch.tensor([7.0]).bfloat16().exp().float().tolist()
    assert number.tolist() == [7.5]


@pytest.mark.parametrize("batch", [1, 64, 128])
def test_gradients_of_a_convolution_do_not_depend_on_the_size_of_the_batch(batch):
    x, w = RNG.normal(size=(batch, 2, 5, 5)).astype(np.float32), RNG.normal(size=(3, 2, 3, 3)).astype(np.float32)
    grad = np.ones((batch, 3, 3, 3), np.float32)
    attrs = {"strides": [1, 1, 1, 1], "pads": [0, 0, 0, 0], "dilations": [1, 1, 1, 1], "data_format": "NCHW"}
    net = Net()
    net.output(net.op("Conv2DBackpropFilter", net.data(np.float32, x.shape), net.const(list(w.shape), np.int32),
                      net.data(np.float32, grad.shape), **attrs))  # fmt: skip
    tx, tw = torch.tensor(x), torch.tensor(w, requires_grad=True)
    F.conv2d(tx, tw).sum().backward()
    np.testing.assert_allclose(run(net, x, grad)[0], tw.grad, rtol=1e-4, atol=1e-3)
