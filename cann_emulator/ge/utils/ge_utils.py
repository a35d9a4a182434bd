"""Shape inference and support checks without compiling."""

from typing import TYPE_CHECKING

from .._compiler.build import Builder
from .._compiler.options import soc_of
from .._compiler.prototypes import LONG
from ..error import GraphFault
from ..graph.tensor_desc import TensorDesc, checked_dims
from ..graph.types import DataType

if TYPE_CHECKING:
    from ..graph.graph import Graph
    from ..graph.node import Node


def _builder() -> Builder:
    return Builder(soc_of({}))


class GeUtils:
    """Checks on graphs and nodes."""

    @staticmethod
    def infer_shape(graph: "Graph", input_shapes: list[list[int]]) -> None:
        """Gives every node of a graph the descriptions of its outputs, for inputs of these shapes.

        Raises:
            TypeError: `input_shapes` is no list of lists of integers.
            RuntimeError: the graph is not valid for them.
        """
        if not isinstance(input_shapes, list):
            raise TypeError("input_shapes must be a list of shape lists")
        for shape in input_shapes:
            checked_dims(shape, "each shape")
        for node in graph._nodes:
            if node.type == "Data":
                node._output_descs[0].set_shape(input_shapes[node._attrs.get("index", 0)])
        try:
            block = _builder().block(graph)
        except GraphFault as fault:
            raise RuntimeError(f"Failed to infer shape: {fault}") from None
        for operation in block.operations:
            node = graph._by_name[operation.name]
            node._output_descs = [
                TensorDesc(list(value.dims), data_type=DataType(LONG[value.dtype])) for value in operation.writes()
            ]

    @staticmethod
    def check_node_support_on_aicore(node: "Node") -> tuple[bool, str]:
        """Whether the SoC runs a node, and why not."""
        try:
            _builder().block(node._graph)
        except GraphFault as fault:
            if f"[{node.name}]" in str(fault):
                return False, str(fault)
        return True, ""
