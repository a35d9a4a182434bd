"""An operator gives the same numbers whether torch_npu calls it through aclnn or a graph holds it, to the last bit."""

import numpy as np
import pytest
import torch
import torch_npu  # noqa: F401  registers the device

from tests.cann_emulator.ge_runtime import Net, run

# Operator -> what torch_npu calls aclnn for.
UNARY = {
    "Log1p": torch.log1p, "Expm1": torch.expm1, "Sin": torch.sin, "Cos": torch.cos, "Tan": torch.tan,
    "Asin": torch.asin, "Acos": torch.acos, "Atan": torch.atan, "Sinh": torch.sinh, "Cosh": torch.cosh,
    "Tanh": torch.tanh, "Asinh": torch.asinh, "Acosh": torch.acosh, "Atanh": torch.atanh, "Erf": torch.erf,
    "Erfc": torch.erfc, "Erfinv": torch.erfinv, "Sigmoid": torch.sigmoid, "Exp": torch.exp, "Log": torch.log,
    "Sqrt": torch.sqrt, "Rsqrt": torch.rsqrt, "Reciprocal": torch.reciprocal, "Neg": torch.neg, "Abs": torch.abs,
    "Floor": torch.floor, "Ceil": torch.ceil, "Square": torch.square, "Swish": torch.nn.functional.silu,
}  # fmt: skip
BINARY = {
    "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "RealDiv": torch.div, "Maximum": torch.maximum,
    "Minimum": torch.minimum, "Atan2": torch.atan2, "Pow": torch.pow,
}  # fmt: skip
# A graph computes these in its loops, exactly; the library under torch's may round the last place the other way.
LAST_PLACE = {"Sqrt", "Rsqrt", "Reciprocal"}
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-3, 1e-40, 88.0, 1e4, np.inf, -np.inf, np.nan]


def _floats(dtype: type, seed: int) -> np.ndarray:
    values = np.random.default_rng(seed).normal(scale=3, size=5000).astype(dtype)
    values[: len(SPECIAL)] = np.array(SPECIAL, np.float32).astype(dtype)
    return values


def _same(type: str, in_graph: np.ndarray, eager: torch.Tensor) -> None:
    given = eager.cpu().numpy()
    if type in LAST_PLACE:
        np.testing.assert_array_equal(np.isnan(in_graph), np.isnan(given))
        np.testing.assert_array_max_ulp(np.nan_to_num(in_graph), np.nan_to_num(given), maxulp=1)
    else:
        np.testing.assert_array_equal(in_graph, given)  # NaN equals NaN


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("type", UNARY)
def test_unary_operators_give_what_torch_gives(type, dtype):
    x, net = _floats(dtype, 0), Net()
    net.output(net.op(type, net.data(dtype, x.shape)))
    _same(type, run(net, x)[0], UNARY[type](torch.from_numpy(x).npu()))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("type", BINARY)
def test_binary_operators_give_what_torch_gives(type, dtype):
    x, y, net = _floats(dtype, 1), _floats(dtype, 2)[::-1].copy(), Net()
    net.output(net.op(type, net.data(dtype, x.shape), net.data(dtype, y.shape)))
    _same(type, run(net, x, y)[0], BINARY[type](torch.from_numpy(x).npu(), torch.from_numpy(y).npu()))
