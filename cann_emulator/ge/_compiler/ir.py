"""What a graph is while it is compiled: blocks of operations on values."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..error import GraphFault
from .prototypes import BYTES

NUMPY = {
    "f32": np.float32, "f16": np.float16, "f64": np.float64, "i8": np.int8, "i16": np.int16, "i32": np.int32,
    "i64": np.int64, "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64, "bool": np.bool_,
    "c64": np.complex64, "c128": np.complex128,
}  # fmt: skip


@dataclass(slots=True, eq=False)
class Value:
    """A tensor that an operation makes, or that comes from outside.

    Attributes:
        dtype: short name.
        dims: sizes.
        data: the bytes of a constant.
        producer: what makes it; None for inputs and constants.
        base: the value whose memory it is a view of, or None.
        offset: where it begins in the base's memory, in bytes.
        strides: in elements; None where it is dense.
        place: where it lies (plan.py); views have their base's.
    """

    dtype: str
    dims: tuple[int, ...]
    data: bytes | None = None
    producer: "Operation | None" = None
    base: "Value | None" = None
    offset: int = 0
    strides: tuple[int, ...] | None = None
    place: Any = None
    number: int = -1

    @property
    def count(self) -> int:
        """Elements."""
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """Bytes of the elements, dense."""
        return math.prod(self.dims) * BYTES[self.dtype]

    @property
    def root(self) -> "Value":
        """The value whose memory it lies in: itself unless it is a view."""
        return self if self.base is None else self.base

    def array(self) -> np.ndarray:
        """A constant's elements."""
        assert self.data is not None
        return np.frombuffer(self.data, NUMPY[self.dtype]).reshape(self.dims)


@dataclass(slots=True, eq=False)
class Operation:
    """A node: its inputs and outputs by the prototype's names, lists for dynamic ones."""

    type: str
    name: str
    inputs: dict[str, Value | list[Value] | None]
    outputs: dict[str, Value | list[Value]]
    attrs: dict[str, Any]
    blocks: list["Block"] = field(default_factory=list)
    note: Any = None  # what later stages keep about it

    def reads(self) -> list[Value]:
        """All inputs that are there."""
        return flat(self.inputs)

    def writes(self) -> list[Value]:
        """All outputs."""
        return flat(self.outputs)

    def ints(self, name: str) -> list[int]:
        """The integers of a constant input.

        Raises:
            GraphFault: E10501: it is not constant.
        """
        value = self.inputs[name]
        assert isinstance(value, Value)
        if value.data is None:
            raise GraphFault(
                "E10501",
                f"Node [{self.name}] ({self.type}): input {name} must be a Const: its values decide the output's "
                f"shape, and models with dynamic shapes are not supported.",
            )
        return [int(number) for number in value.array().reshape(-1)]

    def dims(self, name: str) -> tuple[int, ...]:
        """The shape of an input."""
        value = self.inputs[name]
        assert isinstance(value, Value)
        return value.dims

    def dtype(self, name: str) -> str:
        """The dtype of an input."""
        value = self.inputs[name]
        assert isinstance(value, Value)
        return value.dtype

    def many(self, name: str) -> list[Value]:
        """A dynamic input."""
        values = self.inputs[name]
        assert isinstance(values, list)
        return values

    def fault(self, message: str) -> GraphFault:
        """What to raise about this node."""
        return GraphFault("E10501", f"Node [{self.name}] ({self.type}): {message}")


@dataclass(slots=True, eq=False)
class Block:
    """A graph: operations in the order in which they run."""

    name: str
    inputs: list[Value]
    operations: list[Operation]
    outputs: list[Value]
    input_names: list[str] = field(default_factory=list)
    formats: list[int] = field(default_factory=list)
    note: Any = None


def flat(ports: dict[str, Any]) -> list[Value]:
    """All values of a node's inputs or outputs."""
    values: list[Value] = []
    for value in ports.values():
        if isinstance(value, list):
            values.extend(value)
        elif value is not None:
            values.append(value)
    return values


def dense_strides(dims: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a dense tensor, in elements."""
    strides = [1] * len(dims)
    for d in range(len(dims) - 2, -1, -1):
        strides[d] = strides[d + 1] * max(dims[d + 1], 1)
    return tuple(strides)
