"""Where every value lies: in an input, an output, the constants, or the work area, whose bytes are used repeatedly.

A loop's body writes what it carries to where the next round reads it, and an output that shares its input's memory
(`ge.exec.outputReuseInputMemIndexes`) is written there, in both cases only once nothing reads the old contents; else
it is copied at the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from ..error import GraphFault
from .build import LOOPS
from .ir import Block, Operation, Value

ALIGN = 64
# Operators whose output may lie where one of these inputs lay: each element is read before it is written.
_IN_PLACE: dict[str, tuple[str, ...]] = {
    "Elementwise": ("x",), "TensorMove": ("x",), "TensorScatterUpdate": ("x",), "TensorScatterAdd": ("x",),
    "TensorScatterSub": ("x",), "TensorScatterMax": ("input",), "TensorScatterMin": ("input",),
    "ScatterNdUpdate": ("var",), "ScatterNdAdd": ("var",), "ScatterNdSub": ("var",), "ScatterNdMax": ("var",),
    "ScatterNdMin": ("var",), "ScatterElements": ("data",), "ScatterElementsV2": ("var",), "ScatterUpdate": ("var",),
    "ScatterAdd": ("var",), "ScatterMax": ("var",), "ScatterMin": ("var",), "ScatterSub": ("var",),
    "ScatterMul": ("var",), "ScatterDiv": ("var",), "StridedSliceAssign": ("var",), "StridedSliceAssignD": ("var",),
    "Exp": ("x",), "Log": ("x",), "Tanh": ("x",), "Erf": ("x",), "Sigmoid": ("x",), "Sin": ("x",), "Cos": ("x",),
}  # fmt: skip


class Base(IntEnum):
    """What an address is relative to."""

    WEIGHTS = 0
    INPUT = 1
    OUTPUT = 2
    WORK = 3


@dataclass(slots=True, eq=False)
class Place:
    """Where a value lies: `offset` bytes from the beginning of `parent`, or of a base. `same`: the place it shares."""

    base: Base = Base.WORK
    index: int = 0
    offset: int = 0
    parent: "Place | None" = None
    same: "Place | None" = None

    def found(self) -> "Place":
        """The place that decides."""
        place = self
        while place.same is not None:
            place = place.same
        return place

    def address(self) -> tuple[int, int, int]:
        """(base, index, offset in bytes)."""
        place = self.found()
        offset = place.offset
        while place.parent is not None:
            place = place.parent.found()
            offset += place.offset
        return int(place.base), place.index, offset


class _Space:
    """Offsets in a work area whose size grows as needed: best fit among what is free."""

    def __init__(self) -> None:
        self.free: list[tuple[int, int]] = []  # (offset, bytes), by offset
        self.size = 0

    def take(self, size: int) -> int:
        size = -(-size // ALIGN) * ALIGN
        best = None
        for i, (_, have) in enumerate(self.free):
            if have >= size and (best is None or have < self.free[best][1]):
                best = i
        if best is not None:
            offset, have = self.free[best]
            if have == size:
                del self.free[best]
            else:
                self.free[best] = (offset + size, have - size)
            return offset
        if self.free and self.free[-1][0] + self.free[-1][1] == self.size:  # grow the last hole
            offset, _ = self.free.pop()
        else:
            offset = self.size
        self.size = offset + size
        return offset

    def give(self, offset: int, size: int) -> None:
        size = -(-size // ALIGN) * ALIGN
        at = 0
        while at < len(self.free) and self.free[at][0] < offset:
            at += 1
        self.free.insert(at, (offset, size))
        for i in (at, at - 1):
            if 0 <= i < len(self.free) - 1 and self.free[i][0] + self.free[i][1] == self.free[i + 1][0]:
                self.free[i : i + 2] = [(self.free[i][0], self.free[i][1] + self.free[i + 1][1])]


def _covers(value: Value) -> bool:
    root = value.root
    return value is root or (value.offset == 0 and value.strides is None and value.bytes == root.bytes)


def plan(block: Block, targets: Sequence[Place | None], shared: dict[int, int], area: Place) -> int:
    """Gives every value of a block, and of those below it, its place.

    Args:
        block: the block, whose inputs have their places.
        targets: where the outputs are to be; None: wherever they are made.
        shared: output index -> index of the block's input that lies in the same memory.
        area: the block's work area.

    Returns:
        Bytes of the work area.
    """
    _place_outputs(block, targets, shared)
    own = _own_places(block)
    last = _last_uses(block, own)
    for at, op in enumerate(block.operations):
        _share(op, at, own, last)
    space = _Space()
    ends: dict[int, list[tuple[int, int]]] = {}  # operation -> what is free after it
    placed: set[int] = set()
    for at, op in enumerate(block.operations):
        for value in op.writes():
            place = value.place.found() if value.base is None else None
            if place is None or id(place) not in own or id(place) in placed:
                continue
            placed.add(id(place))
            place.parent, place.offset = area, space.take(max(value.bytes, 1))
            ends.setdefault(last[id(place)], []).append((place.offset, max(value.bytes, 1)))
        if op.blocks:
            inner = Place(parent=area)
            size = _plan_children(op, inner)
            if size:
                inner.offset = space.take(size)
                space.give(inner.offset, size)
        for offset, size in ends.pop(at, []):
            space.give(offset, size)
    return space.size


# ---- outputs ------------------------------------------------------------------------------------------------------


def _place_outputs(block: Block, targets: Sequence[Place | None], shared: dict[int, int]) -> None:
    """Lets outputs be made where they are wanted, or copies them there at the end."""
    uses = _uses(block)
    made = {id(value): at for at, op in enumerate(block.operations) for value in op.writes() if value.base is None}
    late: list[tuple[int, Value]] = []
    for index, value in enumerate(block.outputs):
        root, target = value.root, targets[index]
        if target is None:
            continue
        given = block.inputs[shared[index]] if index in shared else None
        if given is not None and root is given and _covers(value):
            continue  # it is there already
        free = id(root) in made and root.place is None and _covers(value)
        if free and (given is None or _may_overwrite(block, given, root, uses, made[id(root)])):
            _place_chain(block, root, target, given, uses, made)
        else:
            late.append((index, value))
    # A copy must not read what another copy has overwritten: such sources go aside first.
    overwritten = {id(block.inputs[shared[index]]) for index, _ in late if index in shared}
    for position, (index, value) in enumerate(late):
        if len(late) > 1 and id(value.root) in overwritten:
            late[position] = (index, _append_copy(block, f"aside_{index}", value))
    for index, value in late:
        copy = _append_copy(block, f"output_{index}", value)
        copy.place = Place(same=targets[index])
        block.outputs[index] = copy


def _append_copy(block: Block, name: str, source: Value) -> Value:
    copy = Operation("TensorMove", f"{block.name}/{name}", {"x": source}, {}, {})
    copy.outputs["y"] = Value(source.dtype, source.dims, producer=copy)
    block.operations.append(copy)
    return copy.writes()[0]


def _place_chain(
    block: Block, made: Value, target: Place, given: Value | None, uses: dict[int, list[int]], at: dict[int, int]
) -> None:
    """Puts a value at a target, and what it is made from in place."""
    while True:
        made.place = Place(same=target)
        index = at[id(made)]
        op = block.operations[index]
        for candidate in _candidates(op, made):
            root = candidate.root
            if (
                id(root) in at
                and root.place is None
                and uses[id(root)] == [index]
                and _in_place(op, root, made)
                and (given is None or _may_overwrite(block, given, root, uses, at[id(root)]))
            ):
                made = root
                break
        else:
            return


def _may_overwrite(block: Block, given: Value, made: Value, uses: dict[int, list[int]], at: int) -> bool:
    """Whether a value may be made in an input's memory: nothing reads the input later."""
    reads = uses.get(id(given), [])
    if any(use > at for use in reads):
        return False
    return all(use < at for use in reads) or _in_place(block.operations[at], given, made)


def _in_place(op: Operation, given: Value, made: Value) -> bool:
    """Whether an operation may write an output where an input lies."""
    if given.bytes != made.bytes:
        return False
    readers = [value for value in op.reads() if value.root is given]
    allowed = _candidates(op, made)
    if op.type in LOOPS and len(readers) != 1:
        return False
    return all(
        _covers(value) and value.count == made.count and any(value is entry for entry in allowed) for value in readers
    )


def _candidates(op: Operation, made: Value) -> list[Value]:
    """The inputs in whose place an output may be made."""
    if op.type in LOOPS:
        return [before for before, after in zip(op.many("input"), op.writes(), strict=True) if after is made]
    found: list[Value] = []
    for port in _IN_PLACE.get(op.type, ()):
        value = op.inputs.get(port)
        found.extend(value if isinstance(value, list) else [value] if value is not None else [])
    return found


# ---- memory that is used again ------------------------------------------------------------------------------------


def _own_places(block: Block) -> dict[int, Place]:
    """The places in the block's own work area, one for each value that is made and has none yet."""
    own = {}
    for op in block.operations:
        for value in op.writes():
            if value.base is None and value.place is None:
                value.place = Place()
                own[id(value.place)] = value.place
    return own


def _last_uses(block: Block, own: dict[int, Place]) -> dict[int, int]:
    """Place -> the last operation that uses it."""
    uses = _uses(block)
    last: dict[int, int] = {}
    for at, op in enumerate(block.operations):
        for value in op.writes():
            if value.base is None and id(value.place) in own:
                last[id(value.place)] = max(uses.get(id(value), [at])[-1], at)
    return last


def _share(op: Operation, at: int, own: dict[int, Place], last: dict[int, int]) -> None:
    """Lets outputs lie where an input lay that is used here for the last time."""
    taken: set[int] = set()
    for made in op.writes():
        if made.base is not None or id(made.place) not in own or made.place.same is not None:
            continue
        for candidate in _candidates(op, made):
            root = candidate.root
            place = root.place.found() if root.place is not None else None
            if place is None or id(place) not in own or id(place) in taken or last[id(place)] != at:
                continue
            if not _in_place(op, root, made):
                continue
            made.place.same = place
            last[id(place)] = last[id(made.place)]
            taken.add(id(place))
            break


def _plan_children(op: Operation, area: Place) -> int:
    before, after = op.many("input"), op.writes()
    if op.type in LOOPS:
        condition, body = op.blocks
        places = [
            _place_of(given) if kept else made.place for kept, given, made in zip(op.note, before, after, strict=True)
        ]
        for block in op.blocks:
            for value, place in zip(block.inputs, places, strict=True):
                value.place = place
        size = plan(condition, [None], {}, area)
        moving = [i for i, kept in enumerate(op.note) if not kept]
        body.outputs = [body.outputs[i] for i in moving]
        return max(size, plan(body, [places[i] for i in moving], dict(enumerate(moving)), area))
    size = 0
    for block in op.blocks:
        for value, given in zip(block.inputs, before, strict=True):
            value.place = _place_of(given)
        size = max(size, plan(block, [value.place for value in after], {}, area))
    return size


def _place_of(value: Value) -> Place:
    """A value's place; for a view, inside that of its root."""
    return value.root.place if value.offset == 0 else Place(offset=value.offset, parent=value.root.place)


def _uses(block: Block) -> dict[int, list[int]]:
    """Value -> the operations that read its memory; outputs of the block count as one more operation."""
    uses: dict[int, list[int]] = {}
    for at, op in enumerate(block.operations):
        for value in op.reads():
            uses.setdefault(id(value.root), []).append(at)
    for value in block.outputs:
        uses.setdefault(id(value.root), []).append(len(block.operations))
    return uses


def reuse_pairs(text: str, inputs: int, outputs: int) -> dict[int, int]:
    """Reads `ge.exec.outputReuseInputMemIndexes`: output index -> input index.

    Raises:
        GraphFault: E10001, the text is not "in,out|in,out", or an index does not exist.
    """
    pairs: dict[int, int] = {}
    for entry in filter(None, text.split("|")):
        numbers = entry.split(",")
        if len(numbers) != 2 or not all(number.strip().isdecimal() for number in numbers):
            raise GraphFault("E10001", f"ge.exec.outputReuseInputMemIndexes is [{text}]; input,output|... is wanted.")
        source, target = map(int, numbers)
        if source >= inputs or target >= outputs or target in pairs or source in pairs.values():
            raise GraphFault(
                "E10001",
                f"ge.exec.outputReuseInputMemIndexes [{text}]: pair {entry} names an input or output that does not "
                f"exist or is used twice ({inputs} inputs, {outputs} outputs).",
            )
        pairs[target] = source
    return pairs
