"""Types that no NPU computes with: float8 and 4-bit integers go through wider ones; quantised types are refused."""

import re

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from tests.xla_npu.programs import assert_same, settings
from xla_npu.compiler.api import compile_program
from xla_npu.compiler.errors import Unsupported


@pytest.mark.parametrize("narrow", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2], ids=lambda d: d.__name__)
def test_float8_matrices_are_multiplied_and_compared(narrow):
    rng = np.random.RandomState(0)
    a, b = (rng.randn(4, 4).astype(narrow) for _ in range(2))
    assert_same(lambda a, b: (jnp.dot(a, b, preferred_element_type=jnp.float32), a < b, jnp.max(a), -a), a, b)


def test_unsigned_4_bit_integers_wrap_and_compare():
    x = np.arange(16).astype(ml_dtypes.uint4)
    y = np.arange(16)[::-1].astype(ml_dtypes.uint4)
    assert_same(lambda x, y: [(v.astype(jnp.int32)) for v in (x + y, x * y, jnp.maximum(x, y))] + [x < y], x, y)


def test_quantised_types_are_refused_with_the_type_the_place_and_advice():
    program = """
    func.func public @main(%a: tensor<4xf32>) -> tensor<4x!quant.uniform<i8:f32, 0.5:3>> {
      %q = stablehlo.uniform_quantize %a : (tensor<4xf32>) -> tensor<4x!quant.uniform<i8:f32, 0.5:3>>
      return %q : tensor<4x!quant.uniform<i8:f32, 0.5:3>>
    }
    """
    # Whether the type can be read at all depends on which dialects jax has loaded in the process.
    with pytest.raises(Unsupported, match=r"!quant.uniform<i8:f32, .*stablehlo-legalize-quant-to-math") as refused:
        compile_program(program.encode(), b"", settings())
    assert re.search(r"at -:3|column 2:", str(refused.value))
