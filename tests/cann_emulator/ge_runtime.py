"""Builds graphs of GE operators in the tests, and runs the compiled models through the acl API."""

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from ge.graph import DataType, Format, Graph, Tensor, TensorDesc
from ge.offline_compile import build_finalize, build_initialize, build_model, offline_compile

DTYPES = {
    np.dtype(np.float32): DataType.DT_FLOAT, np.dtype(np.float16): DataType.DT_FLOAT16,
    np.dtype(np.float64): DataType.DT_DOUBLE, np.dtype(np.int8): DataType.DT_INT8,
    np.dtype(np.int16): DataType.DT_INT16, np.dtype(np.int32): DataType.DT_INT32,
    np.dtype(np.int64): DataType.DT_INT64, np.dtype(np.uint8): DataType.DT_UINT8,
    np.dtype(np.uint16): DataType.DT_UINT16, np.dtype(np.uint32): DataType.DT_UINT32,
    np.dtype(np.uint64): DataType.DT_UINT64, np.dtype(np.bool_): DataType.DT_BOOL,
    np.dtype(np.complex64): DataType.DT_COMPLEX64, np.dtype(np.complex128): DataType.DT_COMPLEX128,
}  # fmt: skip
NUMPY = {dtype: numpy for numpy, dtype in DTYPES.items()}
Edge = tuple[Any, int]


class Net:
    """A graph in the making: every call adds a node and returns its first output, or all of them."""

    def __init__(self, name: str = "net") -> None:
        self.graph = Graph(name)
        self.count = 0

    def _node(self, type: str) -> Any:
        self.count += 1
        return self.graph._add(f"{type}_{self.count}", type)

    def data(self, dtype: Any, shape: Sequence[int], format: Format = Format.FORMAT_ND) -> Edge:
        """An input."""
        index = sum(node.type == "Data" for node in self.graph._nodes)
        node = self._node("Data")
        node._attrs["index"] = index
        dtype = dtype if isinstance(dtype, DataType) else DTYPES[np.dtype(dtype)]
        node._output_descs = [TensorDesc(list(shape), format, dtype)]
        return node, 0

    def const(self, values: Any, dtype: Any = None) -> Edge:
        """A constant."""
        array = np.ascontiguousarray(np.array(values, dtype=dtype)).reshape(np.shape(values))
        node = self._node("Const")
        desc = TensorDesc(list(array.shape), Format.FORMAT_ND, DTYPES[array.dtype])
        node._attrs["value"] = Tensor._from_bytes(desc, array.tobytes())
        node._output_descs = [desc]
        return node, 0

    def op(self, type: str, /, *inputs: Edge | None, graphs: Sequence["Net"] = (), **attrs: Any) -> Edge:
        """An operator; gives its first output."""
        node = self._node(type)
        node._inputs = list(inputs)
        node._attrs = attrs
        for net in graphs:
            net.graph._name = f"{node.name}/{net.graph._name}_{len(node._subgraphs)}"
            node._subgraphs.append(net.graph._name)
            self.graph._children[net.graph._name] = net.graph
        return node, 0

    def output(self, *outputs: Edge) -> "Net":
        """Names the outputs."""
        node = self._node("NetOutput")
        node._inputs = list(outputs)
        return self


@contextmanager
def _initialized() -> Iterator[None]:
    """Graph Engine as these tests want it; afterwards as other tests of the process had it."""
    before = dict(offline_compile._state)
    build_finalize()
    build_initialize({"ge.socVersion": "Ascend910B1", "ge.exec.precision_mode_v2": "origin"})
    try:
        yield
    finally:
        build_finalize()
        offline_compile._state.update(before)


def compiled(net: Net | Graph, **options: str) -> bytes:
    """The model of a graph."""
    graph = net.graph if isinstance(net, Net) else net
    with _initialized():
        return build_model(graph, {name.replace("__", "."): value for name, value in options.items()})._data


class AclError(Exception):
    """A call failed; `code` is its status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class _Dims(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char * 128), ("count", ctypes.c_size_t), ("dims", ctypes.c_int64 * 128)]


@cache
def acl() -> Any:
    """libascendcl.so, with device 0 set."""
    library = ctypes.PyDLL(str(Path(os.environ["ASCEND_HOME_PATH"]) / "lib64" / "libascendcl.so"))
    for name in ("aclmdlCreateDataset", "aclCreateDataBuffer", "aclmdlCreateDesc", "aclGetDataBufferAddr"):
        getattr(library, name).restype = ctypes.c_void_p
    for name in (
        "aclmdlGetNumInputs",
        "aclmdlGetNumOutputs",
        "aclmdlGetInputSizeByIndex",
        "aclmdlGetOutputSizeByIndex",
    ):
        getattr(library, name).restype = ctypes.c_size_t
        getattr(library, name).argtypes = [ctypes.c_void_p, ctypes.c_size_t][: 1 if "Num" in name else 2]
    library.aclGetRecentErrMsg.restype = ctypes.c_char_p
    library.aclInit(None)
    check(library.aclrtSetDevice(0))
    return library


def check(code: int) -> None:
    """Raises where a call failed.

    Raises:
        AclError: the status is not 0.
    """
    if code:
        message = acl().aclGetRecentErrMsg()
        raise AclError(code, message.decode() if message else "")


class Model:
    """A loaded model.

    Args:
        data: the offline model.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.id = ctypes.c_uint32()
        check(acl().aclmdlLoadFromMem(data, ctypes.c_size_t(len(data)), ctypes.byref(self.id)))
        self.desc = ctypes.c_void_p(acl().aclmdlCreateDesc())
        check(acl().aclmdlGetDesc(self.desc, self.id))
        self.outputs = [self._port("Output", i) for i in range(acl().aclmdlGetNumOutputs(self.desc))]
        self.inputs = [self._port("Input", i) for i in range(acl().aclmdlGetNumInputs(self.desc))]

    def _port(self, side: str, index: int) -> tuple[DataType, list[int]]:
        dims = _Dims()
        check(getattr(acl(), f"aclmdlGet{side}Dims")(self.desc, ctypes.c_size_t(index), ctypes.byref(dims)))
        dtype = getattr(acl(), f"aclmdlGet{side}DataType")(self.desc, ctypes.c_size_t(index))
        return DataType(dtype), list(dims.dims[: dims.count])

    def run(self, *arrays: np.ndarray, donated: dict[int, int] | None = None) -> list[np.ndarray]:
        """Copies the inputs to the device, executes, and copies the outputs back.

        Args:
            arrays: the inputs; raw bytes for dtypes that numpy lacks.
            donated: output index -> index of the input whose memory it takes.
        """
        buffers: list[ctypes.c_void_p] = []
        places = [self._device(array.nbytes) for array in arrays]
        for place, array in zip(places, arrays, strict=True):
            data = np.ascontiguousarray(array)
            if data.nbytes:
                check(
                    acl().aclrtMemcpy(
                        place,
                        ctypes.c_size_t(data.nbytes),
                        data.ctypes.data_as(ctypes.c_void_p),
                        ctypes.c_size_t(data.nbytes),
                        1,
                    )
                )
        results = []
        for i in range(len(self.outputs)):
            size = int(acl().aclmdlGetOutputSizeByIndex(self.desc, i))
            results.append(places[donated[i]] if donated and i in donated else self._device(size))
        check(
            acl().aclmdlExecuteAsync(
                self.id, self._dataset(places, arrays, buffers), self._dataset(results, None, buffers), None
            )
        )
        found = []
        for place, (dtype, dims) in zip(results, self.outputs, strict=True):
            array = np.empty(dims, NUMPY.get(dtype, np.dtype(np.uint16)))
            if array.nbytes:
                check(
                    acl().aclrtMemcpy(
                        array.ctypes.data_as(ctypes.c_void_p),
                        ctypes.c_size_t(array.nbytes),
                        place,
                        ctypes.c_size_t(array.nbytes),
                        2,
                    )
                )
            found.append(array)
        for place in {place.value: place for place in places + results}.values():
            if place.value:
                check(acl().aclrtFree(place))
        return found

    def _device(self, size: int) -> ctypes.c_void_p:
        place = ctypes.c_void_p()
        if size:
            check(acl().aclrtMalloc(ctypes.byref(place), ctypes.c_size_t(size), 0))
        return place

    def _dataset(self, places: list[ctypes.c_void_p], arrays: Any, keep: list) -> ctypes.c_void_p:
        dataset = ctypes.c_void_p(acl().aclmdlCreateDataset())
        for i, place in enumerate(places):
            size = arrays[i].nbytes if arrays is not None else int(acl().aclmdlGetOutputSizeByIndex(self.desc, i))
            buffer = ctypes.c_void_p(acl().aclCreateDataBuffer(place, ctypes.c_size_t(size)))
            keep.append(buffer)
            check(acl().aclmdlAddDatasetBuffer(dataset, buffer))
        return dataset

    def unload(self) -> None:
        """Unloads it."""
        check(acl().aclmdlUnload(self.id))


def run(net: Net, *arrays: np.ndarray, **options: str) -> list[np.ndarray]:
    """Compiles, loads and runs a graph."""
    model = Model(compiled(net, **options))
    results = model.run(*arrays)
    model.unload()
    return results


def program(data: bytes) -> dict[str, Any]:
    """The program in an offline model."""
    import json
    import struct

    (count,) = struct.unpack_from("<Q", data, 256)
    for i in range(count):
        kind, offset, size = struct.unpack_from("<QQQ", data, 264 + 24 * i)
        if kind == 0:
            return json.loads(data[256 + offset : 256 + offset + size])
    raise AssertionError("the model has no program")
