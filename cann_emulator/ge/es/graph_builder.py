"""Builds a graph."""

import contextlib
import math
import threading
from collections.abc import Iterator
from enum import Enum
from typing import Any

import numpy as np

from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.tensor import NUMPY, Tensor
from ..graph.tensor_desc import TensorDesc, checked_dims
from ..graph.types import DataType, Format
from .tensor_holder import TensorHolder

_scope = threading.local()


class InputType(Enum):
    """Kinds of input node."""

    DATA = "Data"
    REF_DATA = "RefData"
    AIPP_DATA = "AippData"
    ANY_DATA = "AnyData"


def _exact(value: Any, kind: type, message: str) -> Any:
    if type(value) is not kind:
        raise TypeError(message)
    return value


class GraphBuilder:
    """Builds one graph; after `build_and_reset` it is used up.

    Args:
        name: name of the graph.
    """

    def __init__(self, name: str | None = None) -> None:
        if name is not None and not isinstance(name, str):
            raise TypeError("Graph name must be a string")
        self._name = name or "graph"
        self._graph: Graph | None = Graph(self._name)
        self._outputs: dict[int, TensorHolder] = {}
        self._counts: dict[str, int] = {}

    @property
    def name(self) -> str:
        """Name of the graph."""
        return self._name

    def _add(self, type: str, name: str | None = None) -> Node:
        if self._graph is None:
            raise RuntimeError(
                f"Cannot add {type}: GraphBuilder has already been built. "
                "Create a new GraphBuilder to build another graph."
            )
        index = self._counts[type] = self._counts.get(type, -1) + 1
        node = self._graph._add(name or f"{type}_{index}", type)
        node._attrs.update(getattr(_scope, "attrs", {}))
        node._controls.extend(tensor._node for tensor in getattr(_scope, "controls", []))
        return node

    # ---- inputs and constants -----------------------------------------------------------------------------------

    def create_input(
        self,
        index: int,
        *,
        name: str | None = None,
        type_str: InputType | None = InputType.DATA,
        data_type: DataType | None = DataType.DT_FLOAT,
        format: Format | None = Format.FORMAT_ND,
        shape: list[int] | None = None,
    ) -> TensorHolder:
        """Adds an input; indices are 0, 1, ... and a shape of None is a scalar's.

        Raises:
            TypeError: the index or a dimension is no exact int.
            RuntimeError: the kind of input is not emulated.
        """
        _exact(index, int, "Input index must be an integer")
        if type_str not in (None, InputType.DATA):
            raise RuntimeError(f"Failed to create input: the CANN emulator has no {type_str.value} nodes")
        desc = TensorDesc(checked_dims(shape, "Shape"), format or Format.FORMAT_ND, data_type or DataType.DT_FLOAT)
        node = self._add("Data", name or f"input_{index}")
        node._attrs["index"] = index
        node._output_descs = [desc]
        return TensorHolder._make(self, node, 0)

    def create_inputs(self, num: int, start_index: int = 0) -> list[TensorHolder]:
        """Adds scalar float inputs."""
        if type(num) is not int or num <= 0:
            raise TypeError("Number of inputs must be a positive integer")
        if type(start_index) is not int or start_index < 0:
            raise TypeError("Start index must be a non-negative integer")
        return [self.create_input(start_index + i) for i in range(num)]

    def _constant(self, values: Any, shape: list[int], dtype: DataType) -> TensorHolder:
        desc = TensorDesc(shape, Format.FORMAT_ND, dtype)
        node = self._add("Const")
        node._attrs["value"] = Tensor._from_bytes(desc, np.array(values, NUMPY[dtype]).tobytes())
        node._output_descs = [desc]
        return TensorHolder._make(self, node, 0)

    def _const(self, value: Any, shape: list[int] | None, dtype: DataType, kinds: tuple[type, ...]) -> TensorHolder:
        word = "float" if float in kinds else "integer"
        values = value if isinstance(value, list) else [value]
        if not all(type(entry) in kinds for entry in values):
            raise TypeError(f"Value must be {'a float' if word == 'float' else 'an integer'} or list of {word}s")
        dims = checked_dims(shape, "Shape") if shape is not None else [len(values)] if isinstance(value, list) else []
        if len(values) != math.prod(dims):
            raise ValueError(f"{len(values)} values do not fill shape {dims}")
        return self._constant(values, dims, dtype)

    def create_const_int64(self, value: int | list[int], shape: list[int] | None = None) -> TensorHolder:
        """Adds a constant."""
        return self._const(value, shape, DataType.DT_INT64, (int,))

    def create_const_int32(self, value: int | list[int], shape: list[int] | None = None) -> TensorHolder:
        """Adds a constant."""
        return self._const(value, shape, DataType.DT_INT32, (int,))

    def create_const_uint64(self, value: int | list[int], shape: list[int] | None = None) -> TensorHolder:
        """Adds a constant."""
        return self._const(value, shape, DataType.DT_UINT64, (int,))

    def create_const_uint32(self, value: int | list[int], shape: list[int] | None = None) -> TensorHolder:
        """Adds a constant."""
        return self._const(value, shape, DataType.DT_UINT32, (int,))

    def create_const_float(self, value: float | list[float], shape: list[int] | None = None) -> TensorHolder:
        """Adds a constant."""
        return self._const(value, shape, DataType.DT_FLOAT, (float, int))

    def create_vector_int64(self, value: list[int]) -> TensorHolder:
        """Adds a constant vector."""
        if not isinstance(value, list) or not all(type(entry) is int for entry in value):
            raise TypeError("Value must be a list of integers")
        return self._constant(value, [len(value)], DataType.DT_INT64)

    def create_scalar_int64(self, value: int) -> TensorHolder:
        """Adds a constant scalar."""
        return self._constant(_exact(value, int, "Value must be an integer"), [], DataType.DT_INT64)

    def create_scalar_int32(self, value: int) -> TensorHolder:
        """Adds a constant scalar."""
        return self._constant(_exact(value, int, "Value must be an integer"), [], DataType.DT_INT32)

    def create_scalar_float(self, value: float) -> TensorHolder:
        """Adds a constant scalar."""
        if type(value) not in (int, float):
            raise TypeError("Value must be a number")
        return self._constant(value, [], DataType.DT_FLOAT)

    def create_scalar_uint64(self, value: int) -> TensorHolder:
        """Adds a constant scalar."""
        if _exact(value, int, "Value must be an integer") < 0:
            raise ValueError("Value must be non-negative for uint64")
        return self._constant(value, [], DataType.DT_UINT64)

    def create_scalar_uint32(self, value: int) -> TensorHolder:
        """Adds a constant scalar."""
        if not 0 <= _exact(value, int, "Value must be an integer") < 1 << 32:
            raise ValueError("Value must be in range [0, 2^32-1] for uint32")
        return self._constant(value, [], DataType.DT_UINT32)

    def create_variable(self, index: int, name: str) -> TensorHolder:
        """Raises RuntimeError: variables are not emulated."""
        raise RuntimeError(
            "Failed to create variable: the CANN emulator has no variables; make it an input and an output"
        )

    # ---- outputs and attributes ---------------------------------------------------------------------------------

    def set_graph_output(self, tensor: TensorHolder, output_index: int) -> None:
        """Makes a tensor an output."""
        if not isinstance(tensor, TensorHolder):
            raise TypeError("Tensor must be a TensorHolder")
        self._outputs[_exact(output_index, int, "Output index must be an integer")] = tensor

    def _set(self, target: dict[str, Any], name: str, value: Any, kind: type) -> None:
        if not isinstance(name, str):
            raise TypeError("Attribute name must be a string")
        words = {int: "an integer", str: "a string", bool: "a boolean"}
        target[name] = _exact(value, kind, f"Value must be {words[kind]}")

    def set_graph_attr_int64(self, attr_name: str, value: int) -> None:
        """Sets an attribute of the graph."""
        self._set(self._open()._attrs, attr_name, value, int)

    def set_graph_attr_string(self, attr_name: str, value: str) -> None:
        """Sets an attribute of the graph."""
        self._set(self._open()._attrs, attr_name, value, str)

    def set_graph_attr_bool(self, attr_name: str, value: bool) -> None:
        """Sets an attribute of the graph."""
        self._set(self._open()._attrs, attr_name, value, bool)

    def set_tensor_attr_int64(self, tensor: TensorHolder, attr_name: str, value: int) -> None:
        """Sets an attribute of a tensor's description."""
        self._set(tensor._desc()._attrs, attr_name, value, int)

    def set_tensor_attr_string(self, tensor: TensorHolder, attr_name: str, value: str) -> None:
        """Sets an attribute of a tensor's description."""
        self._set(tensor._desc()._attrs, attr_name, value, str)

    def set_tensor_attr_bool(self, tensor: TensorHolder, attr_name: str, value: bool) -> None:
        """Sets an attribute of a tensor's description."""
        self._set(tensor._desc()._attrs, attr_name, value, bool)

    def set_node_attr_int64(self, tensor: TensorHolder, attr_name: str, value: int) -> None:
        """Sets an attribute of the node that makes a tensor."""
        self._set(tensor._node._attrs, attr_name, value, int)

    def set_node_attr_string(self, tensor: TensorHolder, attr_name: str, value: str) -> None:
        """Sets an attribute of the node that makes a tensor."""
        self._set(tensor._node._attrs, attr_name, value, str)

    def set_node_attr_bool(self, tensor: TensorHolder, attr_name: str, value: bool) -> None:
        """Sets an attribute of the node that makes a tensor."""
        self._set(tensor._node._attrs, attr_name, value, bool)

    def add_control_dependency(self, dst_tensor: TensorHolder, src_tensors: list[TensorHolder]) -> None:
        """Makes a node wait for others."""
        if not isinstance(dst_tensor, TensorHolder):
            raise TypeError("dst_tensor must be a TensorHolder")
        if not isinstance(src_tensors, list) or not all(isinstance(entry, TensorHolder) for entry in src_tensors):
            raise TypeError("src_tensors must be a list of TensorHolder")
        dst_tensor._node._controls.extend(tensor._node for tensor in src_tensors)

    def _open(self) -> Graph:
        if self._graph is None:
            raise RuntimeError("GraphBuilder has already been built. Create a new GraphBuilder to build another graph.")
        return self._graph

    def build_and_reset(self, outputs: list[TensorHolder] | None = None) -> Graph:
        """Gives the graph away; the builder is used up.

        Args:
            outputs: the outputs, where `set_graph_output` was not used.

        Raises:
            RuntimeError: there is no output, or the outputs have gaps.
        """
        graph = self._open()
        if outputs is not None:
            if not isinstance(outputs, list):
                raise TypeError("Outputs must be a list")
            if not all(isinstance(output, TensorHolder) for output in outputs):
                raise TypeError("All outputs must be TensorHolder objects")
            self._outputs.update(enumerate(outputs))
        if not self._outputs or sorted(self._outputs) != list(range(len(self._outputs))):
            raise RuntimeError(f"Failed to build graph: its outputs have indices {sorted(self._outputs)}")
        node = graph._add("NetOutput", "NetOutput")
        node._inputs = [(self._outputs[i]._node, self._outputs[i]._port) for i in range(len(self._outputs))]
        self._graph = None
        return graph


@contextlib.contextmanager
def attr_scope(attr_maps: dict[str, Any]) -> Iterator[None]:
    """Gives attributes to all nodes that are made inside."""
    before = getattr(_scope, "attrs", {})
    _scope.attrs = {**before, **attr_maps}
    try:
        yield
    finally:
        _scope.attrs = before


@contextlib.contextmanager
def control_dependency_scope(tensors: list[TensorHolder]) -> Iterator[None]:
    """Makes all nodes that are made inside wait for others."""
    before = getattr(_scope, "controls", [])
    _scope.controls = before + tensors
    try:
        yield
    finally:
        _scope.controls = before
