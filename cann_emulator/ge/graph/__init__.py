"""Graphs, nodes and tensors."""

from .graph import DumpFormat, Graph
from .node import Node
from .tensor import Tensor
from .tensor_desc import Shape, TensorDesc
from .types import DataType, Format, Placement

__all__ = ["DataType", "DumpFormat", "Format", "Graph", "Node", "Placement", "Shape", "Tensor", "TensorDesc"]
