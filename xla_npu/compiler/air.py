"""Writes a graph as GE's AIR file: a serialised `ge.proto.ModelDef`.

Only the messages and fields used here are declared; numbers are those of CANN's published `ge_ir.proto`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from xla_npu.compiler.dtypes import PROTO_ENUM, STORAGE_NUMPY
from xla_npu.compiler.graph import TYPE_ATTRIBUTES, Graph, Node, Value

_STRING, _BYTES, _INT64, _INT32, _UINT32, _FLOAT, _BOOL, _MESSAGE = 9, 12, 3, 5, 13, 2, 8, 11
_NUMPY_STORAGE = {np.dtype(numpy): name for name, numpy in STORAGE_NUMPY.items()}

# message: {field: (number, type or message name, repeated)}
_MESSAGES: dict[str, dict[str, tuple[int, Any, bool]]] = {
    "ListValue": {
        "s": (2, _BYTES, True),
        "i": (3, _INT64, True),
        "f": (4, _FLOAT, True),
        "b": (5, _BOOL, True),
        "val_type": (20, _INT32, False),
    },
    "AttrDef": {
        "list": (1, "ListValue", False),
        "s": (2, _BYTES, False),
        "i": (3, _INT64, False),
        "f": (4, _FLOAT, False),
        "b": (5, _BOOL, False),
        "t": (12, "TensorDef", False),
        "dt": (15, _INT64, False),
    },
    "ShapeDef": {"dim": (1, _INT64, True)},
    "TensorDescriptor": {
        "name": (1, _STRING, False),
        "dtype": (2, _INT32, False),
        "shape": (3, "ShapeDef", False),
        "layout": (4, _STRING, False),
    },
    "TensorDef": {"desc": (1, "TensorDescriptor", False), "data": (2, _BYTES, False)},
    "OpDef": {
        "name": (1, _STRING, False),
        "type": (2, _STRING, False),
        "input": (5, _STRING, True),
        "attr": (10, "map", True),
        "id": (21, _INT64, False),
        "input_desc": (33, "TensorDescriptor", True),
        "output_desc": (34, "TensorDescriptor", True),
        "subgraph_name": (35, _STRING, True),
    },
    "GraphDef": {
        "name": (1, _STRING, False),
        "input": (4, _STRING, True),
        "output": (5, _STRING, True),
        "op": (6, "OpDef", True),
    },
    "ModelDef": {"name": (1, _STRING, False), "version": (2, _UINT32, False), "graph": (7, "GraphDef", True)},
}
_LIST_KIND = {"s": 1, "i": 2, "f": 3, "b": 4}


@cache
def _messages() -> dict[str, Any]:
    """The message classes, in a pool of their own so that another declaration of `ge.proto` does no harm."""
    file = descriptor_pb2.FileDescriptorProto(name="ge_ir.proto", package="ge.proto", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        # A value of 0 or false has to be written: the oneof tells which kind of attribute it is.
        if name == "AttrDef":
            message.oneof_decl.add(name="value")
        for field_name, (number, kind, repeated) in fields.items():
            field = message.field.add(name=field_name, number=number, label=3 if repeated else 1)
            if kind == "map":
                entry = message.nested_type.add(name="AttrEntry")
                entry.options.map_entry = True
                entry.field.add(name="key", number=1, label=1, type=_STRING)
                entry.field.add(name="value", number=2, label=1, type=_MESSAGE, type_name=".ge.proto.AttrDef")
                field.type, field.type_name = _MESSAGE, ".ge.proto.OpDef.AttrEntry"
            elif isinstance(kind, str):
                field.type, field.type_name = _MESSAGE, f".ge.proto.{kind}"
            else:
                field.type = kind
            if name == "AttrDef":
                field.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ge.proto.{name}")) for name in _MESSAGES}


def _describe(into: Any, dtype: str, shape: tuple[int, ...], layout: str) -> None:
    into.dtype = PROTO_ENUM[dtype]
    into.layout = layout
    into.shape.dim.extend(shape)


def _attribute(into: Any, kind: str, name: str, value: Any) -> None:
    if isinstance(value, np.ndarray):
        _describe(into.t.desc, _NUMPY_STORAGE[value.dtype], value.shape, "ND")
        into.t.data = value.tobytes()
    elif isinstance(value, list | tuple):
        field = "s" if value and isinstance(value[0], str) else "i"
        into.list.val_type = _LIST_KIND[field]
        getattr(into.list, field).extend([v.encode() for v in value] if field == "s" else value)
    elif isinstance(value, bool):
        into.b = value
    elif isinstance(value, int):
        if (kind, name) in TYPE_ATTRIBUTES:
            into.dt = value
        else:
            into.i = value
    elif isinstance(value, float):
        into.f = value
    else:
        into.s = value.encode()


def _node(into: Any, node: Node, number: int) -> None:
    into.name, into.type, into.id = node.name, node.type, number
    into.input.extend([f"{value.node.name}:{value.port}" for value in node.inputs])
    for value in node.inputs:
        _describe(into.input_desc.add(), value.dtype, value.shape, _layout(node, value))
    for value in node.outputs:
        _describe(into.output_desc.add(), value.dtype, value.shape, _layout(node, value))
    for name, attribute in node.attributes.items():
        _attribute(into.attr[name], node.type, name, attribute)
    into.subgraph_name.extend([graph.name for graph in node.subgraphs])


def _layout(node: Node, value: Value) -> str:
    return node.layout if len(value.shape) == len(node.layout) else "ND"


def encode(graph: Graph) -> bytes:
    """The AIR bytes of `graph` and every graph inside it."""
    model = _messages()["ModelDef"](name=graph.name, version=1)
    for one in graph.walk():
        definition = model.graph.add(name=one.name)
        definition.input.extend([f"{value.node.name}:0" for value in one.inputs])
        definition.output.extend([f"{value.node.name}:{value.port}" for value in one.outputs])
        for number, node in enumerate(one.nodes):
            _node(definition.op.add(), node, number)
    return model.SerializeToString()
