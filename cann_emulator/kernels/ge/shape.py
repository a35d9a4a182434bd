"""Operators that move elements."""

import torch

from .registry import Node, bits, kernel


@kernel("TensorMove", "Identity", "Reshape", "Squeeze", "SqueezeV2", "SqueezeV3", "Unsqueeze", "UnsqueezeV2",
        "UnsqueezeV3", "ExpandDims", "FlattenV2")  # fmt: skip
def move(n: Node) -> None:
    """Copies; the output may have another shape."""
    x, y = bits(n.x), bits(n.out)
    n.copy(y if x.shape == y.shape else y.view(x.shape), x)


@kernel("Bitcast")
def bitcast(n: Node) -> None:
    """Copies the bytes of a tensor that is not dense."""
    n.run(_bitcast, n.x, n.y)


def _bitcast(x: torch.Tensor, y: torch.Tensor) -> None:
    y.view(torch.uint8).reshape(-1).copy_(x.contiguous().view(torch.uint8).reshape(-1))


@kernel("Transpose", "TransposeD")
def transpose(n: Node) -> None:
    """Reorders dimensions."""
    n.copy(bits(n.y), bits(n.x).permute(n.ints("perm")))


@kernel("Tile", "TileD")
def tile(n: Node) -> None:
    """Repeats a tensor along its dimensions."""
    times = n.ints("multiples")
    x = bits(n.x)
    x = x.reshape([1] * (len(times) - x.dim()) + list(x.shape))
    times = [1] * (x.dim() - len(times)) + times
    split = [size for pair in zip(times, x.shape, strict=True) for size in pair]
    spread = x.reshape([size for have in x.shape for size in (1, have)]).expand(split)
    n.copy(bits(n.y).view(split), spread)


@kernel("Concat", "ConcatD", "ConcatV2", "ConcatV2D")
def concat(n: Node) -> None:
    """Joins tensors along a dimension."""
    axis = n.ints("concat_dim")[0] % max(n.y.dim(), 1)
    begin = 0
    for part in n.x:
        if part.numel():
            n.copy(bits(n.y).narrow(axis, begin, part.shape[axis]), bits(part))
        begin += part.shape[axis]


@kernel("Pack")
def pack(n: Node) -> None:
    """Joins tensors along a new dimension."""
    axis = n.attr("axis", 0) % n.y.dim()
    for i, part in enumerate(n.x):
        n.copy(bits(n.y).select(axis, i), bits(part))


def _pads(n: Node) -> list[tuple[int, int]]:
    numbers = n.ints("paddings") if "paddings" in n.inputs else [p for row in n.paddings for p in row]
    rank = n.x.dim()
    if n.attr("paddings_contiguous", True):
        return [(numbers[2 * i], numbers[2 * i + 1]) for i in range(rank)]
    return [(numbers[i], numbers[rank + i]) for i in range(rank)]


@kernel("Pad", "PadD", "PadV2", "PadV3", "PadV3D", "MirrorPad")
def pad(n: Node) -> None:
    """Adds elements around a tensor; negative paddings take some away."""
    pads = _pads(n)
    mode = n.attr("mode", "constant").lower()
    if mode != "constant":
        n.run(_pad_from_inside, n.x, n.y, pads, mode)
        return
    x, y = bits(n.x), bits(n.y)
    value = n.inputs.get("constant_values")
    if any(before > 0 or after > 0 for before, after in pads):
        if value is None:
            n.call("fill_.Scalar", y, n.attr("constant_values", 0))
        else:
            n.copy(y, bits(value).reshape(()).expand(y.shape))
    for axis, (before, after) in enumerate(pads):
        size = x.shape[axis] + min(before, 0) + min(after, 0)
        x = x.narrow(axis, max(-before, 0), max(size, 0))
        y = y.narrow(axis, max(before, 0), max(size, 0))
    if x.numel():
        n.copy(y, x)


def _pad_from_inside(x: torch.Tensor, y: torch.Tensor, pads: list[tuple[int, int]], mode: str) -> None:
    result = bits(x)
    for axis, (before, after) in enumerate(pads):
        size = x.shape[axis]
        index = torch.arange(-before, size + after)
        if mode in ("reflect", "symmetric"):
            period = max(2 * (size - 1), 1) if mode == "reflect" else 2 * size
            index = index.remainder(period)
            index = torch.minimum(index, period - index if mode == "reflect" else period - 1 - index)
        elif mode == "circular":
            index = index.remainder(size)
        else:
            index = index.clamp(0, size - 1)
        result = result.index_select(axis, index)
    bits(y).copy_(result)


@kernel("ReverseV2", "ReverseV2D")
def reverse(n: Node) -> None:
    """Reverses dimensions."""
    n.call("flip", bits(n.x), n.ints("axis"), results=(bits(n.y),))


@kernel("Roll")
def roll(n: Node) -> None:
    """Moves elements around."""
    n.call("roll", bits(n.x), list(n.shifts), list(n.dims or []), results=(bits(n.y),))


def _numbers(n: Node, name: str) -> list[int] | None:
    if n.inputs.get(name) is None and name not in n.attrs:
        return None
    return n.ints(name)


@kernel("StridedSlice", "StridedSliceD", "StridedSliceV2")
def strided_slice(n: Node) -> None:
    """Slices with a step below zero; the others are views."""
    x, flipped = bits(n.x), []
    begin, end, steps = _numbers(n, "begin"), _numbers(n, "end"), _numbers(n, "strides")
    assert begin is not None and end is not None
    axes = _numbers(n, "axes") or list(range(len(begin)))
    for i, axis in enumerate(axes):
        axis %= x.dim()
        size, step = x.shape[axis], (steps or [1] * len(begin))[i]
        low, high = (0, size) if step > 0 else (-1, size - 1)
        first = (low if step > 0 else high) if n.attr("begin_mask", 0) >> i & 1 else _clamped(begin[i], size, low, high)
        last = (high if step > 0 else low) if n.attr("end_mask", 0) >> i & 1 else _clamped(end[i], size, low, high)
        count = max(0, -(-(last - first) // step))
        if step > 0:
            x = x.narrow(axis, first if count else 0, max(last - first, 0))[
                (slice(None),) * axis + (slice(None, None, step),)
            ]
        else:
            start = first + (count - 1) * step if count else 0
            x = x.narrow(axis, start, first - start + 1 if count else 0)
            x = x[(slice(None),) * axis + (slice(None, None, -step),)]
            flipped.append(axis)
    n.call("flip", x, flipped, results=(bits(n.y),))


def _clamped(position: int, size: int, low: int, high: int) -> int:
    return min(max(position + size if position < 0 else position, low), high)


@kernel("StridedSliceAssign", "StridedSliceAssignD")
def strided_slice_assign(n: Node) -> None:
    """Writes a part of a tensor."""
    y = bits(n.out)
    n.begin_as(n.inputs["var"])
    part = y
    begin, end, steps = _numbers(n, "begin"), _numbers(n, "end"), _numbers(n, "strides")
    assert begin is not None and end is not None
    for axis in range(len(begin)):
        size = y.shape[axis]
        first = 0 if n.attr("begin_mask", 0) >> axis & 1 else _clamped(begin[axis], size, 0, size)
        last = size if n.attr("end_mask", 0) >> axis & 1 else _clamped(end[axis], size, 0, size)
        step = steps[axis] if steps else 1
        part = part[(slice(None),) * axis + (slice(first, last, step),)]
    n.copy(part, bits(n.input_value).expand(part.shape))


@kernel("Slice")
def moving_slice(n: Node) -> None:
    """A window whose place is computed."""
    n.call("cann_emulator::window", bits(n.x), n.offsets, bits(n.y))


@kernel("Range", "RangeD")
def range_(n: Node) -> None:
    """Numbers at equal distances."""
    start, delta = n.start.reshape(-1)[0].item(), n.delta.reshape(-1)[0].item()
    count = n.y.numel()
    n.call("arange.start_step", 0, count, 1, dtype=torch.float64 if n.y.is_floating_point() else torch.int64,
           results=(n.y,))  # fmt: skip
    if delta != 1:
        n.call("mul_.Scalar", n.y, delta)
    if start != 0:
        n.call("add_.Scalar", n.y, start)


@kernel("Fill")
def fill(n: Node) -> None:
    """A tensor of one value."""
    n.copy(bits(n.y), bits(n.value).reshape(()).expand(n.y.shape))


@kernel("ZerosLike", "OnesLike")
def like(n: Node) -> None:
    """A tensor of zeros or ones."""
    n.call("fill_.Scalar", bits(n.y), int(n.type == "OnesLike"))


@kernel("Tril", "Triu")
def triangle(n: Node) -> None:
    """A triangle of matrices."""
    n.call("tril.out" if n.type == "Tril" else "triu.out", n.x, n.attr("diagonal", 0), out=n.y)
