"""Writes a compiled program as an offline model (.om): CANN's header, then partitions (see native/model/image.h)."""

import json
import struct
import zlib
from typing import Any

from .build import LOOPS
from .ir import Block, Operation, Value
from .plan import ALIGN, Base, Place
from .prototypes import LONG

MAGIC = 0x444F4D49
HEADER = 256
VERSION = 0x20000000
PROGRAM_VERSION = 1
_PROGRAM, _WEIGHTS, _PORTS = 0, 1, 8


class Weights:
    """The constants, and room for what is computed from them when the model is loaded."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        self.known: dict[tuple[int, bytes], Place] = {}

    def add(self, data: bytes) -> Place:
        """Keeps a constant; equal small ones are kept once."""
        key = (len(data), data) if len(data) <= 4096 else None
        if key is not None and key in self.known:
            return self.known[key]
        place = Place(Base.WEIGHTS, offset=self.size)
        padding = -len(data) % ALIGN
        self.parts.append(data + bytes(padding))
        self.size += len(data) + padding
        if key is not None:
            self.known[key] = place
        return place

    def reserve(self, size: int, reserved: int) -> tuple[Place, int]:
        """Room behind the constants, at `reserved` bytes of such room; the place and the new sum."""
        place = Place(Base.WEIGHTS, offset=self.size + reserved)
        return place, reserved + -(-max(size, 1) // ALIGN) * ALIGN


class _Writer:
    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.tensors: list[list[Any]] = []

    def number(self, value: Value) -> int:
        """The value's number in the table of tensors."""
        if value.number >= 0:
            return value.number
        root = value.root
        if root.place is None:
            assert root.data is not None, "a value was not placed"
            root.place = self.weights.add(root.data)
        base, index, offset = root.place.address()
        value.number = len(self.tensors)
        strides = None if value.strides is None else list(value.strides)
        self.tensors.append([LONG[value.dtype], list(value.dims), strides, base, index, offset + value.offset])
        return value.number

    def ports(self, ports: dict[str, Any]) -> dict[str, Any]:
        """Inputs or outputs by name, as numbers."""
        return {
            name: [self.number(entry) for entry in value]
            if isinstance(value, list)
            else None
            if value is None
            else self.number(value)
            for name, value in ports.items()
        }

    def block(self, block: Block) -> list[dict[str, Any]]:
        """A block's operations."""
        return [self.operation(op) for op in block.operations]

    def operation(self, op: Operation) -> dict[str, Any]:
        """One operation."""
        entry: dict[str, Any] = {
            "type": op.type,
            "name": op.name,
            "in": self.ports(op.inputs),
            "out": self.ports(op.outputs),
        }
        if op.attrs:
            entry["attrs"] = {name: _plain(value) for name, value in op.attrs.items()}
        if op.blocks:
            entry["blocks"] = [self.block(block) for block in op.blocks]
        if op.type in LOOPS:
            entry["carry"] = [
                [self.number(before), self.number(after)]
                for kept, before, after in zip(op.note, op.many("input"), op.writes(), strict=True)
                if not kept and self.tensors[self.number(before)] != self.tensors[self.number(after)]
            ]
            entry["predicate"] = self.number(op.blocks[0].outputs[0])
        return entry


def _plain(value: Any) -> Any:
    if isinstance(value, str | bool | int | float | list):
        return value
    return None  # tensors: no operator keeps one


def _ports(work: int, weights: int, sides: list[list[tuple[str, Value, int]]]) -> bytes:
    data = struct.pack("<QQ", work, weights)
    for side in sides:
        data += struct.pack("<I", len(side))
        for name, value, format in side:
            text = name.encode()
            data += struct.pack("<IIQI", LONG[value.dtype], format, value.bytes, len(value.dims))
            data += struct.pack(f"<{len(value.dims)}qI", *value.dims, len(text)) + text
    return data


def write(block: Block, folded: list[Operation], weights: Weights, reserved: int, work: int) -> bytes:
    """The model's file.

    Args:
        block: the planned main graph.
        folded: what is computed once, when the model is loaded.
        weights: the constants known so far; the others are added.
        reserved: bytes of room for the results of `folded`.
        work: bytes of work area.
    """
    writer = _Writer(weights)
    program = {
        "init": [writer.operation(op) for op in folded],
        "main": writer.block(block),
        "tensors": writer.tensors,
    }
    constants = b"".join(weights.parts)
    inputs = list(zip(block.input_names, block.inputs, block.formats, strict=True))
    outputs = [(f"output_{i}", value, 2) for i, value in enumerate(block.outputs)]
    parts = {
        _PROGRAM: json.dumps(program, separators=(",", ":")).encode(),
        _WEIGHTS: constants,
        _PORTS: _ports(work, len(constants) + reserved, [inputs, outputs]),
    }
    table = struct.pack("<Q", len(parts))
    at = 8 + 24 * len(parts)
    body = b""
    for kind, data in parts.items():
        padding = -(at + len(body)) % 8
        body += bytes(padding)
        table += struct.pack("<QQQ", kind, at + len(body), len(data))
        body += data
    return _header(block.name, table + body) + table + body


def _header(name: str, body: bytes) -> bytes:
    header = bytearray(HEADER)
    struct.pack_into("<III", header, 0, MAGIC, HEADER, VERSION)
    struct.pack_into("<I", header, 12, zlib.adler32(body))
    struct.pack_into("<IBBBB32s", header, 76, len(body) & 0xFFFFFFFF, 0, 1, 0, 0, name.encode()[:31])
    struct.pack_into("<II", header, 152, PROGRAM_VERSION, 1)
    struct.pack_into("<Q", header, 184, len(body))
    return bytes(header)
