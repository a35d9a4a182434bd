"""Loads a model's program: makes its tensors and lets each node's kernel add its steps."""

import json
from collections.abc import Callable
from typing import Any

import torch

from .registry import GraphEngineError, Node, bits, kernels

_LOOPS = ("While", "StatelessWhile")
_CONDITIONALS = ("If", "StatelessIf")
_SWITCHES = ("Case", "StatelessCase")
_MAIN = 0


class _Loader:
    def __init__(self, program: dict[str, Any], native: dict[str, Callable]) -> None:
        self.native = native
        self.facts = program["tensors"]
        self.made: list[torch.Tensor | None] = [None] * len(self.facts)
        self.kernels = kernels()

    def tensor(self, number: int) -> torch.Tensor:
        """A tensor of the program's table."""
        tensor = self.made[number]
        if tensor is None:
            tensor = self.made[number] = self.native["tensor"](*self.facts[number])
        return tensor

    def ports(self, ports: dict[str, Any]) -> dict[str, Any]:
        """Inputs or outputs as tensors."""
        tensor = self.tensor
        return {
            name: None
            if value is None
            else tensor(value)
            if type(value) is int
            else [tensor(number) for number in value]
            for name, value in ports.items()
        }

    def block(self, operations: list[dict[str, Any]]) -> int:
        """Makes a block of operations."""
        block = self.native["block"]()
        for operation in operations:
            self.operation(block, operation)
        return block

    def operation(self, block: int, operation: dict[str, Any]) -> None:
        """Adds one operation's steps to a block."""
        type = operation["type"]
        if type == "Elementwise":
            self._elementwise(block, operation)
        elif "blocks" in operation:
            self._control_flow(block, operation)
        else:
            found = self.kernels.get(type)
            name = operation["name"]
            if found is None:
                raise GraphEngineError(545001, f"{type} ({name}): the CANN emulator has no kernel for it")
            found(
                Node(
                    self.native,
                    block,
                    type,
                    name,
                    self.ports(operation["in"]),
                    self.ports(operation["out"]),
                    operation.get("attrs", {}),
                )
            )

    def _elementwise(self, block: int, operation: dict[str, Any]) -> None:
        attrs = operation["attrs"]
        numbers = operation["in"]["x"]
        inputs = [self.tensor(number).expand(dims) for number, dims in zip(numbers, attrs["shapes"], strict=True)]
        outputs = [self.tensor(number) for number in operation["out"]["y"]]
        code = [tuple(entry) for entry in attrs["code"]]
        written = list(zip(attrs["written"], outputs, strict=True))
        self.native["elementwise"](block, operation["name"], attrs["count"], inputs, code, written)

    def _control_flow(self, block: int, operation: dict[str, Any]) -> None:
        name = f"{operation['type']} ({operation['name']})"
        if operation["type"] in _LOOPS:
            for before, after in operation["carry"]:
                arguments = (bits(self.tensor(before)), bits(self.tensor(after)))
                self.native["call"](block, name, "cann_emulator::begin_as", arguments, None, None)
            condition, body = (self.block(part) for part in operation["blocks"])
            self.native["loop"](block, name, condition, self.tensor(operation["predicate"]).reshape(()), body)
            return
        condition = operation["type"] in _CONDITIONALS
        index = self.tensor(operation["in"]["cond" if condition else "branch_index"]).reshape(())
        blocks = [self.block(part) for part in operation["blocks"]]
        self.native["switch"](block, name, index, condition, blocks)


def prepare(program: bytes, native: dict[str, Callable]) -> None:
    """Makes a loaded model ready to run.

    Args:
        program: the program as the compiler wrote it.
        native: the functions that add steps to the model (native/bridge/models.cpp).

    Raises:
        GraphEngineError: a node cannot be run.
    """
    facts = json.loads(program)
    loader = _Loader(facts, native)
    native["block"]()  # the main block is the first
    for operation in facts["init"]:
        native["run"](loader.block([operation]))
    for operation in facts["main"]:
        loader.operation(_MAIN, operation)
