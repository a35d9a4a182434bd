"""The messages of GE IR, the serialised form of a graph (an AIR file): names and numbers of their fields.

They are declared in a pool of their own, so that a program's own declaration of the same messages does not clash.
"""

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "ge.proto"
_SCALARS = {"int64": 3, "int32": 5, "uint32": 13, "bool": 8, "string": 9, "bytes": 12, "float": 2, "enum": 5}

# Message -> {field: (number, type)}; "[T]" is repeated, "{T}" a map from strings, "|T" a member of the oneof `value`.
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "ShapeDef": {"dim": (1, "[int64]")},
    "TensorDescriptor": {
        "name": (1, "string"),
        "dtype": (2, "enum"),
        "shape": (3, "ShapeDef"),
        "layout": (4, "string"),
        "attr": (5, "{AttrDef}"),
        "has_out_attr": (9, "bool"),
        "size": (10, "int64"),
        "weight_size": (11, "int64"),
        "device_type": (14, "string"),
        "real_dim_cnt": (16, "int64"),
        "data_offset": (18, "int64"),
    },
    "TensorDef": {"desc": (1, "TensorDescriptor"), "data": (2, "bytes")},
    "NamedAttrs": {"name": (1, "string"), "attr": (2, "{AttrDef}")},
    "ListValue": {
        "s": (2, "[bytes]"),
        "i": (3, "[int64]"),
        "f": (4, "[float]"),
        "b": (5, "[bool]"),
        "bt": (7, "[bytes]"),
        "td": (8, "[TensorDescriptor]"),
        "t": (9, "[TensorDef]"),
        "g": (10, "[GraphDef]"),
        "na": (11, "[NamedAttrs]"),
        "dt": (12, "[int64]"),
        "val_type": (20, "enum"),
    },
    "ListInt": {"list_i": (1, "[int64]")},
    "ListListInt": {"list_list_i": (1, "[ListInt]")},
    "ListFloat": {"list_f": (1, "[float]")},
    "ListListFloat": {"list_list_f": (1, "[ListFloat]")},
    "AttrDef": {
        "list": (1, "|ListValue"),
        "s": (2, "|bytes"),
        "i": (3, "|int64"),
        "f": (4, "|float"),
        "b": (5, "|bool"),
        "bt": (7, "|bytes"),
        "func": (10, "|NamedAttrs"),
        "td": (11, "|TensorDescriptor"),
        "t": (12, "|TensorDef"),
        "g": (13, "|GraphDef"),
        "list_list_int": (14, "|ListListInt"),
        "dt": (15, "|int64"),
        "list_list_float": (16, "|ListListFloat"),
        "expression": (17, "|bytes"),
    },
    "OpDef": {
        "name": (1, "string"),
        "type": (2, "string"),
        "input": (5, "[string]"),
        "attr": (10, "{AttrDef}"),
        "has_out_attr": (20, "bool"),
        "id": (21, "int64"),
        "stream_id": (22, "int64"),
        "input_name": (23, "[string]"),
        "src_name": (24, "[string]"),
        "src_index": (25, "[int64]"),
        "dst_name": (26, "[string]"),
        "dst_index": (27, "[int64]"),
        "is_input_const": (32, "[bool]"),
        "input_desc": (33, "[TensorDescriptor]"),
        "output_desc": (34, "[TensorDescriptor]"),
        "subgraph_name": (35, "[string]"),
    },
    "GraphDef": {
        "name": (1, "string"),
        "input": (4, "[string]"),
        "output": (5, "[string]"),
        "op": (6, "[OpDef]"),
        "attr": (11, "{AttrDef}"),
    },
    "ModelDef": {
        "name": (1, "string"),
        "version": (2, "uint32"),
        "custom_version": (3, "string"),
        "graph": (7, "[GraphDef]"),
        "attr": (11, "{AttrDef}"),
    },
}
LIST_TYPES = {"s": 1, "i": 2, "f": 3, "b": 4, "bt": 5, "td": 6, "t": 7, "g": 8, "na": 9, "dt": 10}

# DataType of the IR -> ge.graph.DataType: the two are numbered differently.
DTYPES = {
    1: 0, 2: 1, 3: 2, 4: 4, 5: 6, 6: 7, 7: 3, 8: 9, 9: 8, 10: 10, 11: 12, 12: 11, 13: 13, 14: 14, 15: 15, 16: 16,
    17: 17, 18: 18, 19: 19, 20: 20, 21: 21, 22: 22, 23: 23, 24: 24, 25: 25, 26: 26, 27: 27, 28: 29, 29: 30, 30: 31,
    31: 32, 32: 33, 33: 34, 34: 35, 35: 36, 36: 37, 37: 38, 38: 39, 39: 40, 40: 41, 41: 42, 0: 28,
}  # fmt: skip
TO_PROTO = {ge: ir for ir, ge in DTYPES.items()}


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(name="ge_ir.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, (number, kind) in fields.items():
            field = message.field.add(name=field_name, number=number, label=1)
            if kind.startswith("|"):
                if not message.oneof_decl:
                    message.oneof_decl.add(name="value")
                field.oneof_index = 0
                kind = kind[1:]
            elif kind.startswith("["):
                field.label = 3
                kind = kind[1:-1]
            elif kind.startswith("{"):
                field.label = 3
                entry = message.nested_type.add(name=f"{field_name.capitalize()}Entry")
                entry.options.map_entry = True
                entry.field.add(name="key", number=1, label=1, type=9)
                entry.field.add(name="value", number=2, label=1, type=11, type_name=f".{PACKAGE}.{kind[1:-1]}")
                kind = f"{name}.{entry.name}"
            if kind in _SCALARS:
                field.type = _SCALARS[kind]
            else:
                field.type = 11
                field.type_name = f".{PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


@cache
def message(name: str) -> Any:
    """The class of a message, e.g. "ModelDef"."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{PACKAGE}.{name}"))
