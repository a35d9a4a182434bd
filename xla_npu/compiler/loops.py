"""Loops and branches over sharded values: what Shardy's pass that makes a program local leaves out."""

from __future__ import annotations

from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from xla_npu.compiler.annotations import find, main_function, reshard, set_result_shardings, sharding_of
from xla_npu.compiler.attributes import parse_type
from xla_npu.compiler.sharding import Mesh, meshes

CONTROL_FLOW = frozenset({"stablehlo.while", "stablehlo.case", "stablehlo.if"})


def agree(op: Any, known: dict[str, Mesh], main: Any) -> None:
    """What enters a loop, and what a turn of it or a branch ends with, is spread like what comes out."""
    bodies = op.regions[1:] if op.name == "stablehlo.while" else op.regions
    ends = [region.blocks[0].operations[len(region.blocks[0].operations) - 1].operation for region in bodies]
    wanted = [sharding_of(result, known, main) for result in op.results]
    for user in [op, *ends] if op.name == "stablehlo.while" else ends:
        for i, (value, sharding) in enumerate(zip(user.operands, wanted, strict=True)):
            had = sharding_of(value, known, main)
            target = sharding or (had and had.replicated())
            if target is None or had == target:
                continue
            with ir.InsertionPoint(user), user.location:
                user.operands[i] = reshard(value, target)


# Marks what stands for an argument of a loop's region while the pass gives values their local types.
_ARGUMENT = "xla_npu.argument"


def name_arguments(module: ir.Module) -> None:
    """The pass knows how results of operations are spread, not arguments of loops' regions: makes results of these."""
    known, main = meshes(module), main_function(module)
    for op in find(module, "stablehlo.while"):
        for region in op.regions:
            block = region.blocks[0]
            for argument in block.arguments:
                sharding = sharding_of(argument, known, main)
                if sharding is None or not any(sharding.dimensions) or not list(argument.uses):
                    continue
                with ir.InsertionPoint.at_block_begin(block), op.location:
                    made = stablehlo.convert(argument.type, argument)
                stand_in = made.owner.operation
                argument.replace_all_uses_except(made, stand_in)
                set_result_shardings(stand_in, [sharding], known)
                stand_in.attributes[_ARGUMENT] = ir.UnitAttr.get()


def type_arguments(module: ir.Module) -> None:
    """Gives the arguments themselves the local types of what enters the loop."""

    def visit(op: Any) -> ir.WalkResult:
        if op.name == "stablehlo.while":
            for region in op.regions:
                for argument, value in zip(region.blocks[0].arguments, op.operands, strict=True):
                    argument.set_type(value.type)
        elif _ARGUMENT in op.attributes:
            op.results[0].replace_all_uses_with(op.operands[0])
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    for op in find(module, "stablehlo.convert"):
        if _ARGUMENT in op.attributes:
            op.erase()


def fit_slices(module: ir.Module) -> None:
    """Gives dynamic slices the local sizes, which the pass leaves out: what is split is taken as a whole."""
    for op in find(module, "stablehlo.dynamic_slice"):
        shape = parse_type(str(op.results[0].type))[1]
        op.attributes["slice_sizes"] = ir.DenseI64ArrayAttr.get(shape)
