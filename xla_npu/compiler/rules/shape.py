"""Constants, broadcasts, slices, concatenation and padding."""

from __future__ import annotations

from typing import Any

import numpy as np

from xla_npu.compiler.attributes import integer, ints, tensor_type
from xla_npu.compiler.builder import COUNTED, counts_itself
from xla_npu.compiler.dtypes import I32
from xla_npu.compiler.lowering import Lowering, rule
from xla_npu.compiler.tensor import Tensor


@rule("stablehlo.iota")
def iota(b: Lowering, op: Any) -> Tensor:
    kind, shape = tensor_type(op.results[0])
    axis = integer(op, "iota_dimension")
    if kind.kind == "complex" or kind.emulated or (shape[axis] > COUNTED and not counts_itself(kind)):
        return b.convert(b.iota(shape, axis, I32), kind)
    return b.iota(shape, axis, kind)


@rule("stablehlo.broadcast_in_dim")
def broadcast_in_dim(b: Lowering, op: Any, x: Tensor) -> Tensor:
    return b.broadcast_in_dim(x, tensor_type(op.results[0])[1], ints(op, "broadcast_dimensions"))


@rule("stablehlo.reshape")
def reshape(b: Lowering, op: Any, x: Tensor) -> Tensor:
    return b.reshape(x, tensor_type(op.results[0])[1])


@rule("stablehlo.transpose")
def transpose(b: Lowering, op: Any, x: Tensor) -> Tensor:
    return b.transpose(x, ints(op, "permutation"))


@rule("stablehlo.slice")
def slice_(b: Lowering, op: Any, x: Tensor) -> Tensor:
    return b.slice(x, ints(op, "start_indices"), ints(op, "limit_indices"), ints(op, "strides"))


@rule("stablehlo.concatenate")
def concatenate(b: Lowering, op: Any, *tensors: Tensor) -> Tensor:
    return b.concatenate(tensors, integer(op, "dimension"))


@rule("stablehlo.reverse")
def reverse(b: Lowering, op: Any, x: Tensor) -> Tensor:
    return b.reverse(x, ints(op, "dimensions"))


@rule("stablehlo.pad")
def pad(b: Lowering, op: Any, x: Tensor, value: Tensor) -> Tensor:
    edges = (ints(op, name) for name in ("edge_padding_low", "edge_padding_high", "interior_padding"))
    return b.pad(x, value, *edges)


@rule("stablehlo.get_dimension_size")
def get_dimension_size(b: Lowering, op: Any, x: Tensor) -> Tensor:
    return b.constant(np.int32(x.shape[integer(op, "dimension")]), I32)
