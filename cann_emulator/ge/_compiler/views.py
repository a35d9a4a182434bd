"""Operators that only look at memory in another way: their outputs are views of their inputs, nothing is computed."""

from collections.abc import Callable

from . import shapes
from .build import LOOPS
from .ir import Block, Operation, Value, dense_strides
from .prototypes import BYTES

Strides = tuple[int, ...]
# A rule gives, for each output, (offset in elements, strides) relative to the input, or None where it is no view.
Layout = tuple[int, Strides] | None
RULES: dict[str, Callable[[Operation, Value], list[Layout] | None]] = {}


def _view(*types: str) -> Callable:
    def register(function: Callable) -> Callable:
        for type in types:
            RULES[type] = function
        return function

    return register


def strides_of(value: Value) -> Strides:
    """Strides in elements."""
    return value.strides if value.strides is not None else dense_strides(value.dims)


def reshaped(dims: tuple[int, ...], strides: Strides, wanted: tuple[int, ...]) -> Strides | None:
    """Strides that show a tensor in another shape without moving it; None where there are none."""
    if 0 in dims:
        return dense_strides(wanted)
    result: list[int] = [0] * len(wanted)
    at = len(wanted) - 1
    d = len(dims) - 1
    while d >= 0:
        # A run of dimensions that one stride walks.
        size, base = dims[d], strides[d]
        while d > 0 and (dims[d - 1] == 1 or size == 1 or strides[d - 1] == size * base):
            if size == 1:
                base = strides[d - 1]
            size *= dims[d - 1]
            d -= 1
        d -= 1
        step = 1
        while at >= 0 and (step < size or wanted[at] == 1):
            result[at] = base * step
            step *= wanted[at]
            at -= 1
        if step != size:
            return None
    while at >= 0:
        if wanted[at] != 1:
            return None
        result[at] = 1
        at -= 1
    return tuple(result)


def is_dense(dims: tuple[int, ...], strides: Strides) -> bool:
    """Whether elements follow each other without gaps."""
    dense = dense_strides(dims)
    return 0 in dims or all(size == 1 or have == want for size, have, want in zip(dims, strides, dense, strict=True))


@_view("Identity", "Reshape", "Squeeze", "SqueezeV2", "SqueezeV3", "Unsqueeze", "UnsqueezeV2", "UnsqueezeV3",
       "ExpandDims", "FlattenV2")  # fmt: skip
def _reshape(op: Operation, x: Value) -> list[Layout]:
    strides = reshaped(x.dims, strides_of(x), op.writes()[0].dims)
    return [None if strides is None else (0, strides)]


@_view("BroadcastTo")
def _broadcast(op: Operation, x: Value) -> list[Layout]:
    wanted = op.writes()[0].dims
    extra = len(wanted) - len(x.dims)
    strides = [0] * extra
    for size, want, stride in zip(x.dims, wanted[extra:], strides_of(x), strict=True):
        strides.append(stride if size == want else 0)
    return [(0, tuple(strides))]


@_view("Transpose", "TransposeD")
def _transpose(op: Operation, x: Value) -> list[Layout]:
    strides = strides_of(x)
    return [(0, tuple(strides[axis] for axis in shapes.permutation(op)))]


@_view("Slice", "SliceD")
def _slice(op: Operation, x: Value) -> list[Layout] | None:
    if "offsets" in op.inputs and op.inputs["offsets"].data is None:  # type: ignore[union-attr]
        return None
    offsets = op.ints("offsets") if "offsets" in op.inputs else op.attrs["offsets"]
    strides = strides_of(x)
    return [(sum(o * s for o, s in zip(offsets, strides, strict=True)), strides)]


@_view("StridedSlice", "StridedSliceD", "StridedSliceV2")
def _strided_slice(op: Operation, x: Value) -> list[Layout] | None:
    cuts, _ = shapes.slice_plan(op)
    if any(cut is None or cut[1] < 0 for cut in cuts):
        return None
    offset, strides, dims = 0, [], []
    for cut, stride in zip(cuts, strides_of(x), strict=True):
        assert cut is not None
        begin, step, count = cut
        offset += begin * stride if count else 0
        strides.append(stride * step)
        dims.append(count)
    # New and dropped dimensions have size 1: the rest is a reshape.
    shown = reshaped(tuple(dims), tuple(strides), op.writes()[0].dims)
    return [None if shown is None else (offset, shown)]


@_view("Split", "SplitD", "SplitV", "SplitVD")
def _split(op: Operation, x: Value) -> list[Layout]:
    axis, sizes = shapes.split_sizes(op)
    strides = strides_of(x)
    layouts: list[Layout] = []
    begin = 0
    for size in sizes:
        layouts.append((begin * strides[axis], strides))
        begin += size
    return layouts


@_view("Unpack")
def _unpack(op: Operation, x: Value) -> list[Layout]:
    axis = shapes.axis_of(op, op.attrs.get("axis", 0), len(x.dims))
    strides = strides_of(x)
    return [(i * strides[axis], strides[:axis] + strides[axis + 1 :]) for i in range(x.dims[axis])]


@_view("Bitcast")
def _bitcast(op: Operation, x: Value) -> list[Layout] | None:
    y = op.writes()[0]
    if BYTES[x.dtype] == BYTES[y.dtype]:
        return [(0, strides_of(x))]
    return [(0, dense_strides(y.dims))] if x.strides is None else None


def make_views(block: Block) -> None:
    """Makes outputs views where they can be, and takes the operations out."""
    kept = []
    for op in block.operations:
        for child in op.blocks:
            make_views(child)
        if op.blocks:
            kept.extend(_dense_inputs(op))
            kept.append(op)
            if op.type in LOOPS:
                _mark_invariants(op)
            continue
        if op.type == "IdentityN":
            for given, made in zip(op.many("x"), op.writes(), strict=True):
                look(made, given, 0, strides_of(given))
            continue
        find = RULES.get(op.type)
        x = op.inputs.get("x")
        layouts = find(op, x) if find and isinstance(x, Value) else None
        if layouts is None or None in layouts:
            kept.append(op)
            continue
        for y, layout in zip(op.writes(), layouts, strict=True):
            assert layout is not None and isinstance(x, Value)
            look(y, x, *layout)
    block.operations = kept


def _dense_inputs(op: Operation) -> list[Operation]:
    """Copies of a control flow node's inputs that are not dense: its graphs take them as dense."""
    copies = []
    (port, values), *_ = [(name, value) for name, value in op.inputs.items() if isinstance(value, list)]
    for i, value in enumerate(values):
        if value.strides is not None:
            copy = Operation("TensorMove", f"{op.name}/input_{i}", {"x": value}, {}, {})
            values[i] = Value(value.dtype, value.dims, producer=copy)
            copy.outputs["y"] = values[i]
            copies.append(copy)
    op.inputs[port] = values
    return copies


def _mark_invariants(op: Operation) -> None:
    """Notes which of a loop's values its body does not change: they are not carried, and the outputs are the inputs."""
    body = op.blocks[1]
    op.note = []
    for given, made, before, after in zip(body.inputs, body.outputs, op.many("input"), op.writes(), strict=True):
        kept = made.root is given and made.offset == 0 and made.strides is None and made.dtype == given.dtype
        op.note.append(kept)
        if kept:
            look(after, before, 0, strides_of(before))


def look(y: Value, x: Value, offset: int, strides: Strides) -> None:
    """Makes `y` a view of `x`: `offset` and `strides` in elements of x."""
    y.base = x.root
    y.offset = x.offset + offset * BYTES[x.dtype]
    y.strides = None if is_dense(y.dims, strides) else strides
    y.producer = None
