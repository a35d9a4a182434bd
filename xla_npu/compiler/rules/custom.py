"""Custom calls that mean nothing to the NPU, or something that its operators can do."""

from __future__ import annotations

from typing import Any

from jaxlib.mlir import ir

from xla_npu.compiler.attributes import tensor_type, text, word
from xla_npu.compiler.errors import Unsupported
from xla_npu.compiler.lowering import Lowering, rule
from xla_npu.compiler.rules.sort import sortable, stable_order
from xla_npu.compiler.tensor import Tensor

# Annotations for compilers that place or lay out data: every buffer here is dense, row-major and on the device.
ANNOTATIONS = frozenset(
    {
        "Sharding",
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "annotate_device_placement",
        "LayoutConstraint",
        "xla.sdy.FuncResultSharding",
    }
)


# What only keeps a value alive through the compiler.
SINKS = frozenset({"dce_sink"})


@rule("stablehlo.custom_call")
def custom_call(b: Lowering, op: Any, *operands: Tensor) -> Any:
    target = text(op, "call_target_name")
    if target in ANNOTATIONS:
        return list(operands)
    if not op.results and target in SINKS:
        return []
    if target == "ApproxTopK":
        return _approximate_top_k(b, op, operands[0])
    raise Unsupported(
        f"the custom call `{target}` has no implementation on the NPU, and no function of that name is registered. "
        f'A function on the host is called after jax.ffi.register_ffi_target("{target}", FUNCTION, platform="npu"), '
        "Python code through jax.pure_callback; kernels for other accelerators cannot run here"
    )


def _approximate_top_k(b: Lowering, op: Any, x: Tensor) -> list[Tensor]:
    """The exact largest (or smallest) elements: more than was asked for."""
    axis = int(ir.IntegerAttr(ir.DictAttr(op.attributes["mhlo.backend_config"])["reduction_dim"]).value)
    name = ir.FlatSymbolRefAttr(ir.ArrayAttr(op.attributes["called_computations"])[0]).value
    comparison = next(iter(b.program.body(name).operations)).operation
    _, shape = tensor_type(op.results[0])
    order = stable_order(b, b.full(sortable(b, x, True)), axis, word(comparison, "comparison_direction") == "GT")
    order = b.slice_axis(order, axis, 0, shape[axis])
    return [b.take_along(x, order, axis), order]


@rule("sdy.sharding_constraint")
def sharding_constraint(b: Lowering, op: Any, x: Tensor) -> Tensor:
    return x
