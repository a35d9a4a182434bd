"""Runs compiled programs on the device through CANN's C API, without the plugin."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np

from xla_npu.compiler.dtypes import TYPES
from xla_npu.compiler.executable import Executable

HOST_TO_DEVICE, DEVICE_TO_HOST, HUGE_FIRST = 1, 2, 0
BY_XLA_NAME = {t.xla: t for t in TYPES.values()}


@cache
def library() -> ctypes.CDLL:
    """libascendcl, initialised, device 0 set."""
    acl = ctypes.CDLL("libascendcl.so", mode=ctypes.RTLD_GLOBAL)
    for name in ("aclmdlCreateDesc", "aclmdlCreateDataset", "aclCreateDataBuffer"):
        getattr(acl, name).restype = ctypes.c_void_p
    acl.aclGetRecentErrMsg.restype = ctypes.c_char_p
    acl.aclInit(None)
    check(acl, acl.aclrtSetDevice(0))
    return acl


def check(acl: ctypes.CDLL, code: int) -> None:
    """Raises CANN's message for an error code."""
    if code:
        raise RuntimeError(f"CANN error {code}: {(acl.aclGetRecentErrMsg() or b'').decode()}")


class _Buffer:
    """Device memory with a numpy array's content."""

    def __init__(self, acl: ctypes.CDLL, size: int):
        self.acl, self.size, self.pointer = acl, size, ctypes.c_void_p()
        check(acl, acl.aclrtMalloc(ctypes.byref(self.pointer), ctypes.c_size_t(max(size, 64)), HUGE_FIRST))

    def write(self, array: np.ndarray) -> None:
        raw = np.ascontiguousarray(array)
        size = ctypes.c_size_t(raw.nbytes)
        if raw.nbytes:
            check(self.acl, self.acl.aclrtMemcpy(self.pointer, size, raw.ctypes.data_as(ctypes.c_void_p), size, 1))

    def read(self, dtype: Any, shape: list[int]) -> np.ndarray:
        raw = np.empty(shape, dtype)
        size = ctypes.c_size_t(raw.nbytes)
        if raw.nbytes:
            check(self.acl, self.acl.aclrtMemcpy(raw.ctypes.data_as(ctypes.c_void_p), size, self.pointer, size, 2))
        return raw

    def free(self) -> None:
        check(self.acl, self.acl.aclrtFree(self.pointer))


def run(executable: Executable, arguments: list[np.ndarray]) -> list[np.ndarray]:
    """Runs a program of one model."""
    (step,) = executable.steps
    acl = library()
    model = executable.models[step["model"]]
    number = ctypes.c_uint32()
    check(acl, acl.aclmdlLoadFromMem(model, ctypes.c_size_t(len(model)), ctypes.byref(number)))
    buffers: dict[int, _Buffer] = {}
    try:
        for value in (*step["inputs"], *step["outputs"]):
            buffers[value] = _Buffer(acl, executable.values[value]["bytes"])
        for what, array in zip(executable.inputs, arguments, strict=True):
            buffers[what["value"]].write(np.asarray(array))
        sets = [_dataset(acl, [buffers[v] for v in step[side]]) for side in ("inputs", "outputs")]
        check(acl, acl.aclmdlExecute(number, *sets))
        return [
            buffers[what["value"]].read(BY_XLA_NAME[what["dtype"]].numpy, what["dims"]) for what in executable.outputs
        ]
    finally:
        for buffer in buffers.values():
            buffer.free()
        acl.aclmdlUnload(number)


def _dataset(acl: ctypes.CDLL, buffers: list[_Buffer]) -> ctypes.c_void_p:
    dataset = ctypes.c_void_p(acl.aclmdlCreateDataset())
    for buffer in buffers:
        entry = ctypes.c_void_p(acl.aclCreateDataBuffer(buffer.pointer, ctypes.c_size_t(buffer.size)))
        check(acl, acl.aclmdlAddDatasetBuffer(dataset, entry))
    return dataset
