"""Collectives as exchanges of flat buffers between devices, the form that HCCL has them in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from xla_npu.compiler.attributes import integer, tensor_type
from xla_npu.compiler.dtypes import BOOL, I32, UNSIGNED
from xla_npu.compiler.errors import Unsupported
from xla_npu.compiler.lowering import Lowering, rule
from xla_npu.compiler.rules.reduce import body, single_operation
from xla_npu.compiler.tensor import Tensor

NAMES = frozenset(
    "stablehlo." + name
    for name in (
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "collective_permute",
        "collective_broadcast",
    )
)
REDUCTIONS = {
    "stablehlo.add": "sum",
    "stablehlo.multiply": "prod",
    "stablehlo.maximum": "max",
    "stablehlo.minimum": "min",
    "stablehlo.or": "max",
    "stablehlo.and": "min",
}


@dataclass
class Groups:
    """Which devices exchange with each other, by flat number: replica * partitions + partition."""

    members: list[list[int]]

    @property
    def largest(self) -> int:
        """The size of the largest group."""
        return max(map(len, self.members), default=1)


def _matrix(op: Any, name: str) -> list[list[int]]:
    rows = np.array(op.attributes[name])
    return [[int(v) for v in row if v >= 0] for row in rows]


def groups(op: Any, replicas: int, partitions: int) -> Groups:
    """The groups of a collective. StableHLO numbers replicas, partitions or both, depending on its attributes."""
    attributes = op.attributes
    name = "source_target_pairs" if op.name == "stablehlo.collective_permute" else "replica_groups"
    rows = _matrix(op, name)
    channel = _channel(op)
    if op.name == "stablehlo.collective_permute":
        number = _flat(channel > 0, replicas, partitions)
        return Groups([[i for row in pairs for i in row] for pairs in (number(rows),)] or [[0]])
    flat_ids = "use_global_device_ids" in attributes
    if flat_ids and channel > 0:
        return Groups(rows)
    if channel > 0 and op.name not in ("stablehlo.all_to_all", "stablehlo.collective_broadcast"):
        # Replica groups with a channel: across the partitions as well.
        rows = rows or [list(range(replicas))]
        return Groups([[r * partitions + p for r in row for p in range(partitions)] for row in rows])
    if channel > 0:  # the numbers are partitions
        rows = rows or [list(range(partitions))]
        return Groups([[r * partitions + p for p in row] for r in range(replicas) for row in rows])
    rows = rows or [list(range(replicas))]
    return Groups([[r * partitions + p for r in row] for p in range(partitions) for row in rows])


def _channel(op: Any) -> int:
    if "channel_handle" not in op.attributes:
        return 0
    text = str(op.attributes["channel_handle"])
    return int(text.split("handle = ")[1].split(",")[0].rstrip(">"))


def _flat(by_partition: bool, replicas: int, partitions: int) -> Callable[[list[list[int]]], list[list[int]]]:
    """Turns pairs of partitions (or of replicas) into pairs of flat numbers."""

    def convert(pairs: list[list[int]]) -> list[list[int]]:
        if by_partition:
            return [[r * partitions + i for i in pair] for r in range(replicas) for pair in pairs]
        return [[i * partitions + p for i in pair] for p in range(partitions) for pair in pairs]

    return convert


@dataclass
class Exchange:
    """One buffer's exchange: what is sent, the shape of what arrives, and what becomes of it."""

    sent: Tensor
    received: tuple[int, ...]
    step: dict[str, Any]
    finish: Callable[[Lowering, Tensor], Tensor]


def _plain(b: Lowering, x: Tensor) -> tuple[Tensor, Callable[[Lowering, Tensor], Tensor]]:
    """A tensor in a type that any collective moves, and the way back."""
    if x.type == BOOL:
        return b.convert(x, I32), lambda after, y: after.convert(y, BOOL)
    if x.type.kind == "complex":
        pair = Tensor(b.real(x).type, (*x.shape, 2), (b.join_complex(x),))
        return pair, lambda after, y: after.split_complex(after.full(y).value, x.type)
    return x, lambda after, y: y


def prepare(b: Lowering, op: Any, replicas: int, partitions: int) -> list[Exchange]:
    """The exchanges of a collective, one for each operand."""
    make = {
        "stablehlo.all_reduce": _all_reduce,
        "stablehlo.all_gather": _all_gather,
        "stablehlo.reduce_scatter": _reduce_scatter,
        "stablehlo.all_to_all": _all_to_all,
        "stablehlo.collective_permute": _permute,
        "stablehlo.collective_broadcast": _broadcast,
    }[op.name]
    members = groups(op, replicas, partitions).members
    if op.name == "stablehlo.collective_permute":
        channel = _channel(op)
        members = _flat(channel > 0, replicas, partitions)(_matrix(op, "source_target_pairs"))
    if len({len(m) for m in members}) > 1 and not (
        op.name == "stablehlo.all_reduce" and _reduction(op, b.tensor(op.operands[0]))
    ):
        raise Unsupported("groups of different sizes")
    shapes = [tensor_type(result)[1] for result in op.results]
    return [make(b, op, b.full(b.tensor(v)), members, shape) for v, shape in zip(op.operands, shapes, strict=True)]


def _step(name: str, sent: Tensor, members: list[list[int]], **extra: Any) -> dict[str, Any]:
    count = int(np.prod(sent.shape, dtype=np.int64))
    return {"op": name, "groups": members, "dtype": sent.type.xla, "count": count, **extra}


def _region(op: Any) -> ir.Region:
    """The body of a reduction between devices.

    Shardy writes a sum whatever the reduction of a sharded dimension was (its collectives have channels of type 1):
    the body is then that of the reduction whose partial result is exchanged.
    """
    source = op.operands[0].owner
    inserted = "type = 1" in str(op.attributes["channel_handle"]) if "channel_handle" in op.attributes else False
    if inserted and not isinstance(source, ir.Block) and source.name == "stablehlo.reduce":
        return source.regions[0]
    return op.regions[0]


def _reduction(op: Any, x: Tensor) -> str:
    name = single_operation(_region(op)) or ""
    kind = REDUCTIONS.get(name)
    if kind is None or (name in ("stablehlo.or", "stablehlo.and") and x.type != BOOL):
        return ""
    if x.type == BOOL:
        return {"sum": "max", "prod": "min"}.get(kind, kind)
    if x.type.kind == "complex" and kind != "sum":
        return ""
    return kind


def _all_reduce(b: Lowering, op: Any, x: Tensor, members: list[list[int]], shape: tuple[int, ...]) -> Exchange:
    kind = _reduction(op, x)
    if not kind:
        return _reduce_by_gathering(b, op, x, members, shape)
    sent, back = _plain(b, x)
    if sent.type.kind == "uint" and kind in ("max", "min"):
        return _reduce_by_gathering(b, op, x, members, shape)
    return Exchange(sent, sent.shape, _step("all_reduce", sent, members, reduction=kind), back)


def _reduce_by_gathering(b: Lowering, op: Any, x: Tensor, members: list[list[int]], shape: tuple[int, ...]) -> Exchange:
    """Any body: everyone gets everything and combines it alone."""
    count = len(members[0])
    sent, back = _plain(b, x)
    combine_region = _region(op)

    def finish(after: Lowering, y: Tensor) -> Tensor:
        y = back(after, y)
        combine = body(after, combine_region)
        parts = [after.reshape(after.slice_axis(y, 0, i, i + 1), shape) for i in range(count)]
        total = [parts[0]]
        for part in parts[1:]:
            total = combine(total, [part])
        return total[0]

    return Exchange(sent, (count, *sent.shape), _step("all_gather", sent, members), finish)


def _all_gather(b: Lowering, op: Any, x: Tensor, members: list[list[int]], shape: tuple[int, ...]) -> Exchange:
    axis, count = integer(op, "all_gather_dim"), len(members[0])
    sent, back = _plain(b, x)

    def finish(after: Lowering, y: Tensor) -> Tensor:
        order = [*range(1, axis + 1), 0, *range(axis + 1, x.rank + 1)]
        return after.reshape(after.full(after.transpose(back(after, y), order)), shape)

    return Exchange(sent, (count, *sent.shape), _step("all_gather", sent, members), finish)


def _split_axis(b: Lowering, x: Tensor, axis: int, count: int) -> Tensor:
    """The chunks along an axis as a new first dimension."""
    chunk = x.shape[axis] // count
    split = b.reshape(x, (*x.shape[:axis], count, chunk, *x.shape[axis + 1 :]))
    order = [axis, *(i for i in range(split.rank) if i != axis)]
    return b.full(b.transpose(split, order))


def _reduce_scatter(b: Lowering, op: Any, x: Tensor, members: list[list[int]], shape: tuple[int, ...]) -> Exchange:
    count, axis = len(members[0]), integer(op, "scatter_dimension")
    kind = _reduction(op, x)
    sent, back = _plain(b, _split_axis(b, x, axis, count))
    if kind and not (sent.type.kind == "uint" and kind in ("max", "min")):
        step = _step("reduce_scatter", sent, members, reduction=kind)
        return Exchange(sent, shape, step, lambda after, y: back(after, y))
    region = _region(op)

    def finish(after: Lowering, y: Tensor) -> Tensor:
        y, combine = back(after, y), body(after, region)
        parts = [after.reshape(after.slice_axis(y, 0, i, i + 1), shape) for i in range(count)]
        total = [parts[0]]
        for part in parts[1:]:
            total = combine(total, [part])
        return total[0]

    return Exchange(sent, sent.shape, _step("all_to_all", sent, members), finish)


def _all_to_all(b: Lowering, op: Any, x: Tensor, members: list[list[int]], shape: tuple[int, ...]) -> Exchange:
    split, join, count = (integer(op, n) for n in ("split_dimension", "concat_dimension", "split_count"))
    sent, back = _plain(b, _split_axis(b, x, split, count))

    def finish(after: Lowering, y: Tensor) -> Tensor:
        y = back(after, y)
        order = [*range(1, join + 1), 0, *range(join + 1, y.rank)]
        return after.reshape(after.full(after.transpose(y, order)), shape)

    return Exchange(sent, sent.shape, _step("all_to_all", sent, members), finish)


def _permute(b: Lowering, op: Any, x: Tensor, pairs: list[list[int]], shape: tuple[int, ...]) -> Exchange:
    sent, back = _plain(b, x)
    step = _step("collective_permute", sent, [])
    step["pairs"] = pairs
    return Exchange(sent, sent.shape, step, back)


def _broadcast(b: Lowering, op: Any, x: Tensor, members: list[list[int]], shape: tuple[int, ...]) -> Exchange:
    sent, back = _plain(b, x)
    return Exchange(sent, sent.shape, _step("broadcast", sent, members), back)


def role(b: Lowering, op: Any, device: Tensor, partitions: int) -> Tensor:
    """partition_id or replica_id, from the device's flat number."""
    signed = b.as_signed(device)
    kind = "TruncateMod" if op.name == "stablehlo.partition_id" else "TruncateDiv"
    result = b.binary(kind, signed, b.scalar(partitions, signed))
    return Tensor(UNSIGNED[32], (), result.parts)


@rule(*NAMES)
def alone(b: Lowering, op: Any, *operands: Tensor) -> Sequence[Tensor]:
    """A collective in which every device is in a group of its own."""
    if op.name == "stablehlo.collective_permute":
        pairs = _matrix(op, "source_target_pairs")
        if not pairs:
            return [b.scalar(0, x) for x in operands]
    shapes = [tensor_type(result)[1] for result in op.results]
    return [b.reshape(x, shape) for x, shape in zip(operands, shapes, strict=True)]


@rule("stablehlo.partition_id", "stablehlo.replica_id")
def only_device(b: Lowering, op: Any) -> Tensor:
    """The number of the only device."""
    return b.constant(np.uint32(0), UNSIGNED[32])
