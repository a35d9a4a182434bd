"""Graphs from and to serialised GE IR."""

from typing import Any

from google.protobuf.message import DecodeError

from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.tensor import Tensor
from ..graph.tensor_desc import TensorDesc
from ..graph.types import DataType, Format
from . import proto

_DTYPE = {number: DataType(ge) for number, ge in proto.DTYPES.items()}
_FORMAT = {format.name.removeprefix("FORMAT_"): format for format in Format}


def _read_desc(message: Any) -> TensorDesc:
    desc = TensorDesc.__new__(TensorDesc)
    shape = list(message.shape.dim)
    desc._shape = desc._origin_shape = _shape(shape)
    desc._format = desc._origin_format = _FORMAT.get(message.layout, Format.FORMAT_ND)
    desc._data_type = _DTYPE.get(message.dtype, DataType.DT_UNDEFINED)
    desc._attrs = {key: read_attr(value) for key, value in message.attr.items()} if message.attr else {}
    return desc


def _shape(dims: list[int]):
    from ..graph.tensor_desc import Shape

    shape = Shape.__new__(Shape)
    list.__init__(shape, dims)
    return shape


def _read_tensor(message: Any) -> Tensor:
    return Tensor._from_bytes(_read_desc(message.desc), message.data)


def read_attr(message: Any) -> Any:
    """An attribute's value."""
    kind = message.WhichOneof("value")
    value: Any = getattr(message, kind) if kind else None
    if kind == "s":
        return value.decode()
    if kind == "dt":
        return DataType(value) if value in DataType._value2member_map_ else value
    if kind == "t":
        return _read_tensor(value)
    if kind == "td":
        return _read_desc(value)
    if kind == "list":
        return _read_list(value)
    if kind == "list_list_int":
        return [list(row.list_i) for row in value.list_list_i]
    if kind == "list_list_float":
        return [list(row.list_f) for row in value.list_list_f]
    return value


def _read_list(message: Any) -> list:
    if message.s:
        return [text.decode() for text in message.s]
    if message.t:
        return [_read_tensor(tensor) for tensor in message.t]
    if message.dt:
        return [DataType(number) for number in message.dt]
    return list(message.i or message.b or message.f or message.bt)


def _read_graph(graph: Graph, message: Any) -> None:
    graph._name = message.name or graph._name
    for op in message.op:
        node = graph._add(op.name, op.type)
        node._attrs = {key: read_attr(value) for key, value in op.attr.items()}
        node._input_descs = [_read_desc(desc) for desc in op.input_desc]
        node._output_descs = [_read_desc(desc) for desc in op.output_desc]
        node._subgraphs = list(op.subgraph_name)
    by_name = graph._by_name
    for op in message.op:
        node = by_name[op.name]
        for edge in op.input:
            source = _source(graph, edge, op.name)
            if source is not None and source[1] < 0:
                node._controls.append(source[0])
            else:
                node._inputs.append(source)
    graph._outputs = [found for edge in message.output if (found := _source(graph, edge, "the output")) is not None]


def _source(graph: Graph, edge: str, user: str) -> tuple[Node, int] | None:
    if not edge:
        return None
    name, _, port = edge.rpartition(":")
    if name not in graph._by_name:
        raise ValueError(f"graph {graph.name}: {user} takes {edge!r}, and there is no node of that name")
    return graph._by_name[name], int(port)


def load(graph: Graph, data: bytes) -> None:
    """Fills an empty graph from a serialised model.

    Raises:
        ValueError: the bytes are no GE IR, or an edge begins at no node.
    """
    model = proto.message("ModelDef")()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise ValueError(f"it is no serialised ge.proto.ModelDef ({error})") from error
    if not model.graph:
        raise ValueError("it has no graph")
    _read_graph(graph, model.graph[0])
    children = {}
    for message in model.graph[1:]:
        child = Graph(message.name)
        _read_graph(child, message)
        children[message.name] = child
    for parent in (graph, *children.values()):
        for node in parent._nodes:
            for name in node._subgraphs:
                if name not in children:
                    raise ValueError(f"node {node.name} runs graph {name}, which is not in the file")
                parent._children[name] = children[name]


# ---- writing ----------------------------------------------------------------------------------------------------


def _write_desc(message: Any, desc: TensorDesc) -> None:
    message.dtype = proto.TO_PROTO[int(desc.data_type)]
    message.layout = desc.format.name.removeprefix("FORMAT_")
    message.shape.dim.extend(desc.shape)
    for key, value in desc._attrs.items():
        _write_attr(message.attr[key], value)


def _write_tensor(message: Any, tensor: Tensor) -> None:
    _write_desc(message.desc, tensor._desc)
    message.data = tensor._bytes


def _write_attr(message: Any, value: Any) -> None:
    if isinstance(value, DataType):
        message.dt = int(value)
    elif isinstance(value, bool):
        message.b = value
    elif isinstance(value, int):
        message.i = value
    elif isinstance(value, float):
        message.f = value
    elif isinstance(value, str):
        message.s = value.encode()
    elif isinstance(value, bytes):
        message.bt = value
    elif isinstance(value, Tensor):
        _write_tensor(message.t, value)
    elif isinstance(value, TensorDesc):
        _write_desc(message.td, value)
    elif isinstance(value, list) and value and isinstance(value[0], list):
        for row in value:
            message.list_list_int.list_list_i.add().list_i.extend(row)
    elif isinstance(value, list):
        _write_list(message.list, value)
    else:
        raise ValueError(f"an attribute cannot be {type(value).__name__}")


def _write_list(message: Any, values: list) -> None:
    message.SetInParent()
    if not values:
        return
    first = values[0]
    if isinstance(first, Tensor):
        for tensor in values:
            _write_tensor(message.t.add(), tensor)
        field = "t"
    else:
        kinds = ((DataType, "dt"), (bool, "b"), (int, "i"), (float, "f"), (str, "s"))
        field = next(field for kind, field in kinds if isinstance(first, kind))
        getattr(message, field).extend(value.encode() if field == "s" else value for value in values)
    message.val_type = proto.LIST_TYPES[field]


def _write_graph(message: Any, graph: Graph) -> None:
    message.name = graph.name
    for node in graph._nodes:
        op = message.op.add(name=node.name, type=node.type)
        op.input.extend(f"{source[0].name}:{source[1]}" if source else "" for source in node._inputs)
        op.input.extend(f"{control.name}:-1" for control in node._controls)
        op.subgraph_name.extend(node._subgraphs)
        for key, value in node._attrs.items():
            _write_attr(op.attr[key], value)
        for desc in node._input_descs:
            _write_desc(op.input_desc.add(), desc or TensorDesc(data_type=DataType.DT_UNDEFINED))
        for desc in node._output_descs:
            _write_desc(op.output_desc.add(), desc)
    message.output.extend(f"{node.name}:{port}" for node, port in graph._outputs)


def save(graph: Graph) -> bytes:
    """The graph as a serialised model."""
    model = proto.message("ModelDef")(name=graph.name, version=1)
    for part in (graph, *graph.get_all_subgraphs()):
        _write_graph(model.graph.add(), part)
    return model.SerializeToString()
