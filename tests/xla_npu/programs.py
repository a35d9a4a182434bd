"""Compiles JAX functions for the NPU in this process and compares them with JAX on the CPU."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import numpy as np
from jaxlib import _jax

from tests.xla_npu import aclmdl
from xla_npu.compiler.api import Settings, compile_program
from xla_npu.compiler.executable import Executable

# The version of StableHLO that the plugin tells JAX.
STABLEHLO = "1.17.0"


@cache
def settings() -> Settings:
    """One compiler for the process, since GE can be set up once."""
    return Settings()


def serialize(function: Callable[..., Any], *arguments: Any) -> bytes:
    """A function as JAX hands it to a plugin called npu."""
    traced = jax.jit(function, keep_unused=True).trace(*arguments)
    module = traced.lower(lowering_platforms=("npu",)).compiler_ir()
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    return _jax.mlir.serialize_portable_artifact(buffer.getvalue(), STABLEHLO, True)


def compile_function(function: Callable[..., Any], *arguments: Any) -> Executable:
    """The compiled program of a function at these arguments' shapes and types."""
    return compile_program(serialize(function, *arguments), b"", settings())


def on_npu(function: Callable[..., Any], *arguments: Any) -> list[np.ndarray]:
    """The function's results, flattened, computed on the device."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(arguments)]
    return aclmdl.run(compile_function(function, *arguments), leaves)


def on_cpu(function: Callable[..., Any], *arguments: Any) -> list[np.ndarray]:
    """The function's results, flattened, computed by XLA on the CPU."""
    with jax.default_device(jax.devices("cpu")[0]):
        return [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(function)(*arguments))]


def tolerance(dtype: Any) -> float:
    """What two good implementations may differ by, relative."""
    return {"float16": 2e-3, "bfloat16": 2e-2}.get(np.dtype(dtype).name, 2e-5)


def assert_same(function: Callable[..., Any], *arguments: Any, rtol: float | None = None, atol: float = 1e-5) -> None:
    """Integers and booleans agree exactly, floats within a tolerance, NaN and infinities where they are."""
    got, want = on_npu(function, *arguments), on_cpu(function, *arguments)
    assert len(got) == len(want)
    for mine, theirs in zip(got, want, strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        kind = np.dtype(theirs.dtype).kind
        if kind in "iub":
            np.testing.assert_array_equal(mine, theirs)
            continue
        if kind != "c":
            mine, theirs = mine.astype(np.float64), theirs.astype(np.float64)
        limit = tolerance(want[0].dtype) if rtol is None else rtol
        np.testing.assert_allclose(mine, theirs, rtol=limit, atol=max(atol, limit / 10))
