"""From a graph as the user built it to a block: every node checked against its definition, every shape inferred."""

from typing import Any

from ..error import GraphFault
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.tensor import Tensor
from ..graph.types import DataType
from . import shapes
from .ir import Block, Operation, Value
from .prototypes import BYTES, SHORT, Prototype, family, prototype

LOOPS = frozenset({"While", "StatelessWhile"})
CONDITIONALS = frozenset({"If", "StatelessIf"})
SWITCHES = frozenset({"Case", "StatelessCase"})
CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
# Accepted for an attribute by its kind in the prototype.
_KINDS: dict[str, Any] = {
    "Int": (int, DataType), "Float": (float, int), "Bool": (bool, int), "String": str, "Type": (DataType, int),
    "Tensor": Tensor, "ListInt": list, "ListFloat": list, "ListBool": list, "ListString": list, "ListListInt": list,
    "ListType": list, "ListTensor": list,
}  # fmt: skip


class Builder:
    """Builds the blocks of a graph and of its subgraphs for a SoC."""

    def __init__(self, soc: str) -> None:
        self.soc = soc
        self.family = family(soc)

    def block(self, graph: Graph) -> Block:
        """Checks a graph, and infers its shapes.

        Raises:
            GraphFault: the graph is not valid, or the SoC cannot run it.
        """
        values: dict[tuple[Node, int], Value] = {}
        inputs: dict[int, tuple[Node, Value]] = {}
        operations: list[Operation] = []
        outputs: list[Value] | None = None
        for node in in_order(graph):
            if node.type == "Data":
                index = node._attrs.get("index", 0)
                if index in inputs:
                    raise GraphFault("E10501", f"Graph [{graph.name}]: two Data nodes have index {index}.")
                value = _data(node)
                inputs[index] = (node, value)
                values[node, 0] = value
            elif node.type in ("Const", "Constant"):
                values[node, 0] = _constant(node)
            elif node.type == "NetOutput":
                outputs = [values[source] for source in node._inputs if source is not None]
            else:
                operation = self.operation(graph, node, values)
                operations.append(operation)
                for i, value in enumerate(operation.writes()):
                    values[node, i] = value
        if outputs is None:
            outputs = [values[source] for source in graph._outputs]
        if sorted(inputs) != list(range(len(inputs))):
            raise GraphFault(
                "E10501", f"Graph [{graph.name}]: Data nodes have indices {sorted(inputs)}; 0, 1, ... are wanted."
            )
        ordered = [inputs[i] for i in range(len(inputs))]
        return Block(
            graph.name,
            [value for _, value in ordered],
            operations,
            outputs,
            [node.name for node, _ in ordered],
            [int(node._output_descs[0].format) for node, _ in ordered],
        )

    def operation(self, graph: Graph, node: Node, values: dict[tuple[Node, int], Value]) -> Operation:
        """One node."""
        definition = prototype(node.type)
        operation = Operation(node.type, node.name, _bind(node, definition, values), {}, _attributes(node, definition))
        operation.blocks = [self.block(_subgraph(graph, node, name)) for name in node._subgraphs]
        if operation.blocks:
            facts = _control_flow(operation)
        else:
            found = shapes.RULES.get(node.type)
            if found is None:
                raise GraphFault(
                    "E10501",
                    f"Node [{node.name}]: the CANN emulator does not implement operator {node.type} in graphs.",
                )
            facts = found(operation)
        for port, fact in zip(definition.outputs, facts, strict=True):
            # A list for a dynamic output, whose values are made one by one.
            if isinstance(fact, list):
                operation.outputs[port.name] = [Value(dtype, dims, producer=operation) for dtype, dims in fact]
            else:
                dtype, dims = fact
                operation.outputs[port.name] = Value(dtype, dims, producer=operation)
        self._check(node, definition, operation)
        return operation

    def _check(self, node: Node, definition: Prototype, operation: Operation) -> None:
        if not operation.blocks:
            sides = ((operation.inputs, definition.inputs), (operation.outputs, definition.outputs))
            used = tuple(_port_dtype(node, port.name, side[port.name]) for side, ports in sides for port in ports)
            definition.check_dtypes(self.family, self.soc, used, node.name)
        for i, value in enumerate(operation.writes()):
            if i >= len(node._output_descs):
                break
            desc = node._output_descs[i]
            declared = SHORT.get(desc._data_type)
            shape = tuple(desc._shape)
            # A description that is not filled in (a scalar float, or no dtype) says nothing.
            said = declared is not None and (shape or value.dims == ()) and -1 not in shape and shape != (-2,)
            if said and (declared, shape) != (value.dtype, value.dims):
                raise GraphFault(
                    "E10501",
                    f"Node [{node.name}] ({node.type}): output {i} is declared {declared}{list(shape)}, inferred "
                    f"{value.dtype}{list(value.dims)}.",
                )


def _port_dtype(node: Node, name: str, value: Value | list[Value] | None) -> str | None:
    if not isinstance(value, list):
        return value.dtype if value else None
    dtypes = {entry.dtype for entry in value}
    if len(dtypes) > 1 and node.type != "IdentityN":
        raise GraphFault("E10501", f"Node [{node.name}] ({node.type}): {name} has tensors of dtypes {sorted(dtypes)}.")
    return next(iter(dtypes), None)


def in_order(graph: Graph) -> list[Node]:
    """The nodes, each after those it depends on, else in the order in which they were added.

    Raises:
        GraphFault: there is a cycle.
    """
    entered: set[Node] = set()
    done: dict[Node, None] = {}  # in order
    for start in graph._nodes:
        stack = [start]
        while stack:
            node = stack[-1]
            if node in done:
                stack.pop()
            elif node in entered:
                done[node] = None
                stack.pop()
            else:
                entered.add(node)
                sources = [source[0] for source in node._inputs if source is not None] + node._controls
                waiting = [source for source in reversed(sources) if source not in done]
                if any(source in entered and source in stack for source in waiting):
                    raise GraphFault("E10501", f"Graph [{graph.name}] has a cycle through node [{node.name}].")
                stack.extend(waiting)
    return list(done)


def _data(node: Node) -> Value:
    if not node._output_descs:
        raise GraphFault("E10501", f"Data node [{node.name}] has no output description.")
    desc = node._output_descs[0]
    if any(dim < 0 for dim in desc._shape):
        raise GraphFault(
            "E10501",
            f"Data node [{node.name}] has shape {list(desc._shape)}: dynamic shapes are not supported; compile a model "
            f"for each shape.",
        )
    return Value(_short(desc._data_type, node.name), tuple(desc._shape))


def _short(dtype: DataType, name: str) -> str:
    if dtype not in SHORT:
        raise GraphFault("E10501", f"Node [{name}]: the CANN emulator does not compute with {dtype.name} in graphs.")
    return SHORT[dtype]


def _constant(node: Node) -> Value:
    tensor = node._attrs.get("value")
    if not isinstance(tensor, Tensor):
        raise GraphFault("E10501", f"Const node [{node.name}] has no tensor attribute `value`.")
    value = Value(_short(tensor.data_type, node.name), tuple(tensor.shape), tensor._bytes)
    if len(tensor._bytes) != value.bytes:
        raise GraphFault(
            "E10501",
            f"Const node [{node.name}]: {len(tensor._bytes)} bytes for {value.dtype}{list(value.dims)}, which takes "
            f"{value.bytes}.",
        )
    return value


def _bind(
    node: Node, definition: Prototype, values: dict[tuple[Node, int], Value]
) -> dict[str, Value | list[Value] | None]:
    given = [values[source] if source is not None else None for source in node._inputs]
    dynamic = sum(port.kind == "dynamic" for port in definition.inputs)
    fixed = len(definition.inputs) - dynamic
    bound: dict[str, Value | list[Value] | None] = {}
    at = 0
    extra = max(0, len(given) - fixed)
    if dynamic > 1:
        raise GraphFault(
            "E10501", f"Node [{node.name}]: {node.type} has several dynamic inputs, which is not supported."
        )
    for port in definition.inputs:
        if port.kind == "dynamic":
            part = given[at : at + extra]
            if None in part:
                raise GraphFault("E10501", f"Node [{node.name}] ({node.type}): an entry of {port.name} is missing.")
            bound[port.name] = [value for value in part if value is not None]
            at += extra
            continue
        value = given[at] if at < len(given) else None
        if value is None and port.kind != "optional":
            raise GraphFault("E10501", f"Node [{node.name}] ({node.type}): required input {port.name} is missing.")
        bound[port.name] = value
        at += 1
    if at < len(given):
        raise GraphFault("E10501", f"Node [{node.name}] ({node.type}) takes {at} inputs and has {len(given)}.")
    return bound


def _attributes(node: Node, definition: Prototype) -> dict[str, Any]:
    attrs: dict[str, Any] = {}
    for name, facts in definition.attrs.items():
        kind = facts[0]
        if name in node._attrs:
            value = node._attrs[name]
            if kind in _KINDS and not isinstance(value, _KINDS[kind]):
                raise GraphFault(
                    "E10501",
                    f"Node [{node.name}] ({node.type}): attribute {name} is {value!r}; its kind is {kind}.",
                )
            attrs[name] = bool(value) if kind == "Bool" else float(value) if kind == "Float" else value
        elif len(facts) > 1:
            attrs[name] = facts[1]
        else:
            raise GraphFault("E10501", f"Node [{node.name}] ({node.type}): required attribute {name} is missing.")
    for name in node._attrs:
        if name not in attrs and not name.startswith("_"):
            raise GraphFault(
                "E10501",
                f"Node [{node.name}]: {node.type} has no attribute {name}; it has {', '.join(attrs) or 'none'}.",
            )
    return attrs


def _subgraph(graph: Graph, node: Node, name: str) -> Graph:
    if name not in graph._children:
        raise GraphFault("E10501", f"Node [{node.name}] runs graph [{name}], which was not added.")
    return graph._children[name]


def _signature(values: list[Value]) -> list[tuple[str, tuple[int, ...]]]:
    return [(value.dtype, value.dims) for value in values]


def _control_flow(op: Operation) -> list[Any]:
    """Checks the graphs of a control flow node; the facts of its output."""
    carried = op.many("args" if op.type in CALLS else "input")
    wanted = _signature(carried)
    count = {**dict.fromkeys(LOOPS | CONDITIONALS, 2), **dict.fromkeys(CALLS, 1)}.get(op.type, len(op.blocks))
    if len(op.blocks) != count or not op.blocks:
        raise op.fault(f"it has {len(op.blocks)} graphs")
    for block in op.blocks:
        if _signature(block.inputs) != wanted:
            raise op.fault(f"graph [{block.name}] takes {_signature(block.inputs)}, the node has {wanted}")
    if op.type in LOOPS:
        condition, body = op.blocks
        if len(condition.outputs) != 1 or condition.outputs[0].count != 1:
            raise op.fault(f"graph [{condition.name}] must return one scalar")
        if _signature(body.outputs) != wanted:
            raise op.fault(f"graph [{body.name}] returns {_signature(body.outputs)}, the loop carries {wanted}")
        return [wanted]
    results = [_signature(block.outputs) for block in op.blocks]
    if any(result != results[0] for result in results):
        raise op.fault(f"its graphs return different tensors: {results}")
    return [results[0]]


def nbytes(value: Value) -> int:
    """Bytes of a value, dense."""
    return value.count * BYTES[value.dtype]
