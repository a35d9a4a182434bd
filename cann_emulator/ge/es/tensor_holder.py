"""What an operator of a graph that is being built gives."""

from typing import TYPE_CHECKING, Any

from ..graph.node import Node
from ..graph.tensor_desc import TensorDesc, checked_dims
from ..graph.types import DataType, Format

if TYPE_CHECKING:
    from .graph_builder import GraphBuilder

TensorLike = "TensorHolder | int | float | list"


class TensorHolder:
    """An output of a node. Made by builders and operators."""

    _builder: "GraphBuilder"
    _node: Node
    _port: int

    def __init__(self) -> None:
        raise RuntimeError("TensorHolder objects should not be created directly")

    @classmethod
    def _make(cls, builder: "GraphBuilder", node: Node, port: int) -> "TensorHolder":
        holder = cls.__new__(cls)
        holder._builder, holder._node, holder._port = builder, node, port
        return holder

    @property
    def name(self) -> str:
        """The node's name."""
        return self._node.name

    def get_owner_builder(self) -> "GraphBuilder":
        """The builder of the graph."""
        return self._builder

    def _desc(self) -> TensorDesc:
        descs = self._node._output_descs
        while len(descs) <= self._port:
            descs.append(TensorDesc(data_type=DataType.DT_UNDEFINED))
        return descs[self._port]

    def set_data_type(self, data_type: DataType) -> "TensorHolder":
        """Says which dtype it has."""
        if not isinstance(data_type, DataType):
            raise TypeError("Data type must be a DataType enum")
        self._desc().set_data_type(data_type)
        return self

    def set_format(self, format: Format) -> "TensorHolder":
        """Says what its dimensions mean."""
        if not isinstance(format, Format):
            raise TypeError("Format must be a Format enum")
        self._desc().set_format(format)
        return self

    def set_shape(self, shape: list[int]) -> "TensorHolder":
        """Says which shape it has."""
        self._desc().set_shape(checked_dims(shape, "Shape"))
        return self

    def _apply(self, type: str, a: Any, b: Any) -> "TensorHolder":
        from ._plugins import apply

        return apply(self._builder, type, [a, b])

    def __add__(self, other: Any) -> "TensorHolder":
        return self._apply("Add", self, other)

    def __sub__(self, other: Any) -> "TensorHolder":
        return self._apply("Sub", self, other)

    def __mul__(self, other: Any) -> "TensorHolder":
        return self._apply("Mul", self, other)

    def __truediv__(self, other: Any) -> "TensorHolder":
        return self._apply("Div", self, other)

    def __radd__(self, other: Any) -> "TensorHolder":
        return self._apply("Add", other, self)

    def __rsub__(self, other: Any) -> "TensorHolder":
        return self._apply("Sub", other, self)

    def __rmul__(self, other: Any) -> "TensorHolder":
        return self._apply("Mul", other, self)

    def __rtruediv__(self, other: Any) -> "TensorHolder":
        return self._apply("Div", other, self)

    add, sub, mul, div = __add__, __sub__, __mul__, __truediv__
