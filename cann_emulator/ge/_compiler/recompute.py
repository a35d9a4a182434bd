"""Cheap elementwise results that are used again much later are computed again there instead of being kept.

A training step keeps what its forward half computes for its backward half; normalised and centred activations follow
from each other by one operation, so that keeping one of them is enough.
"""

import math

from .fuse import KERNELS, SPECIAL, as_made, kernel_of
from .ir import Block, Operation, Value

_GAP = 40  # operations between two uses that make the later one "much later"
_SLACK = 10  # operations for which keeping something longer costs nothing
_SMALL = 1 << 12  # bytes that are not worth it
_DEPTH = 3  # operations in a row that are computed again


class _Uses:
    """Who reads what, at which operation."""

    def __init__(self, block: Block) -> None:
        self.at: dict[int, list[int]] = {}
        self.last: dict[int, float] = {}
        for position, op in enumerate(block.operations):
            for value in op.reads():
                self.at.setdefault(id(value.root), []).append(position)
        for key, positions in self.at.items():
            self.last[key] = positions[-1]
        for value in block.outputs:
            self.last[id(value.root)] = math.inf

    def until(self, value: Value) -> float:
        """The last operation at which a value is in memory anyway."""
        root = value.root
        if root.producer is None:
            return math.inf  # an input or a constant
        return self.last.get(id(root), -1)


def recompute(block: Block) -> None:
    """Adds operations before late uses, and lets these read their results."""
    for op in block.operations:
        for child in op.blocks:
            recompute(child)
    uses = _Uses(block)
    before: dict[int, list[Operation]] = {}
    for position, op in enumerate(list(block.operations)):
        if not _cheap(op) or op.writes()[0].bytes < _SMALL:
            continue
        value = op.writes()[0]
        late = _late_uses(block, value, position, uses)
        for cluster in late:
            end = cluster[-1]
            if _cost(op, end, uses, _DEPTH) * 2 > value.bytes:
                continue
            copy = _again(op, end, uses, _DEPTH, before.setdefault(cluster[0], []), {})
            for reader in cluster:
                _replace(block.operations[reader], value, copy)
            kept = [at for at in uses.at[id(value)] if at not in cluster]
            uses.at[id(value)] = kept
            uses.last[id(value)] = kept[-1] if kept else position
    block.operations = [
        entry for position, op in enumerate(block.operations) for entry in (*before.get(position, ()), op)
    ]


def _cheap(op: Operation) -> bool:
    return op.type in KERNELS | SPECIAL and not op.blocks and kernel_of(op) is not None


def _late_uses(block: Block, value: Value, made: int, uses: _Uses) -> list[list[int]]:
    """The uses much later than the one before, in clusters, where elementwise operators are all that reads them."""
    if uses.last.get(id(value), 0) == math.inf:
        return []
    clusters: list[list[int]] = []
    before = made
    for at in sorted(set(uses.at.get(id(value), []))):
        if at - before > _GAP:
            clusters.append([at])
        elif clusters:
            clusters[-1].append(at)
        before = at

    def elementwise(at: int) -> bool:
        op = block.operations[at]
        reads = [entry for entry in op.reads() if entry.root is value]
        return kernel_of(op) is not None and all(entry is value or as_made(entry) for entry in reads)

    while clusters and not all(elementwise(at) for at in clusters[-1]):
        clusters.pop()
    # A cluster is of use only if no later one keeps the value: those from the end that qualify.
    good: list[list[int]] = []
    for cluster in reversed(clusters):
        if not all(elementwise(at) for at in cluster):
            break
        good.append(cluster)
    return good


def _cost(op: Operation, end: float, uses: _Uses, depth: int) -> int:
    """Bytes that must be kept longer for an operation to be done again at `end`."""
    total = 0
    for value in {id(value.root): value.root for value in op.reads()}.values():
        if uses.until(value) + _SLACK >= end:
            continue
        producer = value.producer
        kept = value.bytes
        if depth > 1 and producer is not None and _cheap(producer):
            kept = min(kept, _cost(producer, end, uses, depth - 1))
        total += kept
    return total


def _again(op: Operation, end: float, uses: _Uses, depth: int, added: list[Operation], made: dict[int, Value]) -> Value:
    """Adds an operation once more, and those that it needs; its result."""
    value = op.writes()[0]
    if id(value) in made:
        return made[id(value)]
    inputs: dict[str, Value | list[Value] | None] = {}
    for name, given in op.inputs.items():
        assert isinstance(given, Value)
        root, producer = given.root, given.root.producer
        source = given
        if uses.until(given) < end:
            far = uses.until(given) + _SLACK < end
            cheaper = far and depth > 1 and producer is not None and _cheap(producer)
            if cheaper and given is root and _cost(producer, end, uses, depth - 1) < root.bytes:  # type: ignore[arg-type]
                source = _again(producer, end, uses, depth - 1, added, made)  # type: ignore[arg-type]
            else:
                uses.last[id(root)] = end
        inputs[name] = source
    copy = Operation(op.type, f"{op.name}/again", inputs, {}, op.attrs)
    (name,) = op.outputs
    made[id(value)] = copy.outputs[name] = Value(value.dtype, value.dims, producer=copy)
    added.append(copy)
    return made[id(value)]


def _replace(op: Operation, old: Value, new: Value) -> None:
    for name, value in op.inputs.items():
        if isinstance(value, Value) and value.root is old:
            op.inputs[name] = new if value is old else _shown_as(value, new)


def _shown_as(view: Value, root: Value) -> Value:
    """The same view of another value."""
    return Value(view.dtype, view.dims, base=root)
