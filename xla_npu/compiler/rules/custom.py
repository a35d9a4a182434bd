"""Custom calls that mean nothing to the NPU, or something that its operators can do."""

from __future__ import annotations

from typing import Any

from xla_npu.compiler.attributes import text
from xla_npu.compiler.errors import Unsupported
from xla_npu.compiler.lowering import Lowering, rule
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
    raise Unsupported(
        f"the custom call `{target}` has no implementation on the NPU. Custom calls for other accelerators, such as "
        "CUDA kernels, cannot run here; a host function can, through jax.pure_callback"
    )


@rule("sdy.sharding_constraint")
def sharding_constraint(b: Lowering, op: Any, x: Tensor) -> Tensor:
    return x
