"""Cuts a program where it has to leave the NPU's graph: at collectives, host callbacks and the device's own number.

What lies between two cuts is one GE graph. Values that live across a cut are device buffers. Control flow stays inside
GE's graphs unless there is a cut in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxlib.mlir import ir

from xla_npu.compiler import collectives
from xla_npu.compiler.attributes import tensor_type, text
from xla_npu.compiler.dtypes import BOOL, I32, UNSIGNED, ElementType
from xla_npu.compiler.errors import Unsupported
from xla_npu.compiler.graph import Graph
from xla_npu.compiler.host import host_call, is_token
from xla_npu.compiler.lowering import TERMINATORS, Lowering, ProgramInfo
from xla_npu.compiler.partition import ONCE
from xla_npu.compiler.program import inline_calls
from xla_npu.compiler.rules.control import captured
from xla_npu.compiler.tensor import Tensor

DEVICE_IDS = frozenset({"stablehlo.partition_id", "stablehlo.replica_id"})


@dataclass
class Buffer:
    """A device buffer of the program: a whole tensor, dense and row-major."""

    element: ElementType
    shape: tuple[int, ...]
    token: bool = False

    def describe(self) -> dict[str, Any]:
        """As the plugin is told of it."""
        if self.token:
            return {"dtype": "token", "dims": [], "bytes": 0}
        size = max(self.element.bits // 8, 1) * self.element.parts
        for dimension in self.shape:
            size *= dimension
        return {"dtype": self.element.xla, "dims": list(self.shape), "bytes": size}


class Segment(Lowering):
    """The part of a program between two cuts: values from before come in as graph inputs."""

    def __init__(self, schedule: Schedule, name: str):
        super().__init__(Graph(name), schedule.program)
        self.schedule = schedule
        self.feeds: dict[int, Tensor] = {}

    def tensor(self, value: ir.Value) -> Tensor:
        """As in Lowering; a value that has a buffer is read from it."""
        if value not in self.tensors and value in self.schedule.places:
            self.tensors[value] = self.feed(self.schedule.places[value])
        return super().tensor(value)

    def feed(self, buffer: int) -> Tensor:
        """The tensor in a buffer."""
        if buffer not in self.feeds:
            what = self.schedule.buffers[buffer]
            self.feeds[buffer] = self.input(what.element, what.shape)
        return self.feeds[buffer]


@dataclass
class Model:
    """One graph to compile, and the buffers it reads and writes."""

    graph: Graph
    inputs: list[int]
    outputs: list[int]


@dataclass
class Schedule:
    """The steps of one program.

    Attributes:
        replicas, partitions: how many devices run it, and in which roles.
    """

    program: ProgramInfo
    replicas: int = 1
    partitions: int = 1
    buffers: list[Buffer] = field(default_factory=list)
    models: list[Model] = field(default_factory=list)
    places: dict[ir.Value, int] = field(default_factory=dict)
    _name: str = "main"
    _device: int | None = None

    # --- the program ----------------------------------------------------------------------------------------------

    def run(self, name: str) -> tuple[list[int], list[int], list[dict[str, Any]]]:
        """Schedules the program: the buffers of its arguments and of its results, and the steps."""
        block = self.program.body("main")
        whole = not any(self.cuts(op.operation) for op in block.operations)
        if not whole:
            inline_calls(self.program.module)
        arguments = [self.buffer(*tensor_type(a), token=is_token(a)) for a in block.arguments]
        self.places.update(zip(block.arguments, arguments, strict=True))
        steps: list[dict[str, Any]] = []
        self._name = name
        results = self._whole(block, steps) if whole else self._block(block, steps)
        return arguments, results, steps

    def _whole(self, block: ir.Block, steps: list[dict[str, Any]]) -> list[int]:
        """One graph, with every argument as an input, used or not."""
        segment = Segment(self, self._name)
        tensors = segment.lower_block(block, [segment.tensor(a) for a in block.arguments])
        returned = list(block.operations)[-1].operation.operands
        results = [self.buffer(t.type, t.shape, is_token(v)) for t, v in zip(tensors, returned, strict=True)]
        self._emit(segment, list(zip(tensors, results, strict=True)), steps)
        return results

    def buffer(self, element: ElementType, shape: Sequence[int], token: bool = False) -> int:
        """A new buffer."""
        self.buffers.append(Buffer(element, tuple(shape), token))
        return len(self.buffers) - 1

    def cuts(self, op: Any) -> bool:
        """Whether an operation is, or contains, a cut."""
        name = op.name
        if name in DEVICE_IDS:
            return self.replicas * self.partitions > 1
        if name in collectives.NAMES:
            return collectives.groups(op, self.replicas, self.partitions).largest > 1
        if name == "stablehlo.custom_call":
            return text(op, "call_target_name") in self.program.host_targets
        if name == "func.call":
            block = self.program.body(ir.FlatSymbolRefAttr(op.attributes["callee"]).value)
            return any(self.cuts(inner.operation) for inner in block.operations)
        return any(self.cuts(inner.operation) for region in op.regions for b in region.blocks for inner in b.operations)

    def _segment(self) -> Segment:
        return Segment(self, f"{self._name}_{next(self.program.numbers)}")

    # --- blocks ---------------------------------------------------------------------------------------------------

    def _block(self, block: ir.Block, steps: list[dict[str, Any]], targets: Sequence[int] | None = None) -> list[int]:
        """Schedules a block with cuts; its results go to `targets`, or where they are."""
        operations = [op.operation for op in block.operations]
        last_use: dict[ir.Value, int] = {}
        for i, op in enumerate(operations):
            for value in (*op.operands, *captured(list(op.regions))):
                last_use[value] = i
        segment = self._segment()
        for i, op in enumerate(operations):
            if op.name in TERMINATORS:
                return self._results(segment, list(op.operands), targets, steps)
            if not self.cuts(op):
                segment.lower(op, op.name)
                continue
            alive = {value for value, last in last_use.items() if last >= i}
            segment = self._cut(op, segment, alive, steps)
        raise AssertionError("a block without a terminator")

    def _results(
        self, segment: Segment, values: list[ir.Value], targets: Sequence[int] | None, steps: list[dict[str, Any]]
    ) -> list[int]:
        moves, results = [], []
        for i, value in enumerate(values):
            if targets is None and value in self.places:
                results.append(self.places[value])
                continue
            tensor = segment.tensor(value)
            token = is_token(value)
            results.append(self.buffer(tensor.type, tensor.shape, token) if targets is None else targets[i])
            moves.append((tensor, results[-1]))
        self._emit(segment, moves, steps)
        return results

    def _emit(self, segment: Segment, moves: list[tuple[Tensor, int]], steps: list[dict[str, Any]]) -> None:
        """Ends a segment: these tensors go to these buffers."""
        if not moves:
            return
        segment.graph.outputs = [segment.output(tensor) for tensor, _ in moves]
        segment.graph.prune()
        model = Model(segment.graph, list(segment.feeds), [buffer for _, buffer in moves])
        self.models.append(model)
        number = len(self.models) - 1
        steps.append({"kind": "model", "model": number, "inputs": model.inputs, "outputs": model.outputs})

    def _close(
        self,
        segment: Segment,
        alive: set[ir.Value],
        extra: list[tuple[Tensor, int]],
        steps: list[dict[str, Any]],
    ) -> None:
        """Ends a segment: what later operations need, and `extra`, goes to buffers."""
        moves = list(extra)
        for value, tensor in segment.tensors.items():
            if value in alive and value not in self.places and not _is_constant(value):
                self.places[value] = self.buffer(tensor.type, tensor.shape)
                moves.append((tensor, self.places[value]))
        self._emit(segment, moves, steps)

    # --- cuts -----------------------------------------------------------------------------------------------------

    def _cut(self, op: Any, segment: Segment, alive: set[ir.Value], steps: list[dict[str, Any]]) -> Segment:
        """Schedules one cut; the segment that goes on after it."""
        if op.name == "stablehlo.custom_call":
            self._callback(op, segment, alive, steps)
        elif op.name in DEVICE_IDS:
            return self._device_id(op, segment, alive, steps)
        elif op.name in collectives.NAMES:
            return self._collective(op, segment, alive, steps)
        elif op.name == "stablehlo.while":
            self._while(op, segment, alive, steps)
        elif op.name in ("stablehlo.case", "stablehlo.if"):
            self._case(op, segment, alive, steps)
        else:
            raise Unsupported(f"{op.name} cannot hold a collective or a host callback")
        return self._segment()

    def _placed(self, segment: Segment, values: Sequence[ir.Value]) -> tuple[list[int], list[tuple[Tensor, int]]]:
        """The buffers of values, and the moves that fill those that are new."""
        buffers, moves = [], []
        for value in values:
            if value in self.places:
                buffers.append(self.places[value])
                continue
            tensor = segment.tensor(value)
            buffers.append(self.buffer(tensor.type, tensor.shape))
            moves.append((tensor, buffers[-1]))
            if not _is_constant(value):
                self.places[value] = buffers[-1]
        return buffers, moves

    def _callback(self, op: Any, segment: Segment, alive: set[ir.Value], steps: list[dict[str, Any]]) -> None:
        data = [value for value in op.operands if not is_token(value)]
        inputs, moves = self._placed(segment, data)
        self._close(segment, alive, moves, steps)
        outputs = []
        for value in op.results:
            if is_token(value):
                self.places[value] = self.buffer(*tensor_type(value), token=True)
                continue
            self.places[value] = self.buffer(*tensor_type(value))
            outputs.append(self.places[value])
        steps.append(
            {
                "kind": "callback",
                "target": text(op, "call_target_name"),
                "once": ONCE in op.attributes,
                "call": host_call(op),
                "inputs": inputs,
                "outputs": outputs,
            }
        )

    def _device_id(self, op: Any, segment: Segment, alive: set[ir.Value], steps: list[dict[str, Any]]) -> Segment:
        if self._device is None or not any(step["kind"] == "device_id" for step in steps):
            self._close(segment, alive, [], steps)
            segment = self._segment()
            self._device = self.buffer(UNSIGNED[32], ())
            steps.append({"kind": "device_id", "outputs": [self._device]})
        segment.tensors[op.results[0]] = collectives.role(segment, op, segment.feed(self._device), self.partitions)
        return segment

    def _collective(self, op: Any, segment: Segment, alive: set[ir.Value], steps: list[dict[str, Any]]) -> Segment:
        exchanges = collectives.prepare(segment, op, self.replicas, self.partitions)
        sent = [self.buffer(e.sent.type, e.sent.shape) for e in exchanges]
        moves = list(zip((e.sent for e in exchanges), sent, strict=True))
        self._close(segment, alive, moves, steps)
        after = self._segment()
        for exchange, source, result in zip(exchanges, sent, op.results, strict=True):
            received = self.buffer(exchange.sent.type, exchange.received)
            steps.append({"kind": "collective", **exchange.step, "inputs": [source], "outputs": [received]})
            after.tensors[result] = exchange.finish(after, after.feed(received))
        return after

    def _while(self, op: Any, segment: Segment, alive: set[ir.Value], steps: list[dict[str, Any]]) -> None:
        carried = [self.buffer(*tensor_type(value)) for value in op.results]
        first = [(segment.tensor(value), buffer) for value, buffer in zip(op.operands, carried, strict=True)]
        self._close(segment, alive, first, steps)
        test, body = (region.blocks[0] for region in op.regions)
        step: dict[str, Any] = {"kind": "while", "condition": [], "body": []}
        for block in (test, body):
            self.places.update(zip(block.arguments, carried, strict=True))
        predicate = self.buffer(BOOL, ())
        self._block(test, step["condition"], [predicate])
        next_ = [self.buffer(self.buffers[b].element, self.buffers[b].shape) for b in carried]
        self._block(body, step["body"], next_)
        step["predicate"] = predicate
        step["carried"] = [list(pair) for pair in zip(next_, carried, strict=True)]
        steps.append(step)
        self.places.update(zip(op.results, carried, strict=True))

    def _case(self, op: Any, segment: Segment, alive: set[ir.Value], steps: list[dict[str, Any]]) -> None:
        selector = segment.tensor(op.operands[0])
        if op.name == "stablehlo.if":  # the first branch is the one for true
            zero, one = (segment.constant(i, I32) for i in (0, 1))
            selector = segment.select(selector, zero, one)
        index = self.buffer(I32, ())
        self._close(segment, alive, [(selector, index)], steps)
        targets = [self.buffer(*tensor_type(value)) for value in op.results]
        branches: list[list[dict[str, Any]]] = []
        for region in op.regions:
            branches.append([])
            self._block(region.blocks[0], branches[-1], targets)
        steps.append({"kind": "case", "index": index, "branches": branches})
        self.places.update(zip(op.results, targets, strict=True))


def _is_constant(value: ir.Value) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.name == "stablehlo.constant"
