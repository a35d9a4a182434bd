"""While, if and case: regions become GE subgraphs, which see only what is handed to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from xla_npu.compiler.attributes import tensor_type
from xla_npu.compiler.dtypes import I32
from xla_npu.compiler.lowering import Lowering, rule
from xla_npu.compiler.tensor import Tensor


def captured(regions: Sequence[ir.Region]) -> list[ir.Value]:
    """Values that regions use and do not define; constants are left out, they are made again inside."""
    used: dict[ir.Value, None] = {}
    inside: set[ir.Value] = set()

    def visit(region: ir.Region) -> None:
        for block in region.blocks:
            inside.update(block.arguments)
            for op in block.operations:
                operation = op.operation
                for operand in operation.operands:
                    if operand not in inside:
                        used[operand] = None
                for inner in operation.regions:
                    visit(inner)
                inside.update(operation.results)

    for region in regions:
        visit(region)
    return [v for v in used if isinstance(v.owner, ir.Block) or v.owner.name != "stablehlo.constant"]


def flatten(b: Lowering, tensors: Sequence[Tensor]) -> list[Any]:
    """The whole GE values of tensors."""
    return [part for tensor in tensors for part in b.full(tensor).parts]


def stored(tensors: Sequence[Tensor]) -> list[Any]:
    """The GE values of tensors as they are, broadcasts not carried out."""
    return [part for tensor in tensors for part in tensor.parts]


def feed(inner: Lowering, like: Sequence[Tensor], whole: bool) -> list[Tensor]:
    """Graph inputs for tensors, `whole` or as they are stored; the parts of complex numbers stay apart."""
    return [
        Tensor(t.type, t.shape, tuple(inner.graph.input(p.dtype, t.shape if whole else p.shape) for p in t.parts))
        for t in like
    ]


def unflatten(values: Sequence[Any], like: Sequence[Tensor]) -> list[Tensor]:
    """The reverse of `flatten`."""
    rest = iter(values)
    return [Tensor(t.type, t.shape, tuple(next(rest) for _ in t.parts)) for t in like]


def finish(inner: Lowering, results: Sequence[Any]) -> None:
    """Makes GE values the outputs of a subgraph: each has to come from an operator."""
    outputs = []
    for value in results:
        if value.node.type in ("Data", "Const"):
            value = inner.graph.add("Identity", [value], [(value.dtype, value.shape)])[0]
        outputs.append(value)
    inner.graph.outputs = outputs
    inner.graph.prune()


def region_graph(b: Lowering, name: str, region: ir.Region, arguments: Sequence[Tensor], outer: Sequence[ir.Value]):
    """A subgraph whose inputs are the region's arguments, then the captured values; and what the region returns."""
    inner = b.subgraph(name)
    fed = feed(inner, arguments, whole=True)
    for value, tensor in zip(outer, feed(inner, [b.tensor(v) for v in outer], whole=False), strict=True):
        inner.tensors[value] = tensor
    return inner, fed, inner.lower_block(region.blocks[0], fed)


@rule("func.call")
def call(b: Lowering, op: Any, *operands: Tensor) -> list[Tensor]:
    name = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
    return b.lower_block(b.program.body(name), operands)


@rule("stablehlo.while")
def while_(b: Lowering, op: Any, *operands: Tensor) -> list[Tensor]:
    condition, body = op.regions
    outer = captured([condition, body])
    test, _, (predicate,) = region_graph(b, "cond", condition, operands, outer)
    finish(test, flatten(test, [predicate]))
    step, _, results = region_graph(b, "body", body, operands, outer)
    finish(step, [*flatten(step, results), *stored([step.tensors[v] for v in outer])])
    values = [*flatten(b, operands), *stored([b.tensor(v) for v in outer])]
    return unflatten(while_node(b, values, test, step), operands)


@rule("stablehlo.if")
def if_(b: Lowering, op: Any, predicate: Tensor) -> list[Tensor]:
    return _branches(b, op, "If", predicate)


@rule("stablehlo.case")
def case(b: Lowering, op: Any, index: Tensor) -> list[Tensor]:
    last = len(op.regions) - 1
    outside = b.or_(b.compare(index, b.scalar(0, index), "LT"), b.compare(index, b.scalar(last, index), "GT"))
    return _branches(b, op, "Case", b.select(outside, b.scalar(last, index), index))


def _branches(b: Lowering, op: Any, kind: str, selector: Tensor) -> list[Tensor]:
    outer = captured(list(op.regions))
    results = []
    for value in op.results:
        element, shape = tensor_type(value)
        empty = b.graph.constant(np.zeros(0), element.storage)
        results.append(Tensor(element, shape, (empty,) * element.parts))
    graphs = []
    for region in op.regions:
        inner, _, returned = region_graph(b, "branch", region, [], outer)
        finish(inner, flatten(inner, returned))
        graphs.append(inner.graph)
    values = stored([b.tensor(v) for v in outer])
    outputs = b.graph.add(
        kind,
        [b.full(selector).value, *values],
        [(part.dtype, t.shape) for t in results for part in t.parts],
        {},
        subgraphs=graphs,
        dynamic_inputs=len(values),
    )
    return unflatten(outputs, results)


def repeat(
    b: Lowering,
    count: int,
    carried: Sequence[Tensor],
    step: Callable[[Lowering, Tensor, list[Tensor]], Sequence[Tensor]],
) -> list[Tensor]:
    """Runs `step(inner, i, carried)` for i = 0 to count - 1 as a GE loop; it returns the next carried tensors."""
    tensors = [b.constant(np.int32(0), I32), *carried]
    test = b.subgraph("cond")
    at, *_ = feed(test, tensors, whole=True)
    finish(test, [test.full(test.compare(at, test.scalar(count, at), "LT")).value])
    inner = b.subgraph("body")
    at, *rest = feed(inner, tensors, whole=True)
    finish(inner, flatten(inner, [inner.add(at, inner.scalar(1, at)), *step(inner, at, rest)]))
    return unflatten(while_node(b, flatten(b, tensors), test, inner), tensors)[1:]


def while_node(b: Lowering, values: Sequence[Any], test: Lowering, step: Lowering) -> list[Any]:
    """GE's While: the outputs have the inputs' types and shapes."""
    return b.graph.add(
        "While",
        values,
        [(value.dtype, value.shape) for value in values],
        {"parallel_iterations": 10},
        subgraphs=[test.graph, step.graph],
        dynamic_inputs=len(values),
    )
