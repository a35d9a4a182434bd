"""What the compiler needs of XLA's serialised CompileOptionsProto."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from jaxlib import _jax

from xla_npu.compiler.errors import InvalidProgram


@dataclass
class Options:
    """How a program is spread over devices.

    Attributes:
        devices: [replica][partition], empty when not given.
        propagate_to_parameters, propagate_to_outputs: whether the compiler may choose the sharding of each; one entry
            stands for all, none for no.
    """

    replicas: int = 1
    partitions: int = 1
    devices: list[list[int]] = field(default_factory=list)
    propagate_to_parameters: list[bool] = field(default_factory=list)
    propagate_to_outputs: list[bool] = field(default_factory=list)


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a protobuf message: (number, integer or bytes)."""
    at = 0

    def varint() -> int:
        nonlocal at
        result = shift = 0
        while True:
            byte = data[at]
            at += 1
            result |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return result

    while at < len(data):
        key = varint()
        number, kind = key >> 3, key & 7
        if kind == 0:
            yield number, varint()
        else:
            size = {1: 8, 5: 4}.get(kind)
            size = varint() if size is None else size
            yield number, data[at : at + size]
            at += size


def _packed(data: bytes) -> list[int]:
    # A field of varints without tags is a message of one field number when tags are put before them.
    values, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            values.append(value)
            value = shift = 0
    return values


# Options of XLA that JAX lets a user set; an NPU program has no use for any, and any other name is a mistake.
KNOWN_OVERRIDES = frozenset(
    {"exec_time_optimization_effort", "memory_fitting_effort", "optimization_level", "memory_fitting_level"}
)


@cache
def _flags() -> frozenset[str]:
    """XLA's options that are true or false: those that jaxlib knows, and one that it does not show."""
    options = _jax.CompileOptions()  # owns the next two
    build = options.executable_build_options
    known = build.debug_options
    names = (name for name in dir(known) if isinstance(getattr(known, name), bool))
    return frozenset({"xla_embed_ir_in_executable", *names})


def _check_override(entry: bytes) -> None:
    """Refuses an option that does not exist, or that cannot have its value."""
    fields = dict(_fields(entry))
    key = fields.get(1, b"").decode()
    value = dict(_fields(fields.get(2, b"")))
    if key not in KNOWN_OVERRIDES and not key.startswith("xla_"):
        raise InvalidProgram(f"No such compile option: '{key}'")
    if key in _flags() and 1 in value and value[1].decode().lower() not in ("true", "false", "1", "0"):
        raise InvalidProgram(f"While setting option {key}, '{value[1].decode()}' is not a valid bool value.")


def parse_options(data: bytes) -> Options:
    """Reads executable_build_options (field 3).

    In it: num_replicas 4, num_partitions 5, device_assignment 9, allow propagation to outputs 12, to parameters 18.

    Raises:
        InvalidProgram: an option of XLA's (field 7) that does not exist.
    """
    options = Options()
    for number, build in _fields(data):
        if number == 7:
            _check_override(build)
        if number != 3:
            continue
        for inner, value in _fields(build):
            if inner == 4:
                options.replicas = max(value, 1)
            elif inner == 5:
                options.partitions = max(value, 1)
            elif inner == 9:
                columns = [v for n, v in _fields(value) if n == 3]
                ids = [[i for n, v in _fields(c) if n == 1 for i in _ids(v)] for c in columns]
                options.devices = [list(row) for row in zip(*ids, strict=True)]
            elif inner == 12:
                options.propagate_to_outputs += map(bool, _ids(value))
            elif inner == 18:
                options.propagate_to_parameters += map(bool, _ids(value))
    return options


def _ids(value: Any) -> list[int]:
    return [value] if isinstance(value, int) else _packed(value)
