"""Kernels by operator type, and what a kernel gets.

A kernel runs once, when a model is loaded: it turns a node into steps, which run natively at every execution. All
tensors exist by then (inputs, outputs and work area have their places), so that views of them cost nothing later. Only
constants have contents; a kernel must not read other tensors.
"""

import importlib
import pkgutil
import re
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import torch

Kernel = Callable[["Node"], None]
KERNELS: dict[str, Kernel] = {}
_ROW = re.compile(r"(?P<op>[\w.:]+)\((?P<args>.*)\)(?: *-> *(?P<outs>.+))?$")
# Dtypes that ATen hardly computes with, as others of the same width.
_AS_BITS = {
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
    torch.float8_e5m2: torch.uint8,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e8m0fnu: torch.uint8,
}


class GraphEngineError(Exception):
    """A model cannot be loaded or run; `code` is the acl error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Node:
    """A node of a model that is being loaded. Inputs, outputs and attributes are its attributes.

    Attributes:
        type, name: of the node.
        inputs, outputs: tensors by the prototype's names; lists for dynamic ones.
        attrs: the node's attributes.
        out: the first output.
    """

    def __init__(
        self,
        native: dict[str, Callable],
        block: int,
        type: str,
        name: str,
        inputs: dict[str, Any],
        outputs: dict[str, Any],
        attrs: dict[str, Any],
    ) -> None:
        self.type, self.name = type, name
        self.inputs, self.outputs, self.attrs = inputs, outputs, attrs
        self.out: Any = next(iter(outputs.values()), None)
        self.label = f"{type} ({name})"
        self._native, self._block = native, block

    def __getattr__(self, name: str) -> Any:
        for side in ("outputs", "inputs", "attrs"):
            values = self.__dict__[side]
            if name in values:
                return values[name]
        raise AttributeError(f"{self.type} has no input, output or attribute {name}")

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute, or `default` where the node has none."""
        return self.attrs.get(name, default)

    def ints(self, name: str) -> list[int]:
        """A constant input, or an attribute, as a list of integers."""
        value = self.inputs.get(name)
        if value is None:
            value = self.attrs[name]
            return list(value) if isinstance(value, list) else [value]
        return [int(number) for number in bits(value).reshape(-1).tolist()]

    def call(self, op: str, *args: Any, results: tuple[torch.Tensor | None, ...] | None = None, **kwargs: Any) -> None:
        """Adds a step: an ATen operator, "add.out", with these arguments; what it returns is copied to `results`."""
        self._native["call"](self._block, self.label, op, args, kwargs or None, results)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Adds a step: copies, converting the dtype."""
        self.call("copy_", target, source)

    def begin_as(self, source: torch.Tensor) -> None:
        """Adds a step: the output begins as an input, which it may share the memory of."""
        self.call("cann_emulator::begin_as", bits(source), bits(self.out))

    def run(self, function: Callable[..., Any], *args: Any) -> None:
        """Adds a step: a Python function, which writes the node's outputs. For what is rare: it needs the GIL."""
        self._native["function"](self._block, self.label, function, args)

    def refuse(self, message: str) -> NoReturn:
        """The node cannot be run."""
        raise GraphEngineError(545001, f"{self.label}: {message}")


def kernel(*types: str) -> Callable[[Kernel], Kernel]:
    """Registers the kernel of operators."""

    def register(function: Kernel) -> Kernel:
        for type in types:
            if type in KERNELS:
                raise ValueError(f"{type} has two kernels")
            KERNELS[type] = function
        return function

    return register


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in a dtype that ATen moves, with the same bits."""
    other = _AS_BITS.get(tensor.dtype)
    return tensor if other is None else tensor.view(other)


# The names that mean the same in every row.
ROW_WORDS: dict[str, Any] = {"none": None, "true": True, "false": False, "bits": bits, "ints": lambda name: []}


class _Names(dict):
    """The names that a row may use: words, then what the node has."""

    def __init__(self, node: Node) -> None:
        super().__init__(ROW_WORDS, ints=node.ints)
        self.node = node

    def __missing__(self, name: str) -> Any:
        return getattr(self.node, name)


def _row(text: str) -> Kernel:
    match = _ROW.match(text)
    if match is None:
        raise ValueError(f"{text!r} is no row")
    op = match["op"]
    arguments = compile(f"_arguments({match['args']})", "rows.toml", "eval")
    outputs = match["outs"]
    names = [name.strip() for name in outputs.split(",")] if outputs else None

    def run(node: Node) -> None:
        scope = _Names(node)
        scope["_arguments"] = lambda *args, **kwargs: (args, kwargs)
        args, kwargs = eval(arguments, {}, scope)
        node.call(op, *args, results=tuple(getattr(node, name) for name in names) if names else None, **kwargs)

    return run


@cache
def kernels() -> dict[str, Kernel]:
    """All kernels by operator type."""
    package = importlib.import_module(__package__ or "cann_emulator.kernels.ge")
    for module in pkgutil.iter_modules(package.__path__):
        if module.name not in ("registry", "loader"):
            importlib.import_module(f"{package.__name__}.{module.name}")
    for type, text in rows().items():
        kernel(type)(_row(text))
    return KERNELS


def rows() -> dict[str, str]:
    """The rows by operator type."""
    return tomllib.loads((Path(__file__).parent / "rows.toml").read_text())
