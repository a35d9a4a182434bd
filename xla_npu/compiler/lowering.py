"""Walks StableHLO blocks and applies the rule of each operation."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from jaxlib.mlir import ir

from xla_npu.compiler.attributes import constant_array, tensor_type
from xla_npu.compiler.builder import Builder
from xla_npu.compiler.errors import CompileError, InvalidProgram, NeedsExpansion, Unsupported
from xla_npu.compiler.graph import Graph
from xla_npu.compiler.location import locate
from xla_npu.compiler.narrow import narrow, widen
from xla_npu.compiler.tensor import Tensor

Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers the lowering of operations: `function(lowering, op, *operands)` returns a tensor or a sequence."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


class ProgramInfo:
    """What all lowerings of one program share: its functions, and a count that makes graph names unique.

    Attributes:
        host_targets: names of custom calls that are functions on the host.
    """

    def __init__(self, module: ir.Module, host_targets: frozenset[str] = frozenset()):
        self.module = module
        self.host_targets = host_targets
        self.numbers = itertools.count(1)
        self.precisions: set[str] = set()  # of float32 products and convolutions
        self.functions: dict[str, Any] = {}
        for op in module.body.operations:
            if op.operation.name == "func.func":
                self.functions[ir.StringAttr(op.operation.attributes["sym_name"]).value] = op.operation

    def body(self, name: str) -> ir.Block:
        """The block of a function."""
        if name not in self.functions:
            raise InvalidProgram(f"the module has no function `{name}`")
        return self.functions[name].regions[0].blocks[0]


class Lowering(Builder):
    """A builder that knows which tensor each StableHLO value has become in its graph."""

    def __init__(self, graph: Graph, program: ProgramInfo):
        super().__init__(graph)
        self.tensors: dict[ir.Value, Tensor] = {}
        self.program = program

    def tensor(self, value: ir.Value) -> Tensor:
        """The tensor of a StableHLO value; constants of enclosing regions are made again here."""
        known = self.tensors.get(value)
        if known is None:
            owner = value.owner
            if isinstance(owner, ir.Block) or owner.name != "stablehlo.constant":
                raise CompileError(f"value used before it is defined: {value}")
            known = self.lower_constant(owner, value)
        return known

    def lower_constant(self, op: Any, value: ir.Value) -> Tensor:
        """The tensor of a constant operation."""
        element, shape = tensor_type(value)
        tensor = self.constant(constant_array(op, element, shape), element, shape)
        self.tensors[value] = tensor
        return tensor

    def input(self, element: Any, shape: Sequence[int]) -> Tensor:
        """A tensor fed from outside. Complex numbers arrive interleaved, as XLA stores them."""
        shape = tuple(shape)
        if element.kind != "complex":
            value = Tensor(element, shape, (self.graph.input(element.storage, shape),))
            if element.bits < 8 and element.kind in ("int", "uint"):
                # NumPy leaves open what else is in the byte.
                value = narrow(self, widen(self, value), element)
            return value
        return self.split_complex(self.graph.input(element.storage, (*shape, 2)), element)

    def split_complex(self, pair: Any, element: Any) -> Tensor:
        """A complex tensor from an interleaved real one."""
        shape = pair.shape[:-1]
        if 0 in shape:
            return Tensor(element, shape, (self.reshape_value(self.graph.constant([], element.storage), shape),) * 2)
        halves = [
            self.move("Slice", [pair], [self.ints([0] * len(shape) + [i]), self.ints([*shape, 1])], (*shape, 1))
            for i in (0, 1)
        ]
        return Tensor(element, shape, tuple(self.reshape_value(half, shape) for half in halves))

    def join_complex(self, tensor: Tensor) -> Any:
        """The interleaved GE value of a complex tensor."""
        tensor = self.full(tensor)
        shape = (*tensor.shape, 2)
        if 0 in shape:
            return self.reshape_value(self.graph.constant([], tensor.type.storage), shape)
        return self.graph.add(
            "Pack",
            list(tensor.parts),
            [(tensor.type.storage, shape)],
            {"axis": tensor.rank, "N": 2},
            dynamic_inputs=2,
        )[0]

    def output(self, tensor: Tensor) -> Any:
        """The GE value that leaves the graph for a tensor."""
        try:
            return self._output(tensor)
        except CompileError as error:
            owner = next((value.owner for value, known in self.tensors.items() if known is tensor), None)
            if owner is not None and not isinstance(owner, ir.Block):
                locate(error, owner.operation)
            raise

    def _output(self, tensor: Tensor) -> Any:
        if tensor.type.kind == "complex":
            return self.join_complex(tensor)
        value = self.full(tensor).value
        # An output has to be produced by an operator.
        if value.node.type in ("Data", "Const"):
            value = self.graph.add("Identity", [value], [(value.dtype, value.shape)])[0]
        return value

    def lower_block(self, block: ir.Block, arguments: Sequence[Tensor]) -> list[Tensor]:
        """Lowers a block in place, its arguments being these tensors; the operands of its terminator."""
        for argument, tensor in zip(block.arguments, arguments, strict=True):
            self.tensors[argument] = tensor
        for op in block.operations:
            name = op.operation.name
            if name in TERMINATORS:
                return [self.tensor(operand) for operand in op.operation.operands]
            self.lower(op.operation, name)
        raise CompileError("a block without a terminator")

    def lower(self, op: Any, name: str) -> None:
        """Lowers one operation."""
        if name == "stablehlo.constant":
            self.lower_constant(op, op.results[0])
            return
        function = RULES.get(name)
        outer, self.graph.origin = self.graph.origin, op
        try:
            if function is None:
                for value in op.results:
                    tensor_type(value)  # a type that is refused says more
                kind = NeedsExpansion if name.startswith("chlo.") else Unsupported
                raise kind("this operation has no lowering to CANN operators")
            results = function(self, op, *[self.tensor(operand) for operand in op.operands])
        except CompileError as error:
            locate(error, op)
            raise
        finally:
            self.graph.origin = outer
        results = [results] if isinstance(results, Tensor) else list(results or ())
        for value, tensor in zip(op.results, results, strict=True):
            self.tensors[value] = tensor

    def inline(self, region: ir.Region, arguments: Sequence[Tensor]) -> list[Tensor]:
        """Applies a region (a reduction's body, a comparator) to whole tensors, elementwise.

        The region's arguments are scalars; what it computes is lowered once with tensors of any shape in their place.
        """
        shape = arguments[0].shape if arguments else ()
        inner = _Elementwise(self, shape)
        results = inner.lower_block(region.blocks[0], arguments)
        return [self.broadcast_scalar(result, shape) for result in results]

    def broadcast_scalar(self, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
        """A scalar as a tensor of `shape`; others are left alone."""
        return Tensor(tensor.type, shape, tensor.parts) if tensor.shape == () and shape else tensor

    def subgraph(self, name: str) -> Lowering:
        """A lowering into a new graph for a region of control flow."""
        return Lowering(Graph(f"{name}_{next(self.program.numbers)}"), self.program)


class _Elementwise(Lowering):
    """A scalar region lowered on tensors of one shape: scalars from outside are broadcast to it."""

    def __init__(self, outer: Lowering, shape: tuple[int, ...]):
        super().__init__(outer.graph, outer.program)
        self.outer, self.shape = outer, shape

    def tensor(self, value: ir.Value) -> Tensor:
        known = self.tensors.get(value)
        if known is None:
            known = self.outer.tensors.get(value)
            known = super().tensor(value) if known is None else known
        return self.broadcast_scalar(known, self.shape)


TERMINATORS = frozenset({"func.return", "stablehlo.return", "sdy.return"})
