"""Sums that are not made yet: values of which the devices along some mesh axes hold terms ("unreduced").

Shardy's passes propagate and reshard such values, but do not make all of them local. Their collectives that turn a
value which is there into terms are written here as selects: one device keeps the value, the others hold zeros.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from xla_npu.compiler.annotations import axis_names, find, main_function, reshard, set_result_shardings, sharding_of
from xla_npu.compiler.rules.reduce import single_operation
from xla_npu.compiler.sharding import Mesh, Sharding, parse_sharding

_SUMS = frozenset({"stablehlo.dot_general", "stablehlo.reduce"})


def make_values(module: ir.Module, known: dict[str, Mesh]) -> None:
    """Operations that would turn a value into terms, or shards into terms, make the value; a reshard splits it.

    An operation whose operands are terms along the same axes works on terms.
    """
    main = main_function(module)
    found: list[tuple[Any, Sharding]] = []

    def visit(op: Any) -> ir.WalkResult:
        if (op.name == "sdy.constant" or not op.name.startswith("sdy.")) and len(op.results) == 1:
            sharding = sharding_of(op.results[0], known, main)
            if sharding is not None and sharding.unreduced:
                found.append((op, sharding))
        return ir.WalkResult.ADVANCE

    main.walk(visit)
    for op, sharding in found:
        operands = [sharding_of(operand, known, main) for operand in op.operands]
        given = {axis for operand in operands if operand is not None for axis in operand.unreduced}
        if op.name in _SUMS:
            _drop_reductions(op.results[0])
        elif given >= set(sharding.unreduced):
            continue
        with ir.InsertionPoint.after(op), op.location:
            back = reshard(op.results[0], sharding)
        op.results[0].replace_all_uses_except(back, back.owner.operation)
        set_result_shardings(op, [replace(sharding, unreduced=())], known)


def open_scatter(op: Any, known: dict[str, Mesh], main: Any) -> bool:
    """Leaves a scatter that adds to terms on its devices: each adds the updates that it has. Whether it is one."""
    if op.name != "stablehlo.scatter" or len(op.results) != 1:
        return False
    wanted, target, places, updates = (sharding_of(value, known, main) for value in (op.results[0], *op.operands))
    if wanted is None or target is None or places is None or updates is None:
        return False
    if not wanted.unreduced or single_operation(op.regions[0]) != "stablehlo.add":
        return False
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    windows = set(numbers.update_window_dims)
    split = [axes for i, axes in enumerate(updates.dimensions) if i not in windows]
    if split != [axes for i, axes in enumerate(places.dimensions) if i != numbers.index_vector_dim]:
        return False
    if {axis for axes in split for axis in axes} != set(wanted.unreduced) or numbers.input_batching_dims:
        return False
    if any(wanted.dimensions) or any(target.dimensions) or updates.sharded(windows):
        return False
    with ir.InsertionPoint(op), op.location:
        op.operands[0] = reshard(op.operands[0], wanted)
    return True


def _drop_reductions(value: ir.Value) -> None:
    """Propagation adds a reduction along the axes that are not left open: a sum that is made has none open."""
    for use in list(value.uses):
        user = use.owner.operation
        if user.name == "sdy.all_reduce":
            user.results[0].replace_all_uses_with(value)
            user.erase()


def reduce_once(module: ir.Module) -> None:
    """Two of the passes add a reduction where a sum not made yet is resharded: the second one has nothing to add."""
    for op in find(module, "sdy.all_reduce"):
        first = op.operands[0].owner
        if isinstance(first, ir.Block) or first.name != op.name:
            continue
        if str(first.attributes["reduction_axes"]) == str(op.attributes["reduction_axes"]):
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()


def hold_once(module: ir.Module, known: dict[str, Mesh]) -> None:
    """Where a value becomes terms of a sum, the first device along the axes holds it, or each device its shard."""
    for op in find(module, "sdy.replicated_to_unreduced"):
        sharding = parse_sharding(str(op.attributes["out_sharding"]), known)
        if sharding is None:
            continue
        with ir.InsertionPoint(op), op.location:
            place = _place(sharding, axis_names(op.attributes["axes"]))
            mine = stablehlo.compare(place, _scalar(0), ir.Attribute.parse("#stablehlo<comparison_direction EQ>"))
            kept = _keep(mine, op.operands[0], sharding)
        if _had_terms(op):
            _attributes(kept)[_OPEN] = ir.UnitAttr.get()
        op.results[0].replace_all_uses_with(kept)
        op.erase()
    for op in find(module, "sdy.sharded_to_unreduced"):
        sharding = parse_sharding(str(op.attributes["out_sharding"]), known)
        if sharding is None:
            continue
        with ir.InsertionPoint(op), op.location:
            kept = _keep_shards(op, sharding)
        op.results[0].replace_all_uses_with(kept)
        op.erase()


# Marks the select of a value that had terms before it was made.
_OPEN = "xla_npu.open"


def _had_terms(op: Any) -> bool:
    """Whether a sum is made along the very axes along which it becomes terms again."""
    made = op.operands[0].owner
    if isinstance(made, ir.Block) or made.name != "sdy.all_reduce":
        return False
    source = made.operands[0].owner
    if isinstance(source, ir.Block) or source.name not in _SUMS:
        return False
    if source.name == "stablehlo.reduce" and single_operation(source.regions[0]) != "stablehlo.add":
        return False
    return axis_names(op.attributes["axes"]) == axis_names(made.attributes["reduction_axes"])


def leave_open(module: ir.Module) -> None:
    """Takes the terms instead, in the local program: the pass that makes it wants the reduction after a product."""
    for op in find(module, "stablehlo.select"):
        made = op.operands[1].owner
        if _OPEN not in op.attributes or isinstance(made, ir.Block) or made.name != "stablehlo.all_reduce":
            continue
        op.results[0].replace_all_uses_with(made.operands[0])
        op.erase()
        if not list(made.results[0].uses):
            made.erase()


def _keep_shards(op: Any, sharding: Sharding) -> ir.Value:
    """Gathers the shards, then puts zeros where the others' are."""
    lists = [axis_names(part) for part in re.findall(r"\{([^}]*)\}", str(op.attributes["axes"]))]
    gathered = {axis for axes in lists for axis in axes}
    whole = replace(sharding, unreduced=tuple(a for a in sharding.unreduced if a.strip('"') not in gathered))
    value: ir.Value = ir.Operation.create(
        "sdy.all_gather",
        results=[op.results[0].type],
        operands=[op.operands[0]],
        attributes={
            "gathering_axes": op.attributes["axes"],
            "out_sharding": ir.Attribute.parse(whole.attribute()),
        },
    ).result
    sizes = dict(sharding.mesh.axes)
    shape = list(ir.RankedTensorType(value.type).shape)
    for dimension, axes in enumerate(lists):
        if not axes:
            continue
        parts = math.prod(sizes[axis] for axis in axes)
        block = shape[dimension] // (sharding.count(dimension) * parts)
        kind = ir.RankedTensorType.get(shape, ir.IntegerType.get_signless(32))
        number = stablehlo.iota(kind, dimension)
        for combine, by in ((stablehlo.divide, block), (stablehlo.remainder, parts)):
            _spread(number, sharding)
            number = combine(number, _fill(_scalar(by), kind, sharding))
        _spread(number, sharding)
        mine = _fill(_place(sharding, axes), kind, sharding)
        equal = stablehlo.compare(number, mine, ir.Attribute.parse("#stablehlo<comparison_direction EQ>"))
        value = _keep(_spread(equal, sharding), value, sharding)
    return value


def _place(sharding: Sharding, axes: list[str]) -> ir.Value:
    """The device's number along some axes, the last the fastest to change."""
    numbers = ", ".join(map(str, sharding.mesh.along(axes)))
    count = len(sharding.mesh.devices)
    table = stablehlo.constant(ir.Attribute.parse(f"dense<[{numbers}]> : tensor<{count}xi32>"))
    device = stablehlo.convert(ir.RankedTensorType.get([], ir.IntegerType.get_signless(64)), stablehlo.partition_id())
    one = stablehlo.dynamic_slice(table, [device], [1])
    return stablehlo.reshape(ir.RankedTensorType.get([], ir.IntegerType.get_signless(32)), one)


def _keep(mine: ir.Value, value: ir.Value, sharding: Sharding) -> ir.Value:
    """The value where `mine` says so, else zeros."""
    element = ir.RankedTensorType(value.type).element_type
    zero = stablehlo.convert(
        ir.RankedTensorType.get([], element), stablehlo.constant(ir.Attribute.parse("dense<0.0> : tensor<f32>"))
    )
    return _spread(stablehlo.select(mine, value, _fill(zero, value.type, sharding)), sharding)


def _scalar(number: int) -> ir.Value:
    return stablehlo.constant(ir.Attribute.parse(f"dense<{number}> : tensor<i32>"))


def _fill(scalar: ir.Value, kind: ir.Type, sharding: Sharding) -> ir.Value:
    return _spread(stablehlo.broadcast_in_dim(kind, scalar, []), sharding)


def _spread(value: ir.Value, sharding: Sharding) -> ir.Value:
    """Says that a value is split as `sharding` splits its dimensions."""
    split = replace(sharding, unreduced=())
    _attributes(value)["sdy.sharding"] = ir.Attribute.parse(f"#sdy.sharding_per_value<[{split.body()}]>")
    return value


def _attributes(value: ir.Value) -> Any:
    """The attributes of the operation that makes a value."""
    owner = value.owner
    assert not isinstance(owner, ir.Block)
    return owner.attributes
