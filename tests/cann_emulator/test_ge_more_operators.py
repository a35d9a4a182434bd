"""The less common operators of Graph Engine against torch."""

import numpy as np
import pytest
import torch
from ge._compiler.prototypes import prototype
from ge.graph import DataType

from tests.cann_emulator.ge_runtime import Net, run

T = torch.tensor
RNG = np.random.default_rng(1)
X = RNG.normal(size=(3, 4)).astype(np.float32)
Y = RNG.normal(size=(3, 4)).astype(np.float32)
POSITIVE = np.abs(X) + 0.5
SQUARE = (RNG.normal(size=(3, 3)) + 3 * np.eye(3)).astype(np.float32)
SYMMETRIC = (SQUARE + SQUARE.T).astype(np.float32)
COMPLEX = (X + 1j * Y).astype(np.complex64)
INDEX = np.array([2, 0], np.int32)
WIDE = RNG.integers(0, 3, (3, 4)).astype(np.int64)
ROWS = np.ones((2, 4), np.float32)


def _lu():
    factors, pivots = torch.linalg.lu_factor(T(SQUARE))
    return factors, torch.lu_unpack(factors, pivots)[0].argmax(0)


def _scattered(function):
    return function(T(X).clone())


# name: (type, inputs, constants, attributes, what it gives)
CASES = {
    "exp2": ("Exp", [X], [], {"base": 2.0, "scale": 3.0, "shift": 1.0}, 2 ** (3 * T(X) + 1)),
    "log10": ("Log", [POSITIVE], [], {"base": 10.0}, torch.log10(T(POSITIVE))),
    "round": ("Round", [X * 10], [], {}, torch.round(T(X * 10))),
    "erfinv": ("Erfinv", [np.tanh(X)], [], {}, torch.erfinv(T(np.tanh(X)))),
    "bessel": ("BesselI1e", [X], [], {}, torch.special.i1e(T(X))),
    "zeta": ("Zeta", [POSITIVE + 1, POSITIVE], [], {}, torch.special.zeta(T(POSITIVE + 1), T(POSITIVE))),
    "igamma": ("Igamma", [POSITIVE, POSITIVE], [], {}, torch.special.gammainc(T(POSITIVE), T(POSITIVE))),
    "nextafter": ("NextAfter", [X, Y], [], {}, torch.nextafter(T(X), T(Y))),
    "gelu": ("GeluV2", [X], [], {"approximate": "none"}, torch.nn.functional.gelu(T(X))),
    "softplus": ("SoftplusV2", [X], [], {}, torch.nn.functional.softplus(T(X))),
    "leaky": ("LeakyRelu", [X], [], {"negative_slope": 0.25}, torch.nn.functional.leaky_relu(T(X), 0.25)),
    "muls": ("Muls", [X], [], {"value": 2.5}, T(X) * 2.5),
    "clip": ("ClipByValueV2", [X], [np.float32(-0.5), np.float32(0.5)], {}, T(X).clamp(-0.5, 0.5)),
    "squared difference": ("SquaredDifference", [X, Y], [], {}, (T(X) - T(Y)) ** 2),
    "divide no nan": ("DivNoNan", [X, np.zeros_like(X)], [], {}, torch.zeros(3, 4)),
    "xlogy": ("Xlogy", [X, POSITIVE], [], {}, torch.xlogy(T(X), T(POSITIVE))),
    "l2 loss": ("L2Loss", [X], [], {}, T(X).square().sum() / 2),
    "conj": ("Conj", [COMPLEX], [], {}, T(COMPLEX).conj().resolve_conj()),
    "real": ("Real", [COMPLEX], [], {}, T(COMPLEX).real),
    "imag": ("Imag", [COMPLEX], [], {}, T(COMPLEX).imag),
    "complex": ("Complex", [X, Y], [], {}, T(COMPLEX)),
    "modulus": ("ComplexAbs", [COMPLEX], [], {}, T(COMPLEX).abs()),
    "angle": ("Angle", [COMPLEX], [], {}, T(COMPLEX).angle()),
    "softmax": ("SoftmaxV2", [X], [], {"axes": [-1]}, T(X).softmax(-1)),
    "log softmax": ("LogSoftmaxV2", [X], [], {"axes": [0]}, T(X).log_softmax(0)),
    "log sum exp": ("ReduceLogSumExp", [X], [np.array([1])], {}, T(X).logsumexp(1)),
    "arg max": ("ArgMaxWithValue", [X], [], {"dimension": 1}, T(X).max(1)[::-1]),
    "cumulative maximum": ("Cummax", [X], [], {"dim": 1}, T(X).cummax(1)),
    "cumulative product": ("Cumprod", [X], [np.int32(0)], {"reverse": True}, T(X).flip(0).cumprod(0).flip(0)),
    "one hot": ("OneHot", [np.array([1, 3, 9], np.int32)], [np.int32(4), np.float32(2), np.float32(-1)], {},
                T([[-1, 2, -1, -1], [-1, -1, -1, 2], [-1] * 4]).float()),
    "scatter elements": ("ScatterElementsV2", [X, WIDE, Y], [], {"axis": 0, "reduction": "add"},
                         _scattered(lambda x: x.scatter_add(0, T(WIDE), T(Y)))),
    "scatter rows": ("ScatterUpdate", [X, INDEX, ROWS], [], {},
                     _scattered(lambda x: x.index_copy(0, T(INDEX).long(), T(ROWS)))),
    "scatter new": ("ScatterNd", [INDEX[:, None], ROWS], [np.array([3, 4], np.int32)], {},
                    _scattered(lambda x: torch.zeros(3, 4).index_add(0, T(INDEX).long(), T(ROWS)))),
    "slice assign": ("StridedSliceAssign", [X],
                     [np.array([1, 0]), np.array([3, 4]), np.array([1, 2]), np.zeros((2, 2), np.float32)], {},
                     _scattered(lambda x: x.index_put((T([[1], [2]]), T([[0, 2]])), T(0.0)))),
    "roll": ("Roll", [X], [], {"shifts": [1], "dims": [1]}, T(X).roll(1, 1)),
    "fill": ("Fill", [], [np.array([2, 3]), np.float32(7)], {}, torch.full((2, 3), 7.0)),
    "ones": ("OnesLike", [X], [], {}, torch.ones(3, 4)),
    "tril": ("Tril", [X], [], {"diagonal": 1}, T(X).tril(1)),
    "eye": ("Eye", [], [], {"num_rows": 2, "num_columns": 3, "dtype": int(DataType.DT_FLOAT)}, torch.eye(2, 3)),
    "diagonals": ("MatrixDiag", [X], [], {}, torch.diag_embed(T(X))),
    "inverse": ("MatrixInverse", [SQUARE], [], {}, torch.linalg.inv(T(SQUARE))),
    "determinant": ("MatrixDeterminant", [SQUARE], [], {}, torch.linalg.det(T(SQUARE))),
    "solve": ("MatrixSolve", [SQUARE, X], [], {}, torch.linalg.solve(T(SQUARE), T(X))),
    "qr": ("Qr", [X], [], {}, torch.linalg.qr(T(X))),
    "eigenvalues": ("SelfAdjointEig", [SYMMETRIC], [], {}, torch.linalg.eigh(T(SYMMETRIC))),
    "lu": ("Lu", [SQUARE], [], {"output_idx_type": DataType.DT_INT32}, _lu()),
    "singular values": ("Svd", [X], [], {"compute_uv": False}, (torch.linalg.svdvals(T(X)),)),
    "sort with index": ("SortWithIndex", [X, WIDE], [], {"axis": 1},
                        (T(X).sort(1)[0], T(WIDE).gather(1, T(X).sort(1)[1]))),
    "rms norm": ("RmsNorm", [X, np.ones(4, np.float32)], [], {}, (torch.nn.functional.rms_norm(T(X), [4], eps=1e-6),)),
    "layer norm": ("LayerNorm", [X, np.ones(4, np.float32), np.zeros(4, np.float32)], [], {"begin_norm_axis": 1},
                   (torch.nn.functional.layer_norm(T(X), [4], eps=1e-7),)),
    "strided slice": ("StridedSliceV2", [X],
                      [np.array([2, 0]), np.array([0, 4]), np.array([0, 1]), np.array([-1, 3])], {},
                      T(X).flip(0)[0:2, 0:4:3]),
    "unpack": ("Unpack", [X], [], {"num": 3, "axis": 0}, tuple(T(X))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_operator_agrees_with_torch(name):
    type, inputs, consts, attrs, want = CASES[name]
    net = Net()
    edges = [net.data(x.dtype, x.shape) for x in inputs] + [net.const(c) for c in consts]
    if type == "Einsum":
        attrs = {**attrs, "N": len(inputs)}
    node, _ = net.op(type, *edges, **attrs)
    wanted = want if isinstance(want, tuple) else (want,)
    count = len(wanted) if prototype(type).outputs[0].kind == "dynamic" else len(prototype(type).outputs)
    net.output(*[(node, i) for i in range(count)])
    got = run(net, *inputs)
    for found, expected in zip(got, wanted, strict=False):
        np.testing.assert_allclose(found, expected.numpy(), rtol=2e-4, atol=2e-5)


def test_sums_of_many_tensors_and_einsum():
    net = Net()
    a, b = net.data(np.float32, X.shape), net.data(np.float32, X.shape)
    net.output(net.op("AddN", a, b, a, N=3), net.op("Einsum", a, b, equation="ij,kj->ik", N=2))
    total, product = run(net, X, Y)
    np.testing.assert_allclose(total, 2 * X + Y, rtol=1e-6)
    np.testing.assert_allclose(product, X @ Y.T, rtol=1e-5, atol=1e-6)


def test_batch_norm_uses_the_batch_while_training():
    x = RNG.normal(size=(4, 3, 5, 5)).astype(np.float32)
    scale, offset = np.array([1, 2, 3], np.float32), np.array([0, 1, 2], np.float32)
    net = Net()
    node, _ = net.op("BatchNorm", net.data(np.float32, x.shape), net.const(scale), net.const(offset), None, None,
                     data_format="NCHW", epsilon=1e-5)  # fmt: skip
    net.output((node, 0), (node, 1))
    y, mean = run(net, x)
    want = torch.nn.functional.batch_norm(T(x), None, None, T(scale), T(offset), training=True, eps=1e-5)
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mean, x.mean((0, 2, 3)), rtol=1e-4, atol=1e-6)


def test_random_numbers_repeat_where_they_should():
    net = Net()
    shape = net.const([1000], np.int64)
    counter, algorithm = net.const(np.array([0, 1], np.uint64)), net.const(np.int32(1))
    keys = [net.const(np.array([key], np.uint64)) for key in (3, 3, 4)]
    keyed = [
        net.op("StatelessRandomUniformV2", shape, key, counter, algorithm, dtype=DataType.DT_FLOAT) for key in keys
    ]
    free = net.op("RandomStandardNormal", shape, dtype=DataType.DT_FLOAT)
    net.output(*keyed, free)
    first, same, other, normal = run(net)
    np.testing.assert_array_equal(first, same)
    assert (first != other).any() and first.min() >= 0 and first.max() < 1
    assert abs(normal.mean()) < 0.2 and abs(normal.std() - 1) < 0.2
    assert (run(net)[3] != normal).any()
