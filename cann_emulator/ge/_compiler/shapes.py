"""Shape and dtype inference: for each operator what its outputs are, as CANN's own inference has it.

A rule gets the operation with its inputs bound and attributes complete, and returns (dtype, dims) for each output; a
list of them for a dynamic output.
"""

import math
from collections.abc import Callable
from typing import Any

from .ir import Operation
from .prototypes import SHORT

Facts = list[Any]
Rule = Callable[[Operation], Facts]
RULES: dict[str, Rule] = {}


def rule(*types: str) -> Callable[[Rule], Rule]:
    """Registers a rule for operators."""

    def register(function: Rule) -> Rule:
        for type in types:
            if type in RULES:
                raise ValueError(f"{type} has two shape rules")
            RULES[type] = function
        return function

    return register


def dtype_of(op: Operation, attr: str) -> str:
    """The dtype that an attribute names: a DataType, its number, or a default's short name."""
    from ..graph.types import DataType

    value = op.attrs[attr]
    if isinstance(value, str):
        return value
    try:
        return SHORT[DataType(value)]
    except (KeyError, ValueError):
        raise op.fault(f"attribute {attr} is {value}, no dtype that the emulator computes with") from None


def broadcast(op: Operation, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape of operands."""
    rank = max(map(len, shapes))
    result = [1] * rank
    for shape in shapes:
        for i, size in enumerate(shape, rank - len(shape)):
            if size != 1:
                if result[i] not in (1, size):
                    raise op.fault(f"shapes {' and '.join(str(list(s)) for s in shapes)} cannot be broadcast")
                result[i] = size
    return tuple(result)


def axis_of(op: Operation, axis: int, rank: int) -> int:
    """A dimension's index; negative ones count from the end."""
    if not -max(rank, 1) <= axis < max(rank, 1):
        raise op.fault(f"axis {axis} is outside of a tensor with {rank} dimensions")
    return axis % max(rank, 1)


def _first(op: Operation) -> str:
    return next(iter(op.inputs))


def same(op: Operation) -> Facts:
    """The output is as the first input."""
    name = _first(op)
    return [(op.dtype(name), op.dims(name))]


def binary(op: Operation) -> Facts:
    """The operands broadcast; the dtype is the first one's."""
    a, b = list(op.inputs)[:2]
    return [(op.dtype(a), broadcast(op, op.dims(a), op.dims(b)))]


def compare(op: Operation) -> Facts:
    """As `binary`, and the output is bool."""
    return [("bool", binary(op)[0][1])]


rule(
    "Identity", "TensorMove", "Neg", "Abs", "Sign", "Square", "Sqrt", "Rsqrt", "Reciprocal", "Inv", "Exp", "Expm1",
    "Log", "Log1p", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Tanh", "Asinh", "Acosh", "Atanh",
    "Erf", "Erfc", "Erfinv", "Sigmoid", "Floor", "Ceil", "Trunc", "Rint", "Round", "Relu", "Invert", "LogicalNot",
    "Gelu", "GeluV2", "Softplus", "SoftplusV2", "Swish", "Elu", "BesselI0e", "BesselI1e", "Ndtri", "Logit", "Mish",
    "HardSwish", "LeakyRelu", "ZerosLike", "OnesLike", "Conj", "Muls", "Adds", "Cumsum", "CumsumD", "Cumprod",
    "CumprodD", "CumulativeLogsumexp", "SoftmaxV2", "LogSoftmaxV2", "Fills", "ReverseV2", "ReverseV2D", "Roll",
    "Cholesky", "MatrixInverse", "Tril", "Triu", "FFT", "IFFT", "FFT2D", "IFFT2D", "TensorScatterUpdate",
    "TensorScatterAdd", "TensorScatterSub", "TensorScatterMax", "TensorScatterMin", "ScatterNdUpdate", "ScatterNdAdd",
    "ScatterNdSub", "ScatterNdMax", "ScatterNdMin", "ScatterElements", "ScatterElementsV2", "ScatterUpdate",
    "ScatterAdd", "ScatterSub", "ScatterMul", "ScatterDiv", "ScatterMax", "ScatterMin", "StridedSliceAssign",
    "StridedSliceAssignD", "BNInfer",

)(same)  # fmt: skip
rule(
    "Add", "AddV2", "Sub", "Mul", "RealDiv", "Div", "DivNoNan", "FloorDiv", "FloorMod", "TruncateDiv", "TruncateMod",
    "Mod", "Maximum", "Minimum", "Pow", "Atan2", "SquaredDifference", "BitwiseAnd", "BitwiseOr", "BitwiseXor",
    "LeftShift", "RightShift", "Xdivy", "Xlogy", "NextAfter", "Igamma", "Igammac", "Zeta", "Axpy", "MulNoNan",
)(binary)  # fmt: skip
rule("Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual", "LogicalAnd", "LogicalOr")(compare)


@rule("IsNan", "IsInf", "IsFinite", "IsPosInf", "IsNegInf")
def _truth(op: Operation) -> Facts:
    return [("bool", op.dims(_first(op)))]


@rule("PopulationCount")
def _population_count(op: Operation) -> Facts:
    return [("u8", op.dims("x"))]


@rule("IdentityN")
def _identity_n(op: Operation) -> Facts:
    return [[(value.dtype, value.dims) for value in op.many("x")]]


@rule("AddN", "AccumulateNV2")
def _add_n(op: Operation) -> Facts:
    values = op.many("x")
    return [(values[0].dtype, values[0].dims)]


@rule("SelectV2")
def _select_v2(op: Operation) -> Facts:
    shape = broadcast(op, op.dims("condition"), op.dims("then"), op.dims("else"))
    return [(op.dtype("then"), shape)]


@rule("Select")
def _select(op: Operation) -> Facts:
    # The condition has the operands' shape, is a scalar, or a vector over the first dimension.
    first, condition = op.dims("x1"), op.dims("condition")
    if condition not in ((), (1,), first, first[:1]) or op.dims("x2") != first:
        raise op.fault(f"condition {list(condition)} does not fit operands {list(first)} and {list(op.dims('x2'))}")
    return [(op.dtype("x1"), first)]


@rule("ClipByValue", "ClipByValueV2")
def _clip(op: Operation) -> Facts:
    names = list(op.inputs)
    return [(op.dtype(names[0]), broadcast(op, *(op.dims(name) for name in names)))]


@rule("Cast")
def _cast(op: Operation) -> Facts:
    return [(dtype_of(op, "dst_type"), op.dims("x"))]


@rule("Bitcast")
def _bitcast(op: Operation) -> Facts:
    from .prototypes import BYTES

    target, dims = dtype_of(op, "type"), op.dims("x")
    before, after = BYTES[op.dtype("x")], BYTES[target]
    if before != after and op.attrs.get("keep_dim"):
        raise op.fault("keep_dim needs dtypes of the same size")
    if before == after:
        return [(target, dims)]
    if before > after:
        return [(target, (*dims, before // after))]
    if not dims or dims[-1] * before != after:
        raise op.fault(f"the last dimension of {list(dims)} must be {after // before} to make one {target}")
    return [(target, dims[:-1])]


@rule("Complex", "ComplexV2")
def _complex(op: Operation) -> Facts:
    target = {"f16": "c32", "f32": "c64", "f64": "c128"}[op.dtype("real")]
    return [(target, broadcast(op, op.dims("real"), op.dims("imag")))]


@rule("Real", "Imag", "ComplexAbs", "Angle")
def _part(op: Operation) -> Facts:
    name = _first(op)
    dtype = op.dtype(name)
    return [({"c32": "f16", "c64": "f32", "c128": "f64"}.get(dtype, dtype), op.dims(name))]


@rule("Fill")
def _fill(op: Operation) -> Facts:
    return [(op.dtype("value"), tuple(op.ints("dims")))]


# ---- shape --------------------------------------------------------------------------------------------------------


@rule("Reshape")
def _reshape(op: Operation) -> Facts:
    wanted, dims = op.ints("shape"), op.dims("x")
    axis, end = op.attrs.get("axis", 0), op.attrs.get("num_axes", -1)
    if axis or end != -1:
        axis = axis_of(op, axis, len(dims) + 1)
        stop = len(dims) if end == -1 else axis + end
        wanted = [*dims[:axis], *wanted, *dims[stop:]]
    elif not op.attrs.get("allowzero"):
        wanted = [dims[i] if size == 0 and i < len(dims) and 0 not in dims else size for i, size in enumerate(wanted)]
    count, known = math.prod(dims), math.prod(size for size in wanted if size != -1)
    if wanted.count(-1) > 1 or (-1 in wanted and (known == 0 or count % known)):
        raise op.fault(f"{list(dims)} cannot be reshaped to {wanted}")
    result = tuple(count // known if size == -1 else size for size in wanted)
    if math.prod(result) != count:
        raise op.fault(f"{list(dims)} ({count} elements) cannot be reshaped to {wanted}")
    return [(op.dtype("x"), result)]


@rule("Squeeze", "SqueezeV2", "SqueezeV3")
def _squeeze(op: Operation) -> Facts:
    dims = op.dims("x")
    axes: list[int] = op.attrs.get("axis") or op.attrs.get("axes") or []
    if op.inputs.get("axes") is not None:
        axes = op.ints("axes")
    chosen = {axis_of(op, axis, len(dims)) for axis in axes} or {i for i, size in enumerate(dims) if size == 1}
    if any(dims[i] != 1 for i in chosen):
        raise op.fault(f"dimensions {sorted(chosen)} of {list(dims)} are not all 1")
    return [(op.dtype("x"), tuple(size for i, size in enumerate(dims) if i not in chosen))]


@rule("Unsqueeze", "UnsqueezeV2", "UnsqueezeV3", "ExpandDims")
def _unsqueeze(op: Operation) -> Facts:
    dims = list(op.dims("x"))
    for port in ("axis", "axes"):
        if op.inputs.get(port) is not None:
            axes = op.ints(port)
            break
    else:
        axes = op.attrs.get("axes") or op.attrs["axis"]
    rank = len(dims) + len(axes)
    for axis in sorted(axis_of(op, axis, rank) for axis in axes):
        dims.insert(axis, 1)
    return [(op.dtype("x"), tuple(dims))]


@rule("FlattenV2")
def _flatten(op: Operation) -> Facts:
    dims = op.dims("x")
    first, last = axis_of(op, op.attrs["axis"], len(dims)), axis_of(op, op.attrs["end_axis"], len(dims))
    return [(op.dtype("x"), (*dims[:first], math.prod(dims[first : last + 1]), *dims[last + 1 :]))]


def permutation(op: Operation) -> list[int]:
    """The order of dimensions of a Transpose."""
    perm = op.ints("perm") if "perm" in op.inputs else list(op.attrs["perm"])
    rank = len(op.dims("x"))
    perm = [axis_of(op, axis, rank) for axis in perm]
    if sorted(perm) != list(range(rank)):
        raise op.fault(f"perm {perm} is no order of {rank} dimensions")
    return perm


@rule("Transpose", "TransposeD")
def _transpose(op: Operation) -> Facts:
    return [(op.dtype("x"), tuple(op.dims("x")[axis] for axis in permutation(op)))]


@rule("BroadcastTo")
def _broadcast_to(op: Operation) -> Facts:
    dims, wanted = op.dims("x"), op.ints("shape")
    padded = (1,) * (len(wanted) - len(dims)) + dims
    wanted = [have if want == -1 else want for want, have in zip(wanted, padded, strict=False)]
    if len(padded) != len(wanted) or any(have not in (1, want) for want, have in zip(wanted, padded, strict=True)):
        raise op.fault(f"{list(dims)} cannot be broadcast to {wanted}")
    return [(op.dtype("x"), tuple(wanted))]


@rule("Tile", "TileD")
def _tile(op: Operation) -> Facts:
    dims = op.dims("x")
    times = op.ints("multiples") if "multiples" in op.inputs else list(op.attrs["multiples"])
    rank = max(len(dims), len(times))
    dims = (1,) * (rank - len(dims)) + dims
    times = [1] * (rank - len(times)) + times
    return [(op.dtype("x"), tuple(size * by for size, by in zip(dims, times, strict=True)))]


def concat_axis(op: Operation) -> int:
    """The dimension that a concatenation grows."""
    axis = op.ints("concat_dim")[0] if "concat_dim" in op.inputs else op.attrs["concat_dim"]
    return axis_of(op, axis, len(op.many("x")[0].dims))


@rule("Concat", "ConcatD", "ConcatV2", "ConcatV2D")
def _concat(op: Operation) -> Facts:
    values, axis = op.many("x"), concat_axis(op)
    first = values[0]
    for value in values:
        rest = value.dims[:axis] + value.dims[axis + 1 :]
        if rest != first.dims[:axis] + first.dims[axis + 1 :] or value.dtype != first.dtype:
            raise op.fault(f"{list(value.dims)} {value.dtype} cannot be joined to {list(first.dims)} {first.dtype}")
    total = sum(value.dims[axis] for value in values)
    return [(first.dtype, (*first.dims[:axis], total, *first.dims[axis + 1 :]))]


def split_sizes(op: Operation) -> tuple[int, list[int]]:
    """The dimension that a split cuts, and the sizes of the parts."""
    dims = op.dims("x")
    axis = op.ints("split_dim")[0] if "split_dim" in op.inputs else op.attrs["split_dim"]
    axis, count = axis_of(op, axis, len(dims)), op.attrs["num_split"]
    sizes = op.ints("size_splits") if "size_splits" in op.inputs else op.attrs.get("size_splits")
    if sizes is None:
        if count <= 0 or dims[axis] % count:
            raise op.fault(f"dimension {axis} of {list(dims)} cannot be cut into {count} parts")
        return axis, [dims[axis] // count] * count
    sizes = list(sizes)
    if -1 in sizes:
        sizes[sizes.index(-1)] = dims[axis] - sum(size for size in sizes if size >= 0)
    if sum(sizes) != dims[axis]:
        raise op.fault(f"parts of {sizes} are not {dims[axis]}")
    return axis, sizes


@rule("Split", "SplitD", "SplitV", "SplitVD")
def _split(op: Operation) -> Facts:
    axis, sizes = split_sizes(op)
    dims = op.dims("x")
    return [[(op.dtype("x"), (*dims[:axis], size, *dims[axis + 1 :])) for size in sizes]]


@rule("Pack")
def _pack(op: Operation) -> Facts:
    values = op.many("x")
    first = values[0]
    if any(value.dims != first.dims or value.dtype != first.dtype for value in values):
        raise op.fault(f"operands of shapes {[list(value.dims) for value in values]} cannot be packed")
    axis = axis_of(op, op.attrs.get("axis", 0), len(first.dims) + 1)
    return [(first.dtype, (*first.dims[:axis], len(values), *first.dims[axis:]))]


@rule("Unpack")
def _unpack(op: Operation) -> Facts:
    dims = op.dims("x")
    axis = axis_of(op, op.attrs.get("axis", 0), len(dims))
    if op.attrs["num"] != dims[axis]:
        raise op.fault(f"num is {op.attrs['num']}, dimension {axis} is {dims[axis]}")
    return [[(op.dtype("x"), dims[:axis] + dims[axis + 1 :])] * dims[axis]]


@rule("Slice", "SliceD")
def _slice(op: Operation) -> Facts:
    dims = op.dims("x")
    sizes = op.ints("size") if "size" in op.inputs else list(op.attrs["size"])
    offsets = None
    if "offsets" not in op.inputs:
        offsets = list(op.attrs["offsets"])
    elif op.inputs["offsets"].data is not None:  # type: ignore[union-attr]
        offsets = op.ints("offsets")
    if len(sizes) != len(dims) or (offsets is not None and len(offsets) != len(dims)):
        raise op.fault(f"size {sizes} does not fit {list(dims)}")
    if offsets is None:  # a window that moves at run time
        result = [dims[i] if size == -1 else size for i, size in enumerate(sizes)]
    else:
        result = [dims[i] - offsets[i] if size == -1 else size for i, size in enumerate(sizes)]
        if any(begin < 0 or begin + size > have for begin, size, have in zip(offsets, result, dims, strict=True)):
            raise op.fault(f"the part at {offsets} of size {sizes} lies outside of {list(dims)}")
    if any(size < 0 or size > have for size, have in zip(result, dims, strict=True)):
        raise op.fault(f"a part of size {sizes} does not fit {list(dims)}")
    return [(op.dtype("x"), tuple(result))]


def slice_plan(op: Operation) -> tuple[list[tuple[int, int, int] | None], tuple[int, ...]]:
    """A strided slice: (begin, step, count) for each dimension of x, and the output's shape."""
    dims = op.dims("x")
    if op.type == "StridedSliceV2":
        return _slice_plan_v2(op, dims)

    def numbers(name: str) -> list[int]:
        return op.ints(name) if name in op.inputs else list(op.attrs[name])

    begin, end = numbers("begin"), numbers("end")
    steps = numbers("strides") if op.inputs.get("strides") is not None or "strides" in op.attrs else [1] * len(begin)
    masks = {name: op.attrs.get(f"{name}_mask", 0) for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    cuts: list[tuple[int, int, int] | None] = []
    result: list[int] = []
    d = 0
    taken = sum(1 for i in range(len(begin)) if not masks["new_axis"] >> i & 1 and not masks["ellipsis"] >> i & 1)
    for i in range(len(begin)):
        if masks["ellipsis"] >> i & 1:
            for _ in range(len(dims) - taken):
                cuts.append((0, 1, dims[d]))
                result.append(dims[d])
                d += 1
        elif masks["new_axis"] >> i & 1:
            result.append(1)
        else:
            if d >= len(dims):
                raise op.fault(f"begin {begin} has more entries than {list(dims)} has dimensions")
            cut, size = _cut(op, begin[i], end[i], steps[i], dims[d], masks, i)
            cuts.append(cut)
            if size is not None:
                result.append(size)
            d += 1
    for size in dims[d:]:
        cuts.append((0, 1, size))
        result.append(size)
    return cuts, tuple(result)


def _cut(
    op: Operation, begin: int, end: int, step: int, size: int, masks: dict[str, int], i: int
) -> tuple[tuple[int, int, int], int | None]:
    if step == 0:
        raise op.fault("a stride is 0")
    if masks["shrink_axis"] >> i & 1:
        at = begin + size if begin < 0 else begin
        if not 0 <= at < size:
            raise op.fault(f"index {begin} is outside of a dimension of {size}")
        return (at, 1, 1), None
    low, high = (0, size) if step > 0 else (-1, size - 1)
    first = (low if step > 0 else high) if masks["begin"] >> i & 1 else _clamp(begin, size, low, high)
    last = (high if step > 0 else low) if masks["end"] >> i & 1 else _clamp(end, size, low, high)
    count = max(0, -(-(last - first) // step))
    return (first, step, count), count


def _clamp(position: int, size: int, low: int, high: int) -> int:
    return min(max(position + size if position < 0 else position, low), high)


def _slice_plan_v2(op: Operation, dims: tuple[int, ...]) -> tuple[list[tuple[int, int, int] | None], tuple[int, ...]]:
    begin, end = op.ints("begin"), op.ints("end")
    axes = op.ints("axes") if op.inputs.get("axes") is not None else list(range(len(begin)))
    steps = op.ints("strides") if op.inputs.get("strides") is not None else [1] * len(begin)
    cuts: list[tuple[int, int, int] | None] = [(0, 1, size) for size in dims]
    masks = {"begin": 0, "end": 0, "shrink_axis": 0}
    for i, axis in enumerate(axes):
        axis = axis_of(op, axis, len(dims))
        cuts[axis] = _cut(op, begin[i], end[i], steps[i], dims[axis], masks, i)[0]
    return cuts, tuple(cut[2] for cut in cuts if cut is not None)


@rule("StridedSlice", "StridedSliceD", "StridedSliceV2")
def _strided_slice(op: Operation) -> Facts:
    return [(op.dtype("x"), slice_plan(op)[1])]


def paddings(op: Operation) -> list[tuple[int, int]]:
    """(before, after) for each dimension."""
    rank = len(op.dims("x"))
    given = op.ints("paddings") if "paddings" in op.inputs else op.attrs["paddings"]
    numbers = [n for row in given for n in (row if isinstance(row, list) else [row])]
    if len(numbers) != 2 * rank:
        raise op.fault(f"paddings has {len(numbers)} entries for {rank} dimensions")
    if op.attrs.get("paddings_contiguous", True):
        return [(numbers[2 * i], numbers[2 * i + 1]) for i in range(rank)]
    return [(numbers[i], numbers[rank + i]) for i in range(rank)]


@rule("Pad", "PadD", "PadV2", "PadV3", "PadV3D", "MirrorPad")
def _pad(op: Operation) -> Facts:
    dims = tuple(size + sum(pads) for size, pads in zip(op.dims("x"), paddings(op), strict=True))
    if any(size < 0 for size in dims):
        raise op.fault(f"padding {paddings(op)} leaves nothing of {list(op.dims('x'))}")
    return [(op.dtype("x"), dims)]


@rule("Range", "RangeD")
def _range(op: Operation) -> Facts:
    values = []
    for name in ("start", "limit", "delta"):
        value = op.inputs[name]
        if value.data is None:  # type: ignore[union-attr]
            op.ints(name)  # raises
        values.append(value.array().reshape(-1)[0].item())  # type: ignore[union-attr]
    start, limit, delta = values
    if delta == 0:
        raise op.fault("delta is 0")
    return [(op.dtype("start"), (max(0, math.ceil((limit - start) / delta)),))]


@rule("Diag", "MatrixDiag")
def _diag(op: Operation) -> Facts:
    name = _first(op)
    dims = op.dims(name)
    return [(op.dtype(name), (*dims, *dims) if op.type == "Diag" else (*dims, dims[-1]))]


@rule("DiagPart", "MatrixDiagPart")
def _diag_part(op: Operation) -> Facts:
    name = _first(op)
    dims = op.dims(name)
    half = dims[: len(dims) // 2] if op.type == "DiagPart" else (*dims[:-2], min(dims[-2:]))
    return [(op.dtype(name), half)]


@rule("Eye")
def _eye(op: Operation) -> Facts:
    rows = op.attrs["num_rows"]
    columns = op.attrs.get("num_columns") or rows
    return [(dtype_of(op, "dtype"), (*op.attrs.get("batch_shape", []), rows, columns))]


# ---- gather and scatter -------------------------------------------------------------------------------------------


@rule("Gather")
def _gather(op: Operation) -> Facts:
    return [(op.dtype("x"), (*op.dims("indices"), *op.dims("x")[1:]))]


@rule("GatherV2", "GatherV2D")
def _gather_v2(op: Operation) -> Facts:
    dims, indices = op.dims("x"), op.dims("indices")
    axis = op.ints("axis")[0] if "axis" in op.inputs else op.attrs["axis"]
    axis, batch = axis_of(op, axis, len(dims)), op.attrs.get("batch_dims", 0)
    batch = batch + len(indices) if batch < 0 else batch
    return [(op.dtype("x"), (*dims[:axis], *indices[batch:], *dims[axis + 1 :]))]


@rule("GatherNd")
def _gather_nd(op: Operation) -> Facts:
    dims, indices = op.dims("x"), op.dims("indices")
    depth = indices[-1]
    if depth > len(dims):
        raise op.fault(f"indices of {depth} numbers do not fit {list(dims)}")
    return [(op.dtype("x"), (*indices[:-1], *dims[depth:]))]


@rule("GatherElements")
def _gather_elements(op: Operation) -> Facts:
    return [(op.dtype("x"), op.dims("index"))]


@rule("ScatterNd")
def _scatter_nd(op: Operation) -> Facts:
    return [(op.dtype("x"), tuple(op.ints("shape")))]


@rule("OneHot", "OneHotD")
def _one_hot(op: Operation) -> Facts:
    dims = op.dims("x")
    depth = op.ints("depth")[0] if "depth" in op.inputs else op.attrs["depth"]
    axis = op.attrs.get("axis", -1)
    axis = len(dims) if axis == -1 else axis
    return [(op.dtype("on_value"), (*dims[:axis], depth, *dims[axis:]))]


# ---- reductions ---------------------------------------------------------------------------------------------------


def reduced_axes(op: Operation) -> list[int]:
    """The dimensions that a reduction takes away."""
    rank = len(op.dims(_first(op)))
    given = op.ints("axes") if "axes" in op.inputs else op.attrs["axes"]
    if not given and not op.attrs.get("noop_with_empty_axes", False):
        given = list(range(rank))
    return sorted({axis_of(op, axis, rank) for axis in given}) if rank else []


def reduced(dims: tuple[int, ...], axes: list[int], keep: bool) -> tuple[int, ...]:
    """A shape without some dimensions, or with size 1 in their place."""
    return tuple(1 if i in axes else size for i, size in enumerate(dims) if keep or i not in axes)


@rule(
    "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceMean", "ReduceSumD", "ReduceMaxD", "ReduceMinD",
    "ReduceProdD", "ReduceMeanD", "ReduceAll", "ReduceAny", "ReduceAllD", "ReduceAnyD", "ReduceLogSumExp",
    "ReduceLogSum",
)  # fmt: skip
def _reduce(op: Operation) -> Facts:
    name = _first(op)
    dtype = "i64" if op.type == "ReduceSum" and op.dtype(name) == "bool" else op.dtype(name)
    return [(dtype, reduced(op.dims(name), reduced_axes(op), op.attrs.get("keep_dims", False)))]


@rule("ArgMaxV2", "ArgMin", "ArgMaxD", "ArgMinD")
def _arg(op: Operation) -> Facts:
    dims = op.dims("x")
    axis = op.ints("dimension")[0] if "dimension" in op.inputs else op.attrs["dimension"]
    return [(dtype_of(op, "dtype"), reduced(dims, [axis_of(op, axis, len(dims))], False))]


@rule("ArgMaxWithValue", "ArgMinWithValue")
def _arg_with_value(op: Operation) -> Facts:
    dims = op.dims("x")
    result = reduced(dims, [axis_of(op, op.attrs["dimension"], len(dims))], op.attrs.get("keep_dims", False))
    return [("i32", result), (op.dtype("x"), result)]


@rule("Cummax", "Cummin")
def _cum_with_index(op: Operation) -> Facts:
    return [(op.dtype("x"), op.dims("x")), ("i64", op.dims("x"))]


@rule("L2Loss")
def _l2_loss(op: Operation) -> Facts:
    return [(op.dtype(_first(op)), ())]


# ---- matrices -----------------------------------------------------------------------------------------------------


def transposed(op: Operation) -> tuple[bool, bool]:
    """Whether a matrix product's operands are transposed."""
    names = ("transpose_x1", "transpose_x2") if "transpose_x1" in op.attrs else ("adj_x1", "adj_x2")
    return bool(op.attrs.get(names[0])), bool(op.attrs.get(names[1]))


@rule("MatMul", "MatMulV2", "MatMulV3", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def _matmul(op: Operation) -> Facts:
    a, b = op.dims("x1"), op.dims("x2")
    if len(a) < 2 or len(b) < 2 or (op.type.startswith("Mat") and (len(a) != 2 or len(b) != 2)):
        raise op.fault(f"operands {list(a)} and {list(b)} are no matrices")
    flip_a, flip_b = transposed(op)
    m, k = (a[-1], a[-2]) if flip_a else a[-2:]
    k2, n = (b[-1], b[-2]) if flip_b else b[-2:]
    if k != k2:
        raise op.fault(f"{list(a)} and {list(b)} (transposed: {flip_a}, {flip_b}) share no inner dimension")
    dtype = "i32" if op.dtype("x1") == "i8" else op.dtype("x1")
    return [(dtype, (*broadcast(op, a[:-2], b[:-2]), m, n))]


@rule("Einsum")
def _einsum(op: Operation) -> Facts:
    equation = op.attrs["equation"].replace(" ", "")
    terms, _, result = equation.partition("->")
    sizes: dict[str, int] = {}
    for term, value in zip(terms.split(","), op.many("x"), strict=True):
        if len(term) != len(value.dims):
            raise op.fault(f"{term} does not fit {list(value.dims)}")
        for letter, size in zip(term, value.dims, strict=True):
            if sizes.setdefault(letter, size) != size:
                raise op.fault(f"dimension {letter} is {sizes[letter]} and {size}")
    return [(op.many("x")[0].dtype, tuple(sizes[letter] for letter in result))]


def layout(op: Operation) -> str:
    """The order of dimensions, "NCHW"."""
    return op.attrs.get("data_format", "NHWC")


def spatial(values: list[int], order: str) -> list[int]:
    """The entries of a window attribute for D, H, W: it has those of all dimensions, or of the spatial ones alone."""
    letters = [letter for letter in "DHW" if letter in order]
    if len(values) == len(order):
        return [values[order.index(letter)] for letter in letters]
    return list(values) * (len(letters) // len(values)) if len(values) in (1, len(letters)) else list(values)


def _conv_filter(order: str) -> str:
    return {"NCHW": "NCHW", "NHWC": "HWCN", "NCDHW": "NCDHW", "NDHWC": "DHWCN"}[order]


@rule("Conv2D", "Conv2DV2", "Conv3D", "Conv3DV2")
def _conv(op: Operation) -> Facts:
    order = layout(op)
    x = dict(zip(order, op.dims("x"), strict=True))
    w = dict(zip(_conv_filter(order), op.dims("filter"), strict=True))
    strides, dilations = spatial(op.attrs["strides"], order), spatial(op.attrs["dilations"], order)
    pads, groups = op.attrs["pads"], op.attrs.get("groups", 1)
    if x["C"] != w["C"] * groups:
        raise op.fault(f"x has {x['C']} channels, the filter {w['C']} in each of {groups} groups")
    result = {"N": x["N"], "C": w["N"]}
    for i, letter in enumerate(letter for letter in "DHW" if letter in order):
        window = (w[letter] - 1) * dilations[i] + 1
        result[letter] = (x[letter] + pads[2 * i] + pads[2 * i + 1] - window) // strides[i] + 1
        if result[letter] < 0:
            raise op.fault(f"a window of {window} does not fit dimension {letter} of {list(op.dims('x'))}")
    return [(op.dtype("x") if op.dtype("x") != "i8" else "i32", tuple(result[letter] for letter in order))]


@rule("Conv2DTranspose", "Conv3DTranspose", "Conv2DBackpropInput", "Conv3DBackpropInput")
def _conv_transpose(op: Operation) -> Facts:
    name = "x" if "x" in op.inputs else "out_backprop"
    return [(op.dtype(name), tuple(op.ints("input_size")))]


@rule("Conv2DBackpropFilter", "Conv3DBackpropFilter")
def _conv_filter_grad(op: Operation) -> Facts:
    return [("f32", tuple(op.ints("filter_size")))]


@rule("Conv2DTransposeD", "Conv2DBackpropInputD")
def _conv_transpose_d(op: Operation) -> Facts:
    name = "x" if "x" in op.inputs else "out_backprop"
    return [(op.dtype(name), tuple(op.attrs["input_size"]))]


@rule("Conv2DBackpropFilterD")
def _conv_filter_grad_d(op: Operation) -> Facts:
    return [("f32", tuple(op.attrs["filter_size"]))]


def pool_plan(op: Operation) -> tuple[str, list[int], list[int], list[int]]:
    """Layout, window, strides and paddings of a pooling."""
    order = op.attrs.get("data_format", "NDHWC" if op.type.endswith("3D") else "NHWC")
    window, strides = spatial(op.attrs["ksize"], order), spatial(op.attrs["strides"], order)
    mode = op.attrs.get("padding_mode") or op.attrs.get("padding") or "CALCULATED"
    dims = dict(zip(order, op.dims("x"), strict=True))
    letters = [letter for letter in "DHW" if letter in order]
    if op.attrs.get("global_pooling"):
        window = strides = [dims[letter] for letter in letters]
    if mode == "VALID":
        return order, window, strides, [0] * (2 * len(window))
    if mode == "SAME":
        pads = []
        for letter, size, step in zip(letters, window, strides, strict=True):
            whole = max(0, (-(-dims[letter] // step) - 1) * step + size - dims[letter])
            pads += [whole // 2, whole - whole // 2]
        return order, window, strides, pads
    pads = list(op.attrs.get("pads") or [0] * (2 * len(window)))
    return order, window, strides, pads


@rule("MaxPoolV3", "MaxPool3D", "AvgPoolV2", "AvgPool3D", "MaxPool", "AvgPool")
def _pool(op: Operation) -> Facts:
    order, window, strides, pads = pool_plan(op)
    dims = dict(zip(order, op.dims("x"), strict=True))
    for i, letter in enumerate(letter for letter in "DHW" if letter in order):
        free = dims[letter] + pads[2 * i] + pads[2 * i + 1] - window[i]
        dims[letter] = (-(-free // strides[i]) if op.attrs.get("ceil_mode") else free // strides[i]) + 1
    return [(op.dtype("x"), tuple(dims[letter] for letter in order))]


@rule("Sort")
def _sort(op: Operation) -> Facts:
    return [
        (op.dtype("x"), op.dims("x")),
        (dtype_of(op, "y2_dtype") if "y2_dtype" in op.attrs else "i32", op.dims("x")),
    ]


@rule("SortWithIndex")
def _sort_with_index(op: Operation) -> Facts:
    return [(op.dtype("x"), op.dims("x")), (op.dtype("index"), op.dims("x"))]


@rule("TopKV2", "TopK")
def _top_k(op: Operation) -> Facts:
    dims, k = list(op.dims("x")), op.ints("k")[0]
    axis = axis_of(op, op.attrs.get("dim", -1), len(dims))
    if not 0 <= k <= dims[axis]:
        raise op.fault(f"k is {k}, dimension {axis} is {dims[axis]}")
    dims[axis] = k
    indices = dtype_of(op, "indices_dtype") if "indices_dtype" in op.attrs else "i32"
    return [(op.dtype("x"), tuple(dims)), (indices, tuple(dims))]


@rule("MatrixTriangularSolve", "MatrixSolve")
def _solve(op: Operation) -> Facts:
    a, b = op.dims("matrix"), op.dims("rhs")
    if len(a) < 2 or a[-1] != a[-2] or b[-2] != a[-1]:
        raise op.fault(f"matrix {list(a)} and right side {list(b)} do not fit")
    return [(op.dtype("rhs"), (*broadcast(op, a[:-2], b[:-2]), *b[-2:]))]


@rule("MatrixDeterminant")
def _determinant(op: Operation) -> Facts:
    return [(op.dtype("x"), op.dims("x")[:-2])]


@rule("Qr")
def _qr(op: Operation) -> Facts:
    *batch, m, n = op.dims("x")
    k = m if op.attrs.get("full_matrices") else min(m, n)
    rows = m if op.attrs.get("full_matrices") else k
    return [(op.dtype("x"), (*batch, m, k)), (op.dtype("x"), (*batch, rows, n))]


@rule("Svd")
def _svd(op: Operation) -> Facts:
    *batch, m, n = op.dims("x")
    k = min(m, n)
    dtype = op.dtype("x")
    if not op.attrs.get("compute_uv", True):
        return [(dtype, (*batch, k)), (dtype, (0,)), (dtype, (0,))]
    full = op.attrs.get("full_matrices", False)
    return [(dtype, (*batch, k)), (dtype, (*batch, m, m if full else k)), (dtype, (*batch, n, n if full else k))]


@rule("SelfAdjointEig")
def _eig(op: Operation) -> Facts:
    dims = op.dims("x")
    vectors = dims if op.attrs.get("compute_v", True) else (0,)
    return [(op.dtype("x"), dims[:-1]), (op.dtype("x"), vectors)]


@rule("Lu")
def _lu(op: Operation) -> Facts:
    name = _first(op)
    return [(op.dtype(name), op.dims(name)), (dtype_of(op, "output_idx_type"), op.dims(name)[:-1])]


@rule("RFFT", "IRFFT")
def _rfft(op: Operation) -> Facts:
    name = _first(op)
    dims, length = op.dims(name), op.ints("fft_length")[-1]
    if op.type == "RFFT":
        return [({"f32": "c64", "f64": "c128"}[op.dtype(name)], (*dims[:-1], length // 2 + 1))]
    return [({"c64": "f32", "c128": "f64"}[op.dtype(name)], (*dims[:-1], length))]


@rule("RandomUniform", "RandomStandardNormal", "StatelessRandomUniformV2", "StatelessRandomNormalV2")
def _random(op: Operation) -> Facts:
    return [(dtype_of(op, "dtype"), tuple(op.ints("shape")))]


@rule("RandomUniformInt")
def _random_int(op: Operation) -> Facts:
    return [(op.dtype("minval" if "minval" in op.inputs else "min"), tuple(op.ints("shape")))]


@rule("BatchNorm")
def _batch_norm(op: Operation) -> Facts:
    statistic = ("f32", op.dims("scale"))
    return [(op.dtype("x"), op.dims("x")), *[statistic] * 4, ("f32", (1,))]


@rule("LayerNorm")
def _layer_norm(op: Operation) -> Facts:
    dims = op.dims("x")
    axis = axis_of(op, op.attrs.get("begin_norm_axis", 0), len(dims))
    statistic = (*dims[:axis], *[1] * (len(dims) - axis))
    return [(op.dtype("x"), dims), (op.dtype("x"), statistic), (op.dtype("x"), statistic)]


@rule("RmsNorm")
def _rms_norm(op: Operation) -> Facts:
    dims, rank = op.dims("x"), len(op.dims("gamma"))
    return [(op.dtype("x"), dims), ("f32", (*dims[: len(dims) - rank], *[1] * rank))]
