"""Sums over the same devices that do not wait for each other are made at once."""

from __future__ import annotations

from typing import Any

from jaxlib.mlir import ir

from xla_npu.compiler.attributes import parse_type
from xla_npu.compiler.rules.reduce import single_operation

_NAME = "stablehlo.all_reduce"


def combine_sums(module: ir.Module) -> None:
    """Makes one all-reduce of several, where the last of them stands: the program is cut once for all of them."""
    blocks: list[ir.Block] = []

    def visit(op: Any) -> ir.WalkResult:
        blocks.extend(block for region in op.regions for block in region.blocks)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for block in blocks:
        _combine(block)


def _combine(block: ir.Block) -> None:
    waiting: dict[str, list[Any]] = {}
    done: list[list[Any]] = []
    for op in (op.operation for op in block.operations):
        used = _makers(op)
        for key, members in list(waiting.items()):
            if any(member in used for member in members):
                done.append(waiting.pop(key))
        if op.name == _NAME and (found := _key(op)):
            waiting.setdefault(found, []).append(op)
    for members in (*done, *waiting.values()):
        if len(members) > 1:
            _join(members)


def _makers(op: Any) -> list[Any]:
    """The all-reduces whose results an operation, or one inside it, takes."""
    found: list[Any] = []

    def visit(inner: Any) -> ir.WalkResult:
        owners = (value.owner for value in inner.operands)
        found.extend(owner for owner in owners if not isinstance(owner, ir.Block) and owner.name == _NAME)
        return ir.WalkResult.ADVANCE

    op.walk(visit)
    return found


def _key(op: Any) -> str:
    """What all-reduces that can be made at once have in common; empty for one that cannot."""
    source = op.operands[0].owner
    partial = not isinstance(source, ir.Block) and source.name == "stablehlo.reduce"
    if any(
        single_operation(region) != "stablehlo.add" for region in (*op.regions, *(source.regions if partial else ()))
    ):
        return ""
    attributes = (
        str(op.attributes[name]) for name in ("replica_groups", "use_global_device_ids") if name in op.attributes
    )
    return " ".join((str(parse_type(str(op.operands[0].type))[0]), *attributes))


def _join(members: list[Any]) -> None:
    last = members[-1]
    with ir.InsertionPoint(last), last.location:
        joined = ir.Operation.create(
            _NAME,
            results=[result.type for member in members for result in member.results],
            operands=[operand for member in members for operand in member.operands],
            attributes={name: last.attributes[name] for name in _names(last) if not name.startswith("sdy.")},
            regions=1,
        )
    last.regions[0].blocks[0].append_to(joined.regions[0])
    results = iter(joined.results)
    for member in members:
        for result in member.results:
            result.replace_all_uses_with(next(results))
    for member in members:
        member.erase()


def _names(op: Any) -> list[str]:
    return [op.attributes[i].name for i in range(len(op.attributes))]
