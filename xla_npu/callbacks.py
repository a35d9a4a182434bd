"""Python functions that compiled programs call, for JAX's callbacks and debugging; the plugin's way to the host.

JAX's own lowering of a callback knows a fixed list of platforms. For `npu` the lowering here emits one custom call with
a number; the plugin calls `_handle` with that number and the addresses of the operands and results in host memory.
Functions that a program calls by name come the same way: see `host_calls`.
"""

import atexit
import ctypes
import functools
import itertools
import os
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xla_npu import PLATFORM, host_calls

TARGET = "xla_npu.python_callback"

_HANDLER = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_char),
    ctypes.c_size_t,
)


class _Callback:
    """A function with the types of its operands and results. Lives as long as the executables that call it."""

    def __init__(self, function: Callable[..., Sequence[Any]], operands: Sequence[Any], results: Sequence[Any]) -> None:
        self.function = function
        self.operands = [(tuple(aval.shape), np.dtype(aval.dtype)) for aval in operands]
        self.results = [(tuple(aval.shape), np.dtype(aval.dtype)) for aval in results]
        self.number = next(_numbers)

    def __call__(self, inputs: Any, outputs: Any) -> None:
        """Reads operands from and writes results to the given addresses."""
        arrays = [view(inputs[i], *kind).copy() for i, kind in enumerate(self.operands)]
        values = self.function(*arrays)
        if len(values) != len(self.results):
            raise RuntimeError(
                f"Mismatched number of outputs from callback. Expected: {len(self.results)}, Actual: {len(values)}"
            )
        for i, (value, (shape, dtype)) in enumerate(zip(values, self.results, strict=True)):
            if value.shape != shape:
                raise RuntimeError(
                    f"Incorrect output shape for return value #{i}: Expected: {shape}, Actual: {value.shape}"
                )
            if value.dtype != dtype:
                raise RuntimeError(
                    f"Incorrect output dtype for return value #{i}: Expected: {dtype}, Actual: {value.dtype}"
                )
            view(outputs[i], shape, dtype)[...] = value


_numbers = itertools.count(1)
_live: weakref.WeakValueDictionary[int, _Callback] = weakref.WeakValueDictionary()


def view(address: int | None, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """The array at an address of host memory."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if size == 0 or address is None:
        return np.zeros(shape, dtype)
    return np.frombuffer(memoryview((ctypes.c_char * size).from_address(address)), dtype).reshape(shape)


@_HANDLER
def _handle(target: bytes, call: bytes, inputs: Any, outputs: Any, error: Any, capacity: int) -> int:
    """Called by the plugin: 0, or 1 with the traceback in `error`."""
    try:
        if target != TARGET.encode():
            host_calls.run(call, inputs, outputs)
            return 0
        callback = _live.get(int(call))
        if callback is None:
            raise RuntimeError(f"callback {int(call)} is gone: its program was made by another process")
        callback(inputs, outputs)
        return 0
    except BaseException:
        text = traceback.format_exc().encode()
        # The end says what went wrong.
        text = text[-(capacity - 1) :] + b"\0"
        ctypes.memmove(error, text, len(text))
        return 1


def install(plugin: ctypes.CDLL) -> None:
    """Makes the plugin call back here, and JAX lower callbacks for `npu`."""
    from jax._src import callback as jax_callback

    plugin.npu_set_callback_handler(_handle)
    plugin.npu_add_host_target(TARGET.encode())
    # First what runs in the background comes to its end, as Python waits for threads; then nobody calls any more.
    threading._register_atexit(functools.partial(_wait_for_programs, plugin, os.getpid()))  # type: ignore[attr-defined]
    atexit.register(plugin.npu_end_callbacks)
    with _installing:
        original = jax_callback.emit_python_callback
        if getattr(original, "knows_npu", False):
            return

        def emit(ctx: Any, callback: Any, token: Any, operands: Any, *arguments: Any, **options: Any) -> Any:
            if tuple(ctx.module_context.platforms) == (PLATFORM,):
                return emit_callback(ctx, callback, token, operands, *arguments, **options)
            return original(ctx, callback, token, operands, *arguments, **options)

        emit.knows_npu = True  # type: ignore[attr-defined]
        jax_callback.emit_python_callback = emit


def _wait_for_programs(plugin: ctypes.CDLL, process: int) -> None:
    # A forked child has not the threads that run programs.
    while os.getpid() == process and plugin.npu_is_launching():
        time.sleep(0.001)


_installing = threading.Lock()


def emit_callback(
    ctx: Any,
    callback: Callable[..., Sequence[Any]],
    token: Any,
    operands: Sequence[Any],
    operand_avals: Sequence[Any],
    result_avals: Sequence[Any],
    *,
    has_side_effect: bool,
    returns_token: bool = True,
    partitioned: bool = False,
    sharding: Any = None,
) -> tuple[Sequence[Any], Any, Any]:
    """Emits the call of a Python function, as `jax._src.callback.emit_python_callback` does for JAX's own platforms.

    Returns:
        The results, the new token or None, and the callback that the module keeps.
    """
    from jax._src import dtypes
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir
    from jax._src.lib.mlir.dialects import hlo
    from jax._src.sharding_impls import SdyArray, SdyArrayList

    if partitioned and result_avals:
        raise ValueError("Partitioned callback not supported with return values.")

    def canonical(*arrays: Any) -> Sequence[Any]:
        return tuple(dtypes.canonicalize_value(np.asarray(value)) for value in callback(*arrays))

    made = _Callback(canonical, operand_avals, result_avals)
    _live[made.number] = made
    ctx.module_context.add_host_callback(made)
    result_types = [mlir.aval_to_ir_type(ctx.module_context, aval) for aval in result_avals]
    if token is not None:
        operands = [token, *operands]
        result_types = [hlo.TokenType.get(), *result_types]
        if isinstance(sharding, SdyArrayList) and result_avals:
            # One annotation for every result, the token's first.
            first = sharding.shardings[0]
            sharding = SdyArrayList(
                (
                    SdyArray(mesh_shape=(), dim_shardings=(), logical_device_ids=first.logical_device_ids),
                    *sharding.shardings,
                )
            )
    number = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), made.number)
    call = mlir.custom_call(
        TARGET,
        result_types=result_types,
        operands=operands,
        extra_attributes={"backend_config": ir.DictAttr.get({"id": number})},
        has_side_effect=has_side_effect,
        api_version=4,
    )
    if sharding is not None:
        mlir.set_sharding(ctx.module_context, call, sharding)
    results = list(call.results)
    if token is not None:
        token, *results = results
    return results, token, made
