"""Sort and top-k."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from xla_npu.compiler.attributes import integer, tensor_type, word
from xla_npu.compiler.dtypes import BOOL, I32, TYPES
from xla_npu.compiler.errors import Unsupported
from xla_npu.compiler.lowering import Lowering, _Elementwise, rule
from xla_npu.compiler.rules.elementwise import total_order
from xla_npu.compiler.tensor import Tensor

# Up to this length a sort with an arbitrary comparator compares all pairs at once.
ALL_PAIRS = 512


@rule("stablehlo.sort")
def sort(b: Lowering, op: Any, *operands: Tensor) -> list[Tensor]:
    axis = integer(op, "dimension")
    length = operands[0].shape[axis]
    if length < 2 or 0 in operands[0].shape:
        return list(operands)
    operands = tuple(b.full(t) for t in operands)
    keys = _keys(op.regions[0])
    if keys is not None:
        order = _order_by_keys(b, op.regions[0], keys, operands, axis)
    elif length <= ALL_PAIRS:
        order = _order_by_pairs(b, op.regions[0], operands, axis)
    else:
        raise Unsupported(
            f"a comparator that is not a comparison of keys sorts at most {ALL_PAIRS} elements, here {length}"
        )
    return [b.take_along(t, order, axis) for t in operands]


class _Key:
    """One sort key: a comparison whose two sides are the same expression of the first and of the second element."""

    def __init__(self, compare: Any, descending: bool):
        self.compare, self.descending = compare, descending


def _owner(value: ir.Value) -> Any:
    return None if isinstance(value.owner, ir.Block) else value.owner


def _mirrored(x: ir.Value, y: ir.Value, arguments: Sequence[ir.Value]) -> bool:
    """Whether `y` is the expression `x` with every first element replaced by its second."""
    if x in arguments or y in arguments:
        if x not in arguments or y not in arguments:
            return False
        i, j = arguments.index(x), arguments.index(y)
        return i % 2 == 0 and j == i + 1
    p, q = _owner(x), _owner(y)
    if p is None or q is None:
        return x == y
    if p == q:
        return not _depends(x, arguments)
    if p.name != q.name or len(p.operands) != len(q.operands):
        return False
    if [str(p.attributes[name]) for name in p.attributes] != [str(q.attributes[name]) for name in q.attributes]:
        return False
    return all(_mirrored(u, v, arguments) for u, v in zip(p.operands, q.operands, strict=True))


def _depends(value: ir.Value, arguments: Sequence[ir.Value]) -> bool:
    if value in arguments:
        return True
    owner = _owner(value)
    return owner is not None and any(_depends(operand, arguments) for operand in owner.operands)


def _keys(region: ir.Region) -> list[_Key] | None:
    """The keys of a comparator like lt(a0, b0) or (eq(a0, b0) and (lt(a1, b1) or ...)), most significant first."""
    block = region.blocks[0]
    arguments = list(block.arguments)
    (result,) = list(block.operations)[-1].operation.operands
    return _parse(result, arguments)


def _parse(value: ir.Value, arguments: Sequence[ir.Value]) -> list[_Key] | None:
    op = _owner(value)
    if op is None:
        return None
    if op.name == "stablehlo.compare":
        direction = word(op, "comparison_direction")
        left, right = op.operands
        if direction not in ("LT", "GT"):
            return None
        if _mirrored(left, right, arguments):
            return [_Key(op, direction == "GT")]
        if _mirrored(right, left, arguments):
            return [_Key(op, direction == "LT")]
        return None
    if op.name == "stablehlo.or":
        for first, second in (op.operands, reversed(list(op.operands))):
            head, tail = _parse(first, arguments), _owner(second)
            if head is None or len(head) != 1 or tail is None or tail.name != "stablehlo.and":
                continue
            for equal, rest in (tail.operands, reversed(list(tail.operands))):
                more = _parse(rest, arguments)
                if more is not None and _is_equality(equal, head[0]):
                    return [*head, *more]
    if op.name == "stablehlo.select":
        predicate, rest, strict = op.operands
        head, more = _parse(strict, arguments), _parse(rest, arguments)
        if head is not None and len(head) == 1 and more is not None and _is_equality(predicate, head[0]):
            return [*head, *more]
    return None


def _is_equality(value: ir.Value, key: _Key) -> bool:
    op = _owner(value)
    if op is None or op.name != "stablehlo.compare" or word(op, "comparison_direction") != "EQ":
        return False
    return set(op.operands) == set(key.compare.operands)


def _order_by_keys(b: Lowering, region: ir.Region, keys: list[_Key], operands: Sequence[Tensor], axis: int) -> Tensor:
    """The order by stable sorts, the least significant key first."""
    inner = _Elementwise(b, operands[0].shape)
    block = region.blocks[0]
    for i, argument in enumerate(block.arguments):  # both elements stand for the whole operand
        inner.tensors[argument] = operands[i // 2]
    for op in list(block.operations)[:-1]:
        inner.lower(op.operation, op.operation.name)
    order: Tensor | None = None
    for key in reversed(keys):
        arguments = list(block.arguments)
        left, right = key.compare.operands
        side = left if _mirrored(left, right, arguments) else right
        total = word(key.compare, "compare_type") == "TOTALORDER"
        column = b.full(sortable(b, inner.tensor(side), total))
        if order is not None:
            column = b.take_along(column, order, axis)
        step = stable_order(b, column, axis, key.descending)
        order = step if order is None else b.take_along(order, step, axis)
    assert order is not None
    return order


def sortable(b: Lowering, x: Tensor, total: bool) -> Tensor:
    """A tensor of the same order in a type that Sort takes."""
    if x.type.kind == "bool":
        return b.convert(x, I32)
    if x.type.kind == "uint" and x.type.storage != "u8":
        return b.ordered(x)
    if x.type.kind == "float":
        if not total:  # zeros of both signs are equal
            x = b.select(b.compare(x, b.scalar(0, x), "EQ"), b.scalar(0, x), x)
        return total_order(b, x)
    if x.type.kind == "complex":
        raise Unsupported("no lowering for complex keys")
    return x


def stable_order(b: Lowering, x: Tensor, axis: int, descending: bool) -> Tensor:
    """The permutation that sorts along `axis`, equal elements in their order."""
    last = x.rank - 1
    swap = [i for i in range(x.rank) if i != axis] + [axis]
    turned = b.full(b.transpose(x, swap))
    outputs = b.graph.add(
        "Sort",
        [turned.value],
        [(turned.value.dtype, turned.shape), ("i32", turned.shape)],
        {"axis": -1, "descending": descending, "stable": True, "y2_dtype": 3},
    )
    order = Tensor(I32, turned.shape, (outputs[1],))
    back = [*range(axis), last, *range(axis, last)]
    return b.full(b.transpose(order, back))


def _order_by_pairs(b: Lowering, region: ir.Region, operands: Sequence[Tensor], axis: int) -> Tensor:
    """Any comparator: an element's rank is the number of elements that come before it."""
    rank = operands[0].rank
    swap = [i for i in range(rank) if i != axis] + [axis]
    moved = [b.full(b.transpose(t, swap)) for t in operands]
    *rest, length = moved[0].shape
    shape = (*rest, length, length)
    rows = [b.broadcast_in_dim(t, shape, range(rank)) for t in moved]
    columns = [b.broadcast_in_dim(t, shape, [*range(rank - 1), rank]) for t in moved]
    (before,) = b.inline(region, [t for pair in zip(rows, columns, strict=True) for t in pair])
    (after,) = b.inline(region, [t for pair in zip(columns, rows, strict=True) for t in pair])
    earlier = b.constant(np.tri(length, k=-1, dtype=bool).T.reshape((1,) * len(rest) + (length, length)), BOOL)
    earlier = Tensor(BOOL, shape, earlier.parts)
    first = b.or_(before, b.and_(b.not_(after), earlier))  # [i, j]: element i comes before element j
    places = b.reduce("ReduceSum", b.convert(first, I32), [rank - 1])
    order = stable_order(b, b.full(places), rank - 1, False)
    back = [*range(axis), rank - 1, *range(axis, rank - 1)]
    return b.full(b.transpose(order, back))


@rule("chlo.top_k")
def top_k(b: Lowering, op: Any, x: Tensor) -> list[Tensor]:
    kind, shape = tensor_type(op.results[0])
    if 0 in shape:
        return [b.constant(np.zeros((), t.numpy), t, shape) for t in (kind, TYPES["i32"])]
    axis = x.rank - 1
    x = b.full(x)
    order = stable_order(b, b.full(sortable(b, x, True)), axis, True)
    order = b.slice_axis(order, axis, 0, shape[axis])
    return [b.take_along(x, order, axis), order]
