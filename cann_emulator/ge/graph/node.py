"""Nodes of a graph."""

from typing import TYPE_CHECKING, Any

from .tensor_desc import TensorDesc

if TYPE_CHECKING:
    from .graph import Graph


class Node:
    """An operator in a graph. Made by builders and by `Graph.load_from_air`."""

    def __init__(self) -> None:
        raise RuntimeError("Node objects should not be created directly.")

    @classmethod
    def _make(cls, graph: "Graph", name: str, type: str) -> "Node":
        node = cls.__new__(cls)
        node._graph = graph
        node._name = name
        node._type = type
        node._attrs = {}
        node._inputs = []  # (node, output index), or None for an optional input that is absent
        node._controls = []
        node._input_descs = []
        node._output_descs = []
        node._subgraphs = []  # names, in the prototype's order
        return node

    _graph: "Graph"
    _name: str
    _type: str
    _attrs: dict[str, Any]
    _inputs: list["tuple[Node, int] | None"]
    _controls: list["Node"]
    _input_descs: list[TensorDesc | None]
    _output_descs: list[TensorDesc]
    _subgraphs: list[str]

    @property
    def name(self) -> str:
        """The name, unique in its graph."""
        return self._name

    @property
    def type(self) -> str:
        """The operator's type."""
        return self._type

    def get_in_control_nodes(self) -> list["Node"]:
        """The nodes that must run before this one without giving it data."""
        return list(self._controls)

    def get_out_control_nodes(self) -> list["Node"]:
        """The nodes that wait for this one without taking data."""
        return [node for node in self._graph._nodes if self in node._controls]

    def get_in_data_nodes_and_port_indexes(self, in_index: int) -> tuple["Node", int]:
        """The node, and its output, that feeds an input.

        Raises:
            RuntimeError: nothing feeds it.
        """
        if not isinstance(in_index, int):
            raise TypeError("Input index must be an integer")
        source = self._inputs[in_index] if 0 <= in_index < len(self._inputs) else None
        if source is None:
            raise RuntimeError(f"Failed to get input data node for index {in_index}")
        return source

    def get_out_data_nodes_and_port_indexes(self, out_index: int) -> list[tuple["Node", int]]:
        """The nodes, and their inputs, that an output feeds."""
        if not isinstance(out_index, int):
            raise TypeError("Output index must be an integer")
        if not 0 <= out_index < len(self._output_descs):
            raise RuntimeError(f"Failed to get output data node for index {out_index}")
        return [
            (node, i)
            for node in self._graph._nodes
            for i, source in enumerate(node._inputs)
            if source == (self, out_index)
        ]

    def has_attr(self, attr_name: str) -> bool:
        """Whether the node has the attribute."""
        if not isinstance(attr_name, str):
            raise TypeError("attr_name must be a string")
        return attr_name in self._attrs

    def get_attr(self, key: str) -> Any:
        """An attribute's value.

        Raises:
            RuntimeError: there is none.
        """
        if not isinstance(key, str):
            raise TypeError("Attribute key must be a string")
        if key not in self._attrs:
            raise RuntimeError(f"Failed to get attribute '{key}' from Node")
        return self._attrs[key]

    def set_attr(self, key: str, value: Any) -> None:
        """Sets an attribute: str, float, bool, int, DataType, Tensor, or a list of one of them that is not empty."""
        if not isinstance(key, str):
            raise TypeError("Attribute key must be a string")
        if isinstance(value, list) and not value:
            raise ValueError("Empty list is not supported")
        self._attrs[key] = value

    def _desc_attrs(self, descs: list, kind: str, name: str, index: int) -> dict[str, Any]:
        if not isinstance(name, str):
            raise TypeError("Attribute name must be a string")
        if not isinstance(index, int):
            raise TypeError(f"{kind} index must be an integer")
        if not 0 <= index < len(descs) or descs[index] is None:
            raise RuntimeError(f"Failed to get {kind.lower()} desc for index {index}")
        return descs[index]._attrs

    def get_input_attr(self, attr_name: str, input_index: int) -> Any:
        """An attribute of an input's description."""
        return self._desc_attrs(self._input_descs, "Input", attr_name, input_index)[attr_name]

    def set_input_attr(self, attr_name: str, input_index: int, value: Any) -> None:
        """Sets an attribute of an input's description."""
        self._desc_attrs(self._input_descs, "Input", attr_name, input_index)[attr_name] = value

    def get_output_attr(self, attr_name: str, output_index: int) -> Any:
        """An attribute of an output's description."""
        return self._desc_attrs(self._output_descs, "Output", attr_name, output_index)[attr_name]

    def set_output_attr(self, attr_name: str, output_index: int, value: Any) -> None:
        """Sets an attribute of an output's description."""
        self._desc_attrs(self._output_descs, "Output", attr_name, output_index)[attr_name] = value

    def get_inputs_size(self) -> int:
        """The number of inputs."""
        return len(self._inputs)

    def get_outputs_size(self) -> int:
        """The number of outputs."""
        return len(self._output_descs)

    def get_input_desc(self, index: int) -> TensorDesc:
        """An input's description."""
        if not isinstance(index, int):
            raise TypeError("Input index must be an integer")
        found = self._input_descs[index] if 0 <= index < len(self._input_descs) else None
        if found is None:
            raise RuntimeError(f"Failed to get input desc for index {index}")
        return found

    def update_input_desc(self, index: int, tensor_desc: TensorDesc) -> None:
        """Replaces an input's description."""
        self.get_input_desc(index)
        if not isinstance(tensor_desc, TensorDesc):
            raise TypeError("tensor_desc must be a TensorDesc")
        self._input_descs[index] = tensor_desc

    def get_output_desc(self, index: int) -> TensorDesc:
        """An output's description."""
        if not isinstance(index, int):
            raise TypeError("Output index must be an integer")
        if not 0 <= index < len(self._output_descs):
            raise RuntimeError(f"Failed to get output desc for index {index}")
        return self._output_descs[index]

    def update_output_desc(self, index: int, tensor_desc: TensorDesc) -> None:
        """Replaces an output's description."""
        self.get_output_desc(index)
        if not isinstance(tensor_desc, TensorDesc):
            raise TypeError("tensor_desc must be a TensorDesc")
        self._output_descs[index] = tensor_desc
