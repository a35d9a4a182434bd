"""A session compiles the graphs that it is given and runs them on the device."""

import ctypes
import math
import os
from functools import cache
from pathlib import Path

from .._compiler import options as known_options
from .._compiler.compile import compile_graph
from .._compiler.prototypes import BYTES, SHORT
from ..error import GraphFault, ge_error
from ..ge_global.geapi import global_options
from ..graph.graph import Graph
from ..graph.tensor import Tensor
from ..graph.tensor_desc import TensorDesc
from ..graph.types import DataType, Format

_TO_DEVICE, _TO_HOST = 1, 2


@cache
def _acl() -> ctypes.PyDLL:
    library = ctypes.PyDLL(str(Path(os.environ["ASCEND_HOME_PATH"]) / "lib64" / "libascendcl.so"))
    for name in ("aclmdlCreateDataset", "aclCreateDataBuffer", "aclmdlCreateDesc"):
        getattr(library, name).restype = ctypes.c_void_p
    library.aclmdlGetNumOutputs.restype = ctypes.c_size_t
    library.aclGetRecentErrMsg.restype = ctypes.c_char_p
    return library


def _check(code: int) -> None:
    if code:
        message = _acl().aclGetRecentErrMsg()
        raise GraphFault(str(code), message.decode() if message else "the call failed")


class _Dims(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char * 128), ("count", ctypes.c_size_t), ("dims", ctypes.c_int64 * 128)]


class _Loaded:
    """A compiled graph on the device."""

    def __init__(self, model: bytes) -> None:
        acl = _acl()
        acl.aclInit(None)  # a second time is no harm
        _check(acl.aclrtSetDevice(int(global_options().get("ge.exec.deviceId", "0"))))
        self.id = ctypes.c_uint32()
        _check(acl.aclmdlLoadFromMem(model, ctypes.c_size_t(len(model)), ctypes.byref(self.id)))
        desc = ctypes.c_void_p(acl.aclmdlCreateDesc())
        _check(acl.aclmdlGetDesc(desc, self.id))
        self.outputs = []
        for index in range(acl.aclmdlGetNumOutputs(desc)):
            dims = _Dims()
            _check(acl.aclmdlGetOutputDims(desc, ctypes.c_size_t(index), ctypes.byref(dims)))
            dtype = DataType(acl.aclmdlGetOutputDataType(desc, ctypes.c_size_t(index)))
            self.outputs.append(TensorDesc(list(dims.dims[: dims.count]), Format.FORMAT_ND, dtype))
        acl.aclmdlDestroyDesc(desc)

    def run(self, inputs: list[Tensor]) -> list[Tensor]:
        """Copies to the device, executes, and copies back."""
        acl = _acl()
        places: list[tuple[ctypes.c_void_p, int]] = []
        buffers: list[ctypes.c_void_p] = []
        datasets: list[ctypes.c_void_p] = []
        try:
            for tensor in inputs:
                places.append(self._allocate(len(tensor._bytes)))
                place, size = places[-1]
                if size:
                    _check(
                        acl.aclrtMemcpy(place, ctypes.c_size_t(size), tensor._bytes, ctypes.c_size_t(size), _TO_DEVICE)
                    )
            sizes = [math.prod(desc.shape) * BYTES[SHORT[desc.data_type]] for desc in self.outputs]
            places += [self._allocate(size) for size in sizes]
            for part in (places[: len(inputs)], places[len(inputs) :]):
                datasets.append(ctypes.c_void_p(acl.aclmdlCreateDataset()))
                for place, size in part:
                    buffers.append(ctypes.c_void_p(acl.aclCreateDataBuffer(place, ctypes.c_size_t(size))))
                    _check(acl.aclmdlAddDatasetBuffer(datasets[-1], buffers[-1]))
            _check(acl.aclmdlExecute(self.id, *datasets))
            results = []
            for desc, (place, size) in zip(self.outputs, places[len(inputs) :], strict=True):
                data = ctypes.create_string_buffer(size)
                if size:
                    _check(acl.aclrtMemcpy(data, ctypes.c_size_t(size), place, ctypes.c_size_t(size), _TO_HOST))
                results.append(Tensor._from_bytes(desc, data.raw))
            return results
        finally:
            for buffer in buffers:
                acl.aclDestroyDataBuffer(buffer)
            for dataset in datasets:
                acl.aclmdlDestroyDataset(dataset)
            for place, size in places:
                if size:
                    acl.aclrtFree(place)

    @staticmethod
    def _allocate(size: int) -> tuple[ctypes.c_void_p, int]:
        place = ctypes.c_void_p()
        if size:
            _check(_acl().aclrtMalloc(ctypes.byref(place), ctypes.c_size_t(size), 0))
        return place, size


class Session:
    """Graphs by number; a graph is compiled when it first runs.

    Args:
        options: options of all graphs.
    """

    def __init__(self, options: dict[str, str] | None = None) -> None:
        if options is not None and not isinstance(options, dict):
            raise TypeError("option must be a dictionary")
        self._options = dict(options or {})
        self._graphs: dict[int, tuple[Graph, dict[str, str]]] = {}
        self._loaded: dict[int, _Loaded] = {}

    def add_graph(self, graph_id: int, add_graph: Graph, options: dict[str, str] | None = None) -> int:
        """Adds a graph.

        Raises:
            GeError: the number is taken, or an option is wrong.
        """
        if not isinstance(graph_id, int):
            raise TypeError("Graph_id must be an integer")
        if not isinstance(add_graph, Graph):
            raise TypeError("Add_graph must be a Graph")
        if options is not None and not isinstance(options, dict):
            raise TypeError("options must be a dictionary")
        merged = {**global_options(), **self._options, **(options or {})}
        merged.pop("ge.graphRunMode", None)
        try:
            if graph_id in self._graphs:
                raise GraphFault("E19999", f"graph {graph_id} was added before.")
            known_options.check(merged, known_options.GLOBAL)
        except GraphFault as fault:
            raise ge_error("AddGraph", fault, graph_id=graph_id) from None
        self._graphs[graph_id] = (add_graph, merged)
        return 0

    def remove_graph(self, graph_id: int) -> None:
        """Takes a graph away.

        Raises:
            GeError: there is none of that number.
        """
        if not isinstance(graph_id, int):
            raise TypeError("Graph_id must be an integer")
        if self._graphs.pop(graph_id, None) is None:
            raise ge_error("RemoveGraph", GraphFault("E19999", "it was not added."), graph_id=graph_id)
        loaded = self._loaded.pop(graph_id, None)
        if loaded is not None:
            _acl().aclmdlUnload(loaded.id)

    def run_graph(self, graph_id: int, inputs: list[Tensor]) -> list[Tensor]:
        """Runs a graph on tensors of the host.

        Raises:
            GeError: the graph is not valid, the SoC cannot run it, or it failed.
        """
        if not isinstance(graph_id, int):
            raise TypeError("Graph_id must be an integer")
        if not isinstance(inputs, list):
            raise TypeError("inputs must be a list of Tensor")
        if not all(isinstance(tensor, Tensor) for tensor in inputs):
            raise TypeError("All elements in inputs must be the type of Tensor")
        try:
            if graph_id not in self._graphs:
                raise GraphFault("E19999", "it was not added.")
            if graph_id not in self._loaded:
                graph, options = self._graphs[graph_id]
                if not known_options.keeps_dtypes(options):
                    raise GraphFault(
                        "E10001", "set ge.exec.precision_mode_v2=origin: the CANN emulator keeps the graph's dtypes."
                    )
                self._loaded[graph_id] = _Loaded(compile_graph(graph, known_options.soc_of(options), options, True))
            return self._loaded[graph_id].run(inputs)
        except GraphFault as fault:
            raise ge_error("RunGraph", fault, graph_id=graph_id) from None

    def run_graph_with_stream_async(self, graph_id: int, stream: int, inputs: list[Tensor]) -> list[Tensor]:
        """Raises GeError: tensors of the device are not emulated here; load a model with the acl API for that."""
        raise ge_error(
            "RunGraphWithStreamAsync",
            GraphFault(
                "E19999", "the CANN emulator's sessions run on host tensors; use run_graph, or aclmdlExecuteAsync."
            ),
            graph_id=graph_id,
        )
