"""Chains of elementwise operators become one operation that passes over memory once (Graph Engine's AutoFuse)."""

from collections.abc import Callable

from .ir import Block, Operation, Value
from .prototypes import BYTES

_FLOATS = frozenset({"f32", "f64", "f16", "bf16"})
_INTEGERS = frozenset({"i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"})
_NUMBERS = _FLOATS | _INTEGERS
_ALL = _NUMBERS | {"bool"}

# GE operator -> (the native kernel, the dtypes that it has).
KERNELS: dict[str, tuple[str, frozenset[str]]] = {
    "Add": ("add", _NUMBERS), "AddV2": ("add", _NUMBERS), "Sub": ("sub", _NUMBERS), "Mul": ("mul", _NUMBERS),
    "RealDiv": ("div", _FLOATS), "Div": ("div", _FLOATS), "FloorDiv": ("fdiv", _NUMBERS),
    "TruncateDiv": ("tdiv", _NUMBERS), "FloorMod": ("fmod", _NUMBERS), "TruncateMod": ("tmod", _NUMBERS),
    "Mod": ("tmod", _NUMBERS), "Maximum": ("max", _NUMBERS), "Minimum": ("min", _NUMBERS), "Equal": ("eq", _ALL),
    "NotEqual": ("ne", _ALL), "Less": ("lt", _ALL), "LessEqual": ("le", _ALL), "Greater": ("gt", _ALL),
    "GreaterEqual": ("ge", _ALL), "LogicalAnd": ("and", frozenset({"bool"})),
    "LogicalOr": ("or", frozenset({"bool"})), "LogicalNot": ("not", frozenset({"bool"})),
    "BitwiseAnd": ("and", _INTEGERS), "BitwiseOr": ("or", _INTEGERS), "BitwiseXor": ("xor", _INTEGERS),
    "Invert": ("not", _INTEGERS), "LeftShift": ("shl", _INTEGERS), "RightShift": ("shr", _INTEGERS),
    "PopulationCount": ("popcount", _INTEGERS), "Neg": ("neg", _NUMBERS), "Abs": ("abs", _NUMBERS),
    "Sign": ("sign", _NUMBERS), "Square": ("square", _NUMBERS), "Relu": ("relu", _NUMBERS), "Sqrt": ("sqrt", _FLOATS),
    "Rsqrt": ("rsqrt", _FLOATS), "Reciprocal": ("reciprocal", _FLOATS), "Inv": ("reciprocal", _FLOATS),
    "Floor": ("floor", _FLOATS), "Ceil": ("ceil", _FLOATS), "Trunc": ("trunc", _FLOATS), "Rint": ("rint", _FLOATS),
    "IsNan": ("isnan", _FLOATS), "IsInf": ("isinf", _FLOATS), "IsFinite": ("isfinite", _FLOATS),
}  # fmt: skip
# These cost more than memory does: large tensors are left to ATen's kernels, which use vectors for them.
HEAVY: dict[str, tuple[str, frozenset[str]]] = {
    "Pow": ("pow", _NUMBERS), "Atan2": ("atan2", _FLOATS), "Exp": ("exp", _FLOATS), "Expm1": ("expm1", _FLOATS),
    "Log": ("log", _FLOATS), "Log1p": ("log1p", _FLOATS), "Sin": ("sin", _FLOATS), "Cos": ("cos", _FLOATS),
    "Tan": ("tan", _FLOATS), "Asin": ("asin", _FLOATS), "Acos": ("acos", _FLOATS), "Atan": ("atan", _FLOATS),
    "Sinh": ("sinh", _FLOATS), "Cosh": ("cosh", _FLOATS), "Tanh": ("tanh", _FLOATS), "Asinh": ("asinh", _FLOATS),
    "Acosh": ("acosh", _FLOATS), "Atanh": ("atanh", _FLOATS), "Erf": ("erf", _FLOATS), "Erfc": ("erfc", _FLOATS),
    "Sigmoid": ("sigmoid", _FLOATS),
}  # fmt: skip
_HEAVY_UP_TO = 2048
_NEAR = 4096  # elements up to which operations that share nothing run together too
# Attributes of which these operators must have the default to be the plain function.
_PLAIN = {
    "Exp": {"base": -1.0, "scale": 1.0, "shift": 0.0},
    "Log": {"base": -1.0, "scale": 1.0, "shift": 0.0},
}


def _select(op: Operation) -> str | None:
    names = list(op.inputs)
    value = op.inputs[names[1]]
    condition, result = op.inputs[names[0]], op.writes()[0]
    assert isinstance(value, Value) and isinstance(condition, Value)
    if BYTES[value.dtype] > 8 or (op.type == "Select" and len(condition.dims) not in (0, len(result.dims))):
        return None
    return f"select.{BYTES[value.dtype]}"


def _cast(op: Operation) -> str | None:
    source, target = op.dtype("x"), op.writes()[0].dtype
    return f"cast.{source}.{target}" if source in _ALL and target in _ALL else None


SPECIAL: dict[str, Callable[[Operation], str | None]] = {"SelectV2": _select, "Select": _select, "Cast": _cast}


def kernel_of(op: Operation) -> str | None:
    """The native kernel that computes an operation, "add.f32"; None where there is none."""
    if op.type in SPECIAL:
        return SPECIAL[op.type](op)
    found = KERNELS.get(op.type)
    if found is None:
        found = HEAVY.get(op.type)
        if found is None or op.writes()[0].count > _HEAVY_UP_TO:
            return None
    name, dtypes = found
    dtype = op.reads()[0].dtype
    if dtype not in dtypes or any(op.attrs.get(key) != want for key, want in _PLAIN.get(op.type, {}).items()):
        return None
    return f"{name}.{dtype}"


class _Group:
    """Operations on equally many elements that run together."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.operations: list[tuple[str, Operation]] = []
        self.made: set[int] = set()  # ids of the values that it makes
        self.read: set[int] = set()

    def add(self, kernel: str, op: Operation) -> None:
        self.operations.append((kernel, op))
        self.made.add(id(op.writes()[0]))
        self.read.update(id(value.root) for value in op.reads())


def as_made(value: Value) -> bool:
    """Whether a value shows its root as it was made: in another shape or dtype of the same size at most."""
    root = value.root
    return value is root or (
        value.offset == 0
        and value.strides is None
        and value.count == root.count
        and BYTES[value.dtype] == BYTES[root.dtype]
    )


def fuse(block: Block, together: bool = True) -> None:
    """Replaces elementwise operations by fused ones; with `together` False each is alone."""
    users = _users(block)
    result: list[Operation] = []
    open_groups: list[_Group] = []
    maker: dict[int, _Group] = {}  # id of a value -> the open group that makes it

    def close(group: _Group) -> None:
        open_groups.remove(group)
        for key in group.made:
            maker.pop(key, None)
        result.append(_fused(group, users))

    for op in block.operations:
        for child in op.blocks:
            fuse(child, together)
        reads = op.reads()
        kernel = kernel_of(op)
        if kernel is None:
            for value in reads:
                group = maker.get(id(value.root))
                if group is not None:
                    close(group)
            result.append(op)
            continue
        count = op.writes()[0].count
        chosen: _Group | None = None
        for value in reads:
            group = maker.get(id(value.root))
            if group is None:
                continue
            if group.count != count or not as_made(value) or not together:
                close(group)
                chosen = None if chosen is group else chosen
            elif chosen is None:
                chosen = group
            elif chosen is not group:
                _merge(chosen, group, maker)
                open_groups.remove(group)
        if chosen is None and together:
            roots = {id(value.root) for value in reads}
            chosen = next(
                (group for group in open_groups if group.count == count and (count <= _NEAR or group.read & roots)),
                None,
            )
        if chosen is None:
            chosen = _Group(count)
            open_groups.append(chosen)
        chosen.add(kernel, op)
        maker[id(op.writes()[0])] = chosen
    for group in list(open_groups):
        close(group)
    block.operations = result


def _merge(into: _Group, group: _Group, maker: dict[int, _Group]) -> None:
    into.operations += group.operations
    into.made |= group.made
    into.read |= group.read
    for key in group.made:
        maker[key] = into


def _users(block: Block) -> dict[int, list[Operation | None]]:
    """Id of a root -> what reads it; None: a reader that needs it in memory."""
    users: dict[int, list[Operation | None]] = {}
    for op in block.operations:
        for value in op.reads():
            users.setdefault(id(value.root), []).append(op if as_made(value) else None)
    for value in block.outputs:
        users.setdefault(id(value.root), []).append(None)
    return users


def _fused(group: _Group, users: dict[int, list[Operation | None]]) -> Operation:
    members = {id(op) for _, op in group.operations}
    made_at: dict[int, int] = {}  # id of a value -> its number among those that are made
    read_at: dict[tuple[int, tuple[int, ...]], int] = {}  # an input, as broadcast to a shape
    inputs: list[Value] = []
    shapes: list[list[int]] = []
    code: list[list] = []
    outputs, written = [], []
    for kernel, op in group.operations:
        made = op.writes()[0]
        operands = []
        for value in op.reads():
            if id(value.root) in made_at:
                operands.append(~made_at[id(value.root)])
                continue
            # Dense inputs are read as they lie, whatever their shape.
            dims = value.dims if value.count == group.count else made.dims
            key = (id(value), dims)
            if key not in read_at:
                read_at[key] = len(inputs)
                inputs.append(value)
                shapes.append(list(dims))
            operands.append(read_at[key])
        made_at[id(made)] = len(code)
        code.append([kernel, ~made_at[id(made)], *operands])
        if any(user is None or id(user) not in members for user in users.get(id(made), [])):
            outputs.append(made)
            written.append(len(code) - 1)
    # Values are numbered: first the inputs, then what is made.
    first = len(inputs)
    code = [[entry[0], *(first + ~number if number < 0 else number for number in entry[1:])] for entry in code]
    names = ",".join(dict.fromkeys(op.type for _, op in group.operations))
    fused = Operation(
        "Elementwise",
        f"{group.operations[-1][1].name} ({names})",
        {"x": inputs},
        {"y": outputs},
        {"count": group.count, "shapes": shapes, "code": code, "written": [first + number for number in written]},
    )
    for value in outputs:
        value.producer = fused
    return fused
