"""Calls of functions on the host: what the plugin hands to the Python package when a program comes to one."""

from __future__ import annotations

import json
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

from xla_npu.compiler.attributes import tensor_type, text
from xla_npu.compiler.errors import Unsupported
from xla_npu.compiler.location import locate

# The call of a Python function, which has a number in the process that made the program.
PYTHON_CALLBACK = "xla_npu.python_callback"

# What says where the call runs, or how: settled when it becomes a step of the program.
_PLACEMENT = frozenset(
    {"sdy.sharding", "sdy.sharding_rule", "mhlo.sharding", "mhlo.frontend_attributes", "xla_npu.once"}
)


def is_token(value: ir.Value) -> bool:
    """Whether a value is only there for the order of side effects."""
    return str(value.type) == "!stablehlo.token"


def host_call(op: Any) -> str:
    """What the function is told beside its operands: a callback's number, or the call as a program of its own."""
    if text(op, "call_target_name") == PYTHON_CALLBACK:
        return str(ir.IntegerAttr(ir.DictAttr(op.attributes["backend_config"])["id"]).value)
    return json.dumps({"inputs": _kinds(op.operands), "outputs": _kinds(op.results), "program": _program(op)})


def _kinds(values: Any) -> list[tuple[str, list[int]]]:
    """XLA's names of the element types, and the shapes."""
    return [(element.xla, list(shape)) for element, shape in (tensor_type(v) for v in values if not is_token(v))]


def _program(op: Any) -> str:
    """The StableHLO text of a module whose `main` is this one custom call."""
    if "called_computations" in op.attributes and len(ir.ArrayAttr(op.attributes["called_computations"])):
        error = Unsupported("a custom call that runs on the host cannot call back into computations of the program")
        locate(error, op)
        raise error
    attributes = {name: op.attributes[name] for name in op.attributes if name not in _PLACEMENT}
    attributes["call_target_name"] = ir.StringAttr.get(f"npu:{text(op, 'call_target_name')}")
    with ir.Location.unknown():
        module = ir.Module.create()
        types = [[v.type for v in values if not is_token(v)] for values in (op.operands, op.results)]
        with ir.InsertionPoint(module.body):
            main: Any = func.FuncOp("main", (types[0], types[1]))
            with ir.InsertionPoint(main.add_entry_block()):
                given = iter(main.arguments)
                operands = [_token() if is_token(v) else next(given) for v in op.operands]
                call = ir.Operation.create("stablehlo.custom_call", [r.type for r in op.results], operands, attributes)
                func.ReturnOp([v for v in call.results if not is_token(v)])
        return str(module)


def _token() -> ir.Value:
    return ir.Operation.create("stablehlo.create_token", [ir.Type.parse("!stablehlo.token")]).result
