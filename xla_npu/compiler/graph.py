"""A GE graph under construction: nodes, values and constants, equal nodes shared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from xla_npu.compiler.dtypes import STORAGE_NUMPY

# Attributes of type `Type` (GE's enum in an attribute of its own kind), by operator; other enums are plain integers.
TYPE_ATTRIBUTES = {("Bitcast", "type"), ("Sort", "y2_dtype")}


class Value:
    """One output of a node: GE type `dtype`, static `shape`."""

    __slots__ = ("array", "dtype", "node", "port", "shape")

    def __init__(self, node: Node, port: int, dtype: str, shape: tuple[int, ...], array: np.ndarray | None = None):
        self.node, self.port, self.dtype, self.shape, self.array = node, port, dtype, shape, array

    @property
    def elements(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(eq=False, slots=True)
class Node:
    """One operator: its type, inputs (by prototype order), attributes, outputs and subgraphs (in prototype order)."""

    name: str
    type: str
    inputs: list[Value]
    attributes: dict[str, Any]
    outputs: list[Value] = field(default_factory=list)
    subgraphs: list[Graph] = field(default_factory=list)
    layout: str = "ND"
    dynamic_inputs: int | None = None  # how many trailing inputs belong to the dynamic one
    origin: Any = None  # the StableHLO operation that it is part of


class Graph:
    """Nodes in topological order."""

    def __init__(self, name: str):
        self.name = name
        self.nodes: list[Node] = []
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self.origin: Any = None  # of the nodes that are added now
        self._known: dict[Any, Node] = {}
        self._constants: dict[Any, Value] = {}

    def input(self, dtype: str, shape: Sequence[int]) -> Value:
        """A new graph input (a Data node)."""
        index = len(self.inputs)
        node = Node(f"arg{index}", "Data", [], {"index": index})
        value = Value(node, 0, dtype, tuple(shape))
        node.outputs.append(value)
        self.nodes.append(node)
        self.inputs.append(value)
        return value

    def constant(self, array: Any, dtype: str) -> Value:
        """A constant; small equal ones are shared."""
        array = np.asarray(array, STORAGE_NUMPY[dtype])
        key = (dtype, array.shape, array.tobytes()) if array.size <= 64 else None
        if key in self._constants:
            return self._constants[key]
        node = Node(f"const{len(self.nodes)}", "Const", [], {"value": array})
        value = Value(node, 0, dtype, array.shape, array)
        node.outputs.append(value)
        self.nodes.append(node)
        if key is not None:
            self._constants[key] = value
        return value

    def add(
        self,
        kind: str,
        inputs: Sequence[Value],
        outputs: Sequence[tuple[str, Sequence[int]]],
        attributes: dict[str, Any] | None = None,
        *,
        subgraphs: Sequence[Graph] = (),
        layout: str = "ND",
        dynamic_inputs: int | None = None,
    ) -> list[Value]:
        """A new operator, or the equal one that exists already."""
        attributes = attributes or {}
        key = None
        if not subgraphs:
            key = (kind, tuple(map(id, inputs)), tuple((k, str(v)) for k, v in attributes.items()), str(outputs))
            known = self._known.get(key)
            if known is not None:
                return known.outputs
        node = Node(f"{kind}{len(self.nodes)}", kind, list(inputs), attributes)
        node.subgraphs, node.layout, node.dynamic_inputs = list(subgraphs), layout, dynamic_inputs
        node.origin = self.origin
        node.outputs = [Value(node, i, dtype, tuple(shape)) for i, (dtype, shape) in enumerate(outputs)]
        self.nodes.append(node)
        if key is not None:
            self._known[key] = node
        return node.outputs

    def prune(self) -> None:
        """Drop what no output needs; inputs stay."""
        needed: set[Node] = set()
        stack = [value.node for value in self.outputs]
        while stack:
            node = stack.pop()
            if node not in needed:
                needed.add(node)
                stack.extend(value.node for value in node.inputs)
        self.nodes = [node for node in self.nodes if node in needed or node.type == "Data"]

    def walk(self) -> Iterator[Graph]:
        """This graph and all graphs inside."""
        yield self
        for node in self.nodes:
            for subgraph in node.subgraphs:
                yield from subgraph.walk()
