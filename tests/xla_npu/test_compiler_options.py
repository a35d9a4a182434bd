"""Compile options that a program sets: XLA's are taken and mean nothing, mistakes are named."""

from __future__ import annotations

import jax
import pytest


@pytest.fixture
def npu() -> jax.Device:
    return jax.devices("npu")[0]


@pytest.mark.parametrize(
    "options",
    [
        {"xla_embed_ir_in_executable": True},
        {"xla_dump_hlo_as_text": "false"},
        {"xla_gpu_kernel_cache_file": "a string"},
        {"xla_dump_max_hlo_modules": 200, "exec_time_optimization_effort": 0.5},
    ],
)
def test_options_of_xla_are_taken(options, npu):
    x = jax.device_put(3.0, npu)
    assert jax.jit(lambda t: t + 1, compiler_options=options)(x) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"no_such_key": 1}, "No such compile option: 'no_such_key'"),
        ({"xla_dump_hlo_as_text": "perhaps"}, "'perhaps' is not a valid bool value"),
    ],
)
def test_mistakes_are_named(options, message, npu):
    x = jax.device_put(3.0, npu)
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.jit(lambda t: t + 2, compiler_options=options)(x)
