"""Partitions a global program with Shardy: every device gets the same local program, with collectives in it."""

from __future__ import annotations

import io
import logging
import os
import re
from dataclasses import dataclass, field, replace
from typing import Any

from jaxlib.mlir import ir

from xla_npu.compiler.annotations import (
    axis_names,
    entries,
    find,
    function_types,
    main_function,
    reshard,
    set_result_shardings,
    sharding_of,
)
from xla_npu.compiler.attributes import constant_array, ints, parse_type
from xla_npu.compiler.combine import combine_sums
from xla_npu.compiler.ends import settle, spread, take_whole_axes
from xla_npu.compiler.errors import Unsupported
from xla_npu.compiler.host import PYTHON_CALLBACK
from xla_npu.compiler.loops import CONTROL_FLOW, agree, fit_slices, name_arguments, type_arguments
from xla_npu.compiler.options import Options
from xla_npu.compiler.program import inline_calls, run_passes
from xla_npu.compiler.refine import refine
from xla_npu.compiler.rules.control import captured
from xla_npu.compiler.rules.reduce import BOOLEAN, KINDS, identity, single_operation
from xla_npu.compiler.sharding import MANUAL, REPLICATED, Mesh, Sharding, meshes, parse_sharding, parse_shardings
from xla_npu.compiler.unreduced import hold_once, leave_open, make_values, open_scatter, reduce_once

logger = logging.getLogger(__name__)

PROPAGATE = "symbol-dce,sdy-propagation-pipeline,sdy-close-shardings"
# Without full-version a reduction over a sharded dimension would lose its all-reduce.
EXCHANGE = "func.func(sdy-insert-explicit-reshards{enable-full-version=true},sdy-reshard-to-collectives)"
LOCALIZE = "sdy-convert-global-to-local"


@dataclass
class Partitioned:
    """The program of one device, and how values are spread over the devices (None: a copy on each).

    Attributes:
        inspections: for each `jax.debug.inspect_array_sharding` of the program its key and a serialised xla.OpSharding.
    """

    module: ir.Module
    arguments: list[Sharding | None] = field(default_factory=list)
    results: list[Sharding | None] = field(default_factory=list)
    inspections: list[tuple[bytes, bytes]] = field(default_factory=list)


def partition(module: ir.Module, options: Options) -> Partitioned:
    """Makes a program of all devices one of each.

    Where Shardy's passes fail on an operation, its operands are gathered and it runs whole on every device.

    Raises:
        Unsupported: the program cannot be partitioned at all.
    """
    inline_calls(module)
    _place_nothing(module)
    _mark_single(module, meshes(module))
    axes = refine(module)
    known = meshes(module)
    if not known:
        return Partitioned(module, *spread(module, known), _inspect(module, known))
    open_ends = settle(module, options)
    run_passes(module, PROPAGATE)
    _divide_evenly(module, known)
    take_whole_axes(module, known, open_ends, axes)
    ends = spread(module, known)
    inspections = _inspect(module, known)
    _gather_where_needed(module, known)
    make_values(module, known)
    text = _bytecode(module)
    result = _try(text)
    failed: set[str] = set()
    while isinstance(result, str):
        place = _blamed(module, result, failed)
        if place is None:
            logger.warning("partitioning failed (%s): the program runs whole on every device", _first_line(result))
            _gather_all(module, known)
            result = _try(_bytecode(module))
            break
        result = _try(_bytecode(module))
    if isinstance(result, str):
        raise Unsupported(f"the program cannot be partitioned: {result}")
    local = ir.Module.parse(result, module.context)
    return Partitioned(local, *ends, inspections)


def _place_nothing(module: ir.Module) -> None:
    """Takes out what says where a value is: inside a program in the device's memory; results say it themselves."""
    for op in find(module, "stablehlo.custom_call"):
        if ir.StringAttr(op.attributes["call_target_name"]).value == "annotate_device_placement":
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()


# Marks a host callback that one device makes for all of them.
ONCE = "xla_npu.once"


def _mark_single(module: ir.Module, known: dict[str, Mesh]) -> None:
    """Calls of the host: one device makes them, with operands that are gathered, and everyone gets the results.

    Inside a manual computation each device makes its own call.
    """

    def visit(op: Any) -> ir.WalkResult:
        text = str(op.attributes["sdy.sharding"]) if "sdy.sharding" in op.attributes else ""
        names = re.findall(r"<@([\w.\-]+),", text)
        if op.name != "stablehlo.custom_call":
            return ir.WalkResult.ADVANCE
        placed = bool(names) and not any(name in known for name in names)
        if placed:
            del op.attributes["sdy.sharding"]
        # A function that is called by name gets whole arrays, as every custom call does.
        named = ir.StringAttr(op.attributes["call_target_name"]).value != PYTHON_CALLBACK
        if (placed or named) and not _is_manual(op):
            op.attributes[ONCE] = ir.UnitAttr.get()
        return ir.WalkResult.ADVANCE

    main_function(module).walk(visit)


def _inspect(module: ir.Module, known: dict[str, Mesh]) -> list[tuple[bytes, bytes]]:
    """Takes out the calls that ask how a value is spread, with the answers."""
    found = []
    for op in find(module, "stablehlo.custom_call"):
        if ir.StringAttr(op.attributes["call_target_name"]).value != "InspectSharding":
            continue
        sharding = sharding_of(op.operands[0], known, main_function(module))
        answer = MANUAL if _is_manual(op) else sharding.op_sharding() if sharding else REPLICATED
        found.append((ir.StringAttr(op.attributes["backend_config"]).value_bytes, answer))
        op.erase()
    return found


def _is_manual(op: Any) -> bool:
    parent = op.parent
    while parent is not None and parent.name != "sdy.manual_computation":
        parent = parent.parent
    return parent is not None


def _divide_evenly(module: ir.Module, known: dict[str, Mesh]) -> None:
    """Takes back what propagation did to dimensions that the devices do not divide."""
    main = main_function(module)

    def even(sharding: Sharding | None, shape: tuple[int, ...]) -> Sharding | None:
        if sharding is None:
            return None
        counts = [sharding.count(i) for i in range(len(shape))]
        return sharding.whole({i for i, n in enumerate(shape) if n % counts[i]})

    def visit(op: Any) -> ir.WalkResult:
        if "sdy.sharding" in op.attributes and op.results:
            shapes = [parse_type(str(result.type))[1] for result in op.results]
            found = parse_shardings(str(op.attributes["sdy.sharding"]), known)
            if len(found) == len(shapes):
                evened = [even(s, shape) for s, shape in zip(found, shapes, strict=True)]
                if evened != found:
                    set_result_shardings(op, evened, known)
        if op.name == "sdy.reshard":
            wanted = parse_sharding(str(op.attributes["sharding"]), known)
            evened_one = even(wanted, parse_type(str(op.results[0].type))[1])
            if evened_one is not None and evened_one != wanted:
                op.attributes["sharding"] = ir.Attribute.parse(evened_one.attribute())
        return ir.WalkResult.ADVANCE

    main.walk(visit)
    types = function_types(main)[1]
    if "res_attrs" in main.attributes:
        settled = []
        for entry, kind in zip(ir.ArrayAttr(main.attributes["res_attrs"]), types, strict=True):
            values = entries(entry)
            if "sdy.sharding" in values:
                evened = even(parse_sharding(str(values["sdy.sharding"]), known), parse_type(kind)[1])
                if evened is not None:
                    values["sdy.sharding"] = ir.Attribute.parse(evened.attribute())
            settled.append(ir.DictAttr.get(values))
        main.attributes["res_attrs"] = ir.ArrayAttr.get(settled)


# --- operations that the passes cannot split -------------------------------------------------------------------------


def _gather_where_needed(module: ir.Module, known: dict[str, Mesh]) -> None:
    """Resharding before the operations whose sharded dimensions need halos, which the passes do not do (or die of)."""
    main = main_function(module)
    for block in main.regions[0].blocks:
        _visit(block, known, main)


def _visit(block: ir.Block, known: dict[str, Mesh], main: Any) -> None:
    for op in list(block.operations):
        operation = op.operation
        if operation.name == "sdy.manual_computation" and not _has_free_axes(operation, known):
            continue  # what is inside is local already
        if operation.name in CONTROL_FLOW:
            agree(operation, known, main)
        for region in operation.regions:
            for inner in region.blocks:
                _visit(inner, known, main)
        dimensions = _whole_dimensions(operation)
        if dimensions is not None and not open_scatter(operation, known, main):
            _gather(operation, dimensions, known, main)


def _has_free_axes(op: Any, known: dict[str, Mesh]) -> bool:
    """Whether a manual computation leaves some axes of its mesh to the partitioner."""
    spread = parse_shardings(str(op.attributes["in_shardings"]) + str(op.attributes["out_shardings"]), known)
    manual = axis_names(op.attributes["manual_axes"])
    return any(name not in manual for sharding in spread if sharding for name, _ in sharding.mesh.axes)


_ALL = set(range(8))


def _enclose(op: Any, known: dict[str, Mesh], main: Any) -> None:
    """Makes what the regions of an operation capture whole too, and takes the shardings inside away."""
    for value in captured(list(op.regions)):
        sharding = sharding_of(value, known, main)
        if sharding is None or sharding == sharding.replicated():
            continue
        with ir.InsertionPoint(op), op.location:
            whole = reshard(value, sharding.replicated())
        outside = [use.owner.operation for use in value.uses if not _is_inside(use.owner.operation, op)]
        value.replace_all_uses_except(whole, [*outside, whole.owner.operation])

    def strip(inner: Any) -> ir.WalkResult:
        if inner.name == "sdy.manual_computation":
            return ir.WalkResult.SKIP
        if "sdy.sharding" in inner.attributes and inner != op:
            del inner.attributes["sdy.sharding"]
        if inner.name.startswith("sdy.") and len(inner.operands) == len(inner.results) == 1:
            moves.append(inner)
        return ir.WalkResult.ADVANCE

    moves: list[Any] = []  # reshards and collectives: every device has the whole value
    op.walk(strip, ir.WalkOrder.PRE_ORDER)
    for move in moves:
        move.results[0].replace_all_uses_with(move.operands[0])
        move.erase()


def _is_inside(inner: Any, outer: Any) -> bool:
    parent = inner.parent
    while parent is not None:
        if parent == outer:
            return True
        parent = parent.parent
    return False


def _whole_dimensions(op: Any) -> set[int] | None:
    """The dimensions (of operands and results) that have to be whole for an operation; None: it can be split."""
    name = op.name
    if name == "stablehlo.slice":
        shape = parse_type(str(op.operands[0].type))[1]
        start, limit, stride = (ints(op, n) for n in ("start_indices", "limit_indices", "strides"))
        return {i for i, n in enumerate(shape) if start[i] != 0 or limit[i] != n or stride[i] != 1}
    if name == "stablehlo.pad":
        edges = [ints(op, n) for n in ("edge_padding_low", "edge_padding_high", "interior_padding")]
        return {i for i in range(len(edges[0])) if any(e[i] for e in edges)}
    if name == "stablehlo.reduce_window":
        size, padding = ints(op, "window_dimensions"), ints(op, "padding") or []
        stride = ints(op, "window_strides") or [1] * len(size)
        return {i for i, n in enumerate(size) if n != 1 or stride[i] != 1 or any(padding[2 * i : 2 * i + 2])}
    if name in ("stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice"):
        whole = parse_type(str(op.operands[0].type))[1]
        part = parse_type(str((op.results[0] if name.endswith("dynamic_slice") else op.operands[1]).type))[1]
        return {i for i, (a, b) in enumerate(zip(whole, part, strict=True)) if a != b}
    if name == "stablehlo.reduce":
        return set(ints(op, "dimensions")) if not _splits(op) else None
    if name == "stablehlo.reverse":
        return set(ints(op, "dimensions"))
    if name in _WHOLE:
        return _ALL
    return None


def _splits(op: Any) -> bool:
    """Whether a reduction of parts can be reduced again: one operand, and a start that counts nothing."""
    if len(op.operands) != 2:
        return False
    kind = KINDS.get(single_operation(op.regions[0]) or "")
    init = op.operands[1].owner
    if kind is None or isinstance(init, ir.Block) or not init.name.endswith(".constant"):
        return False
    element, _ = parse_type(str(op.operands[1].type))
    if element.kind == "complex" or element.emulated:
        return False
    value = constant_array(init, element, ()).reshape(())
    kind = BOOLEAN.get(kind, kind) if element.kind == "bool" else kind
    if kind in ("ReduceAll", "ReduceAny") and element.kind != "bool":
        return False
    return bool(value == identity(kind, element))


# Halos in several dimensions, or an order over all elements: simplest whole.
_WHOLE = frozenset(
    {
        "stablehlo.cholesky",
        "stablehlo.convolution",
        "stablehlo.custom_call",
        "stablehlo.fft",
        "stablehlo.gather",
        "stablehlo.rng_bit_generator",
        "stablehlo.scatter",
        "stablehlo.select_and_scatter",
        "stablehlo.triangular_solve",
        "chlo.top_k",
    }
)


def _gather(op: Any, dimensions: set[int], known: dict[str, Mesh], main: Any, *, sums: bool = False) -> None:
    """Makes operands and results whole along these dimensions; results go back to the sharding they had.

    `sums`: so that they are no terms of sums either.
    """

    def whole(sharding: Sharding) -> Sharding:
        gathered = sharding.whole(dimensions)
        return replace(gathered, unreduced=()) if sums else gathered

    changed = False
    for i, operand in enumerate(op.operands):
        sharding = sharding_of(operand, known, main)
        if sharding is None or whole(sharding) == sharding:
            continue
        changed = True
        with ir.InsertionPoint(op), op.location:
            op.operands[i] = reshard(operand, whole(sharding))
    had = [sharding_of(result, known, main) for result in op.results]
    wholes = [None if sharding is None else whole(sharding) for sharding in had]
    if not changed and wholes == had:
        return
    logger.info("gathered for %s at %s", op.name, op.location)
    for result, sharding, made in zip(op.results, had, wholes, strict=True):
        if sharding is None or made == sharding:
            continue
        with ir.InsertionPoint.after(op), op.location:
            back = reshard(result, sharding)
        result.replace_all_uses_except(back, back.owner.operation)
    set_result_shardings(op, wholes, known)


def _blamed(module: ir.Module, message: str, failed: set[str]) -> Any:
    """Gathers for the operations that an error message points at; None when there is nothing new to gather."""
    main, known = main_function(module), meshes(module)
    match = re.search(r"'(stablehlo\.\w+|chlo\.\w+)' op", message)
    if match is None or match.group(1) in failed:
        return None
    failed.add(match.group(1))
    found = []

    def visit(op: Any) -> ir.WalkResult:
        if op.name == match.group(1):
            found.append(op)
        return ir.WalkResult.ADVANCE

    main.walk(visit)
    for op in found:
        _gather(op, _ALL, known, main)
    logger.warning("%s cannot be split: it runs whole on every device (%s)", match.group(1), _first_line(message))
    return found or None


def _gather_all(module: ir.Module, known: dict[str, Mesh]) -> None:
    """Every operation on whole tensors; only arguments and results keep their sharding."""
    main = main_function(module)

    def visit(block: ir.Block) -> None:
        for op in list(block.operations):
            operation = op.operation
            if operation.name.startswith("sdy.") or operation.name in ("func.return", "stablehlo.return"):
                continue
            if operation.name in CONTROL_FLOW:
                _gather(operation, _ALL, known, main, sums=True)
                _enclose(operation, known, main)
                continue
            for region in operation.regions:
                for inner in region.blocks:
                    visit(inner)
            _gather(operation, _ALL, known, main)

    for block in main.regions[0].blocks:
        visit(block)


# --- running the passes ----------------------------------------------------------------------------------------------


def _bytecode(module: ir.Module) -> bytes:
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "no message"


def _try(code: bytes) -> bytes | str:
    """The local program, or an error message. In a child process: the passes abort on some programs."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        status = 1
        try:
            with os.fdopen(write_end, "wb") as out:
                try:
                    out.write(b"+" + _localize(code))
                except Exception as error:
                    out.write(b"-" + str(error).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as source:
        answer = source.read()
    os.waitpid(child, 0)
    if answer.startswith(b"+"):
        return answer[1:]
    return answer[1:].decode() if answer else "a partitioning pass ended the process"


def _localize(code: bytes) -> bytes:
    module = ir.Module.parse(code)
    run_passes(module, EXCHANGE)
    reduce_once(module)
    hold_once(module, meshes(module))
    name_arguments(module)
    run_passes(module, LOCALIZE, verified=False)
    type_arguments(module)
    fit_slices(module)
    leave_open(module)
    combine_sums(module)
    module.operation.verify()
    return _bytecode(module)
