"""Shardings as operations carry them: read, written, and changed by reshards."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir

from xla_npu.compiler.attributes import parse_type
from xla_npu.compiler.errors import CompileError
from xla_npu.compiler.sharding import Mesh, Sharding, parse_sharding, parse_shardings


def find(module: ir.Module, name: str) -> list[Any]:
    """The operations of that name, in order."""
    found: list[Any] = []

    def visit(op: Any) -> ir.WalkResult:
        if op.name == name:
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def main_function(module: ir.Module) -> Any:
    """The function `main`."""
    for op in module.body.operations:
        operation = op.operation
        if operation.name == "func.func" and ir.StringAttr(operation.attributes["sym_name"]).value == "main":
            return operation
    raise CompileError("the module has no function `main`")


def function_types(main: Any) -> tuple[list[str], list[str]]:
    """The types of a function's arguments and results."""
    kind = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    return [str(t) for t in kind.inputs], [str(t) for t in kind.results]


def entries(attribute: Any) -> dict[str, ir.Attribute]:
    """A dictionary attribute as a dictionary."""
    found = ir.DictAttr(attribute)
    return {found[i].name: found[i].attr for i in range(len(found))}


def sharding_of(value: ir.Value, known: dict[str, Mesh], main: Any) -> Sharding | None:
    """How a value is spread; None when nothing says so."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        if owner.owner.name == "sdy.manual_computation":
            return _inside(owner.owner, ir.BlockArgument(value).arg_number, known)
        if owner.owner.name == "stablehlo.while":  # what goes round is spread like what comes out
            return sharding_of(owner.owner.results[ir.BlockArgument(value).arg_number], known, main)
        if owner.owner != main or "arg_attrs" not in main.attributes:
            return None
        values = entries(ir.ArrayAttr(main.attributes["arg_attrs"])[ir.BlockArgument(value).arg_number])
        return parse_sharding(str(values["sdy.sharding"]), known) if "sdy.sharding" in values else None
    if "out_sharding" in owner.attributes:  # Shardy's collectives
        return parse_sharding(str(owner.attributes["out_sharding"]), known)
    if owner.name == "sdy.reshard":
        return parse_sharding(str(owner.attributes["sharding"]), known)
    if "sdy.sharding" not in owner.attributes:
        return None
    found = parse_shardings(str(owner.attributes["sdy.sharding"]), known)
    index = ir.OpResult(value).result_number
    return found[index] if index < len(found) else None


def _inside(op: Any, number: int, known: dict[str, Mesh]) -> Sharding | None:
    """How an argument of a manual computation is spread along the axes that the computation leaves free."""
    sharding = parse_shardings(str(op.attributes["in_shardings"]), known)[number]
    manual = axis_names(op.attributes["manual_axes"])
    return sharding.without(manual) if sharding else None


def axis_names(attribute: ir.Attribute | str) -> list[str]:
    """The axes in an attribute or a part of its text, in order."""
    return re.findall(r'"([^"]+)"', str(attribute))


def set_result_shardings(op: Any, shardings: Sequence[Sharding | None], known: dict[str, Mesh]) -> None:
    """Says how each result of an operation is spread."""
    if not any(shardings):
        return
    mesh = next(iter(known))
    texts = []
    for result, sharding in zip(op.results, shardings, strict=True):
        rank = len(parse_type(str(result.type))[1])
        texts.append(sharding.body() if sharding else f"<@{mesh}, [{', '.join(['{}'] * rank)}]>")
    op.attributes["sdy.sharding"] = ir.Attribute.parse(f"#sdy.sharding_per_value<[{', '.join(texts)}]>")


def reshard(value: ir.Value, sharding: Sharding) -> Any:
    """The value spread in another way. Goes where the insertion point is."""
    return ir.Operation.create(
        "sdy.reshard",
        results=[value.type],
        operands=[value],
        attributes={"sharding": ir.Attribute.parse(sharding.attribute())},
    ).result
