"""Before memory is planned: calls are inlined, what nobody uses goes, what depends on constants alone is set apart."""

from .build import CALLS
from .ir import Block, Operation, Value

# Not computed when the model is loaded: another result every time.
_RANDOM = ("Random", "Stateful")
_FOLD_BYTES = 1 << 18  # larger results are computed again rather than kept


def inline(block: Block) -> None:
    """Replaces calls of graphs by the graphs' operations."""
    result: list[Operation] = []
    replaced: dict[int, Value] = {}
    for op in block.operations:
        _substitute(op, replaced)
        for child in op.blocks:
            inline(child)
        if op.type not in CALLS:
            result.append(op)
            continue
        (callee,) = op.blocks
        bound = {id(inner): outer for inner, outer in zip(callee.inputs, op.many("args"), strict=True)}
        for inner in callee.operations:
            _substitute(inner, bound)
            result.append(inner)
        for value, made in zip(op.writes(), callee.outputs, strict=True):
            replaced[id(value)] = bound.get(id(made), made)
    block.operations = result
    block.outputs = [replaced.get(id(value), value) for value in block.outputs]


def _substitute(op: Operation, replaced: dict[int, Value]) -> None:
    if not replaced:
        return
    for name, value in op.inputs.items():
        if isinstance(value, list):
            op.inputs[name] = [replaced.get(id(entry), entry) for entry in value]
        elif value is not None:
            op.inputs[name] = replaced.get(id(value), value)


def remove_unused(block: Block) -> None:
    """Takes out operations whose results nobody uses."""
    used = {id(value.root) for value in block.outputs}
    kept = []
    for op in reversed(block.operations):
        if not any(id(value.root) in used for value in op.writes()) and op.writes():
            continue
        for child in op.blocks:
            remove_unused(child)
        kept.append(op)
        used.update(id(value.root) for value in op.reads())
    block.operations = kept[::-1]


def fold(block: Block, constant: dict[int, bool], folded: list[Operation]) -> None:
    """Moves operations on constants out of a block, to run once when the model is loaded.

    Args:
        block: the block, and those below it.
        constant: ids of the values that such operations make; filled.
        folded: the operations; filled.
    """

    def known(value: Value) -> bool:
        return value.root.data is not None or id(value.root) in constant

    kept = []
    for op in block.operations:
        for child in op.blocks:
            fold(child, constant, folded)
        if (
            op.blocks
            or op.type.startswith(_RANDOM)
            or not all(known(value) for value in op.reads())
            or sum(value.bytes for value in op.writes()) > _FOLD_BYTES
        ):
            kept.append(op)
            continue
        folded.append(op)
        for value in op.writes():
            constant[id(value)] = True
    block.operations = kept
