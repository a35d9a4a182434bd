"""Functions on the host that compiled programs call by name: LAPACK, and what users register for the platform `npu`.

A program holds nothing but the name and the call's attributes, so it can be exported, serialised and cached, and runs
in every process that has registered the name. Each call is a program of its own for JAX's CPU backend, which knows
XLA's foreign function interface: attributes, layouts, state, errors. Operands and results are in host memory.
"""

import ctypes
import functools
import json
from typing import Any

import numpy as np

from xla_npu import PLATFORM

_ON_CPU = "npu:"  # what the names are prefixed with on the CPU, where the same ones may be taken
_LAPACK = f"{_ON_CPU}lapack_"


def install(plugin: ctypes.CDLL) -> None:
    """Makes LAPACK known to the plugin, and `jax.ffi.register_ffi_target(..., platform="npu")` reach it."""
    from jax._src.lib import lapack, xla_client

    def register(name: str, function: Any, platform: str, /, api_version: int = 0, traits: Any = 0) -> None:
        # xla_client holds its lock meanwhile: past it, to the CPU's own table.
        xla_client._xla.register_custom_call_target(f"{_ON_CPU}{name}", function, "Host", api_version, traits)
        plugin.npu_add_host_target(name.encode())

    for name, function, api_version in lapack.registrations()["cpu"]:
        register(name, function, PLATFORM, api_version, 0)
    xla_client.register_custom_call_handler(PLATFORM, register)
    xla_client.register_custom_type_handler(PLATFORM, xla_client._xla.register_custom_type)


def run(call: bytes, inputs: Any, outputs: Any) -> None:
    """Runs a call as the compiler describes it, with operands and results at the given addresses."""
    _load(call)(inputs, outputs)


class _HostCall:
    """One call, loaded on a CPU device."""

    def __init__(self, call: bytes) -> None:
        import jax
        from jax._src import xla_bridge
        from jax._src.lib import lapack, xla_client

        from xla_npu.compiler.dtypes import TYPES

        numpy = {kind.xla: np.dtype(kind.numpy) for kind in TYPES.values()}
        described = json.loads(call)
        self.inputs, self.outputs = (
            [(tuple(shape), numpy[name]) for name, shape in described[end]] for end in ("inputs", "outputs")
        )
        self.executable: Any = None
        if _LAPACK in described["program"] and _gives_an_empty_matrix(self.outputs):
            return
        lapack._lapack.initialize()  # its kernels are empty until SciPy's LAPACK is loaded
        self.device = jax.local_devices(backend="cpu")[0]
        devices = xla_client.DeviceList((self.device,))
        self.executable = xla_bridge.get_backend("cpu").compile_and_load(described["program"], devices)

    def __call__(self, inputs: Any, outputs: Any) -> None:
        import jax

        from xla_npu.callbacks import view

        if self.executable is None:
            return  # the plugin gives zeros
        with jax.enable_x64(True):  # 64-bit operands stay as they are
            arrays = [jax.device_put(view(inputs[i], *kind).copy(), self.device) for i, kind in enumerate(self.inputs)]
        results = self.executable.execute_sharded(arrays).disassemble_into_single_device_arrays()
        for i, (kind, (result,)) in enumerate(zip(self.outputs, results, strict=True)):
            view(outputs[i], *kind)[...] = np.asarray(result)


def _gives_an_empty_matrix(outputs: list[tuple[tuple[int, ...], np.dtype]]) -> bool:
    """LAPACK's kernels divide by the sizes of matrices. XLA has no call left whose matrices are empty."""
    rank = max(len(shape) for shape, _ in outputs)
    return any(len(shape) == rank and 0 in shape for shape, _ in outputs)


_load = functools.lru_cache(maxsize=256)(_HostCall)
