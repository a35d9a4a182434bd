"""Graphs of operators."""

from enum import Enum
from pathlib import Path
from typing import Any

from .node import Node


class DumpFormat(Enum):
    """What a graph is written as."""

    kOnnx = 0
    kTxt = 1
    kReadable = 2


class Graph:
    """Nodes, the edges between them, and the graphs that control flow nodes run.

    Args:
        name: name of the graph.
    """

    def __init__(self, name: str | None = "graph") -> None:
        if not isinstance(name, str):
            raise TypeError("Graph name must be a string")
        self._name = name
        self._nodes: list[Node] = []
        self._by_name: dict[str, Node] = {}
        self._outputs: list[tuple[Node, int]] = []
        self._children: dict[str, Graph] = {}
        self._attrs: dict[str, Any] = {}
        self._owner: object = None  # who may not be given it a second time

    def __str__(self) -> str:
        return self.dump_to_stream(DumpFormat.kReadable)

    @property
    def name(self) -> str:
        """Name of the graph."""
        return self._name

    def _add(self, name: str, type: str) -> Node:
        node = Node._make(self, name, type)
        if name in self._by_name:
            raise RuntimeError(f"Graph {self._name} has two nodes named {name}")
        self._nodes.append(node)
        self._by_name[name] = node
        return node

    def get_all_nodes(self) -> list[Node]:
        """The nodes of this graph and of all graphs below it."""
        return self._nodes + [node for child in self._children.values() for node in child.get_all_nodes()]

    def get_direct_nodes(self) -> list[Node]:
        """The nodes of this graph alone."""
        return list(self._nodes)

    def get_attr(self, key: str) -> Any:
        """An attribute of the graph.

        Raises:
            RuntimeError: there is none.
        """
        if not isinstance(key, str):
            raise TypeError("Attribute key must be a string")
        if key not in self._attrs:
            raise RuntimeError(f"Failed to get attribute '{key}' from Graph {self.name}")
        return self._attrs[key]

    def set_attr(self, key: str, value: Any) -> None:
        """Sets an attribute of the graph."""
        if not isinstance(key, str):
            raise TypeError("Attribute key must be a string")
        self._attrs[key] = value

    def find_node_by_name(self, name: str) -> Node:
        """The node of that name.

        Raises:
            RuntimeError: there is none.
        """
        if not isinstance(name, str):
            raise TypeError("name must be a string")
        if name not in self._by_name:
            raise RuntimeError(f"Failed to find Node name {name}")
        return self._by_name[name]

    def remove_node(self, node: Node) -> None:
        """Removes a node that nothing uses.

        Raises:
            RuntimeError: it is not of this graph, or something uses it.
        """
        if not isinstance(node, Node):
            raise TypeError("node must be a Node")
        used = any(source is not None and source[0] is node for other in self._nodes for source in other._inputs)
        if node._graph is not self or used:
            raise RuntimeError(f"Failed to remove Node {node.name} from Graph {self.name}")
        self._nodes.remove(node)
        del self._by_name[node.name]
        for other in self._nodes:
            other._controls = [control for control in other._controls if control is not node]

    def add_data_edge(self, src_node: Node, src_port_index: int, dst_node: Node, dst_port_index: int) -> None:
        """Feeds an input from an output."""
        _check_edge(src_node, src_port_index, dst_node, dst_port_index)
        dst_node._inputs += [None] * (dst_port_index + 1 - len(dst_node._inputs))
        dst_node._inputs[dst_port_index] = (src_node, src_port_index)

    def remove_edge(self, src_node: Node, src_port_index: int, dst_node: Node, dst_port_index: int) -> None:
        """Takes an edge away.

        Raises:
            RuntimeError: there is no such edge.
        """
        _check_edge(src_node, src_port_index, dst_node, dst_port_index)
        if dst_port_index >= len(dst_node._inputs) or dst_node._inputs[dst_port_index] != (src_node, src_port_index):
            raise RuntimeError(f"Failed to remove edge from Node {src_node.name} to Node {dst_node.name}")
        dst_node._inputs[dst_port_index] = None

    def add_control_edge(self, src_node: Node, dst_node: Node) -> None:
        """Makes a node wait for another."""
        if not isinstance(src_node, Node):
            raise TypeError("src_node must be a Node")
        if not isinstance(dst_node, Node):
            raise TypeError("dst_node must be a Node")
        dst_node._controls.append(src_node)

    def get_all_subgraphs(self) -> list["Graph"]:
        """The graphs that nodes of this one run, and those below them."""
        return [graph for child in self._children.values() for graph in (child, *child.get_all_subgraphs())]

    def get_subgraph(self, name: str) -> "Graph | None":
        """The subgraph of that name."""
        if not isinstance(name, str):
            raise TypeError("name must be a string")
        return next((graph for graph in self.get_all_subgraphs() if graph.name == name), None)

    def add_subgraph(self, subgraph: "Graph") -> None:
        """Adds a graph that a node of this one names.

        Raises:
            RuntimeError: there is one of that name.
        """
        if not isinstance(subgraph, Graph):
            raise TypeError("subgraph must be a Graph")
        if subgraph.name in self._children:
            raise RuntimeError(f"Failed to add subgraph '{subgraph.name}' to graph '{self.name}'")
        self._children[subgraph.name] = subgraph

    def remove_subgraph(self, name: str) -> None:
        """Takes a subgraph away."""
        if not isinstance(name, str):
            raise TypeError("name must be a string")
        if self._children.pop(name, None) is None:
            raise RuntimeError(f"Failed to remove subgraph '{name}' from graph '{self.name}'")

    def dump_to_stream(self, format: DumpFormat = DumpFormat.kReadable) -> str:
        """The graph as text."""
        from .._compiler.dump import text

        if not isinstance(format, DumpFormat):
            raise TypeError("Format must be in [DumpFormat.kOnnx, DumpFormat.kTxt, DumpFormat.kReadable]")
        return text(self, format)

    def dump_to_file(self, format: DumpFormat = DumpFormat.kReadable, suffix: str = "") -> None:
        """Writes the graph as text into the working folder."""
        if not isinstance(suffix, str):
            raise TypeError("Suffix must be a string")
        ending = {DumpFormat.kOnnx: "pbtxt", DumpFormat.kTxt: "txt", DumpFormat.kReadable: "txt"}
        content = self.dump_to_stream(format)
        Path(f"ge_{format.name[1:].lower()}_{self.name}{suffix}.{ending[format]}").write_text(content)

    def save_to_air(self, file_path: str) -> None:
        """Writes the graph as serialised GE IR.

        Raises:
            RuntimeError: the file cannot be written.
        """
        from .._compiler.air import save

        if not isinstance(file_path, str):
            raise TypeError("file_path must be a string")
        try:
            Path(file_path).write_bytes(save(self))
        except OSError as error:
            raise RuntimeError(f"Failed to save graph to AIR format: {error}") from error

    def load_from_air(self, file_path: str) -> None:
        """Reads serialised GE IR into this graph, which must be empty.

        Raises:
            RuntimeError: the file cannot be read, or is no GE IR.
        """
        from .._compiler.air import load

        if not isinstance(file_path, str):
            raise TypeError("file_path must be a string")
        if self._nodes:
            raise RuntimeError(f"Failed to load graph from AIR format: graph {self.name} has nodes already")
        try:
            load(self, Path(file_path).read_bytes())
        except (OSError, ValueError) as error:
            raise RuntimeError(f"Failed to load graph from AIR format: {error}") from error


def _check_edge(src_node: Node, src_port_index: int, dst_node: Node, dst_port_index: int) -> None:
    for name, value, kind in (
        ("src_node", src_node, Node),
        ("src_port_index", src_port_index, int),
        ("dst_node", dst_node, Node),
        ("dst_port_index", dst_port_index, int),
    ):
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be {'a Node' if kind is Node else 'an integer'}")
