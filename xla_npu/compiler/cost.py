"""What a compiled program costs, as `jax.stages.Compiled.cost_analysis()` reports it."""

from __future__ import annotations

from collections.abc import Iterable

from xla_npu.compiler.graph import Graph, Node, Value

# Moving or naming data is no arithmetic.
FREE = frozenset(
    {
        "Bitcast", "BroadcastTo", "Cast", "ConcatD", "Const", "Data", "GatherElements", "GatherV2", "Identity", "Pack",
        "PadV3", "Reshape", "ReverseV2", "Slice", "StridedSlice", "TensorScatterUpdate", "Transpose",
    }
)  # fmt: skip
TRANSCENDENTAL = frozenset(
    {
        "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atan2", "Atanh", "Cos", "Cosh", "Erf", "Erfc", "Exp", "Expm1", "Log",
        "Log1p", "Pow", "Rsqrt", "Sigmoid", "Sin", "Sinh", "Sqrt", "Tan", "Tanh",
    }
)  # fmt: skip


def _operations(node: Node) -> float:
    result = node.outputs[0].elements if node.outputs else 0
    if node.type in ("MatMulV2", "BatchMatMulV2"):
        turned = node.attributes.get("transpose_x1") or node.attributes.get("adj_x1")
        return 2.0 * result * node.inputs[0].shape[-2 if turned else -1]
    if node.type in ("Conv2D", "Conv3DV2"):
        weights = node.inputs[1]
        return 2.0 * result * weights.elements / max(weights.shape[0], 1)
    if node.type.startswith("Reduce"):
        return float(node.inputs[0].elements)
    return float(result)


def _bytes(values: Iterable[Value]) -> float:
    sizes = {"bool": 1, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "f16": 2, "bf16": 2, "i64": 8, "u64": 8, "f64": 8}
    return float(sum(value.elements * sizes.get(value.dtype, 4) for value in values))


def cost(graphs: Iterable[Graph]) -> dict[str, float]:
    """Sums over all operators, each loop's body counted once."""
    total = {"flops": 0.0, "transcendentals": 0.0, "bytes accessed": 0.0}
    for outer in graphs:
        for graph in outer.walk():
            for node in graph.nodes:
                if node.type in ("Data", "Const"):
                    continue
                total["bytes accessed"] += _bytes([*node.inputs, *node.outputs])
                if node.type in TRANSCENDENTAL:
                    total["transcendentals"] += _operations(node)
                elif node.type not in FREE:
                    total["flops"] += _operations(node)
    return total
