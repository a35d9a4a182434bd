"""Shardy's shardings, and XLA's OpSharding made from them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxlib.mlir import ir

# xla.OpSharding.Type
_REPLICATED, _TILED, _MANUAL, _UNREDUCED = 0, 3, 4, 6

_AXIS = re.compile(r'"([^"]+)"(?::\((\d+)\)(\d+))?')


@dataclass(frozen=True)
class Mesh:
    """A mesh of devices: axis sizes in order, and the devices' numbers, row-major."""

    name: str
    axes: tuple[tuple[str, int], ...]
    devices: tuple[int, ...]
    maximal: bool = False

    def along(self, axes: list[str]) -> list[int]:
        """Each device's number along these axes, the last the fastest to change."""
        sizes = dict(self.axes)
        numbers = [0] * len(self.devices)
        for place, device in zip(np.ndindex(*sizes.values()), self.devices, strict=True):
            at = dict(zip(sizes, place, strict=True))
            for axis in axes:
                numbers[device] = numbers[device] * sizes[axis] + at[axis]
        return numbers


def meshes(module: ir.Module) -> dict[str, Mesh]:
    """The meshes of a module, by name."""
    found = {}
    for op in module.body.operations:
        operation = op.operation
        if operation.name != "sdy.mesh":
            continue
        name = ir.StringAttr(operation.attributes["sym_name"]).value
        text = str(operation.attributes["mesh"])
        axes = tuple((axis, int(size)) for axis, size in re.findall(r'"([^"]+)"=(\d+)', text))
        ids = re.search(r"device_ids=\[([0-9, ]*)\]", text)
        count = int(np.prod([size for _, size in axes], dtype=np.int64))
        devices = tuple(int(i) for i in ids.group(1).split(",")) if ids else tuple(range(count))
        found[name] = Mesh(name, axes, devices, maximal=not axes and ids is not None)
    return {name: mesh for name, mesh in found.items() if mesh.axes}


@dataclass(frozen=True)
class Sharding:
    """How a tensor is spread: for each dimension the mesh axes, or parts of axes, it is split along.

    `unreduced` are the axes along which the devices hold terms of a sum not made yet.
    """

    mesh: Mesh
    dimensions: tuple[tuple[str, ...], ...]  # an axis as Shardy writes it: "x" or "x":(2)4
    unreduced: tuple[str, ...] = ()

    def sharded(self, dimensions: set[int]) -> bool:
        """Whether any of these dimensions is split."""
        return any(axes for i, axes in enumerate(self.dimensions) if i in dimensions)

    def count(self, dimension: int) -> int:
        """How many parts a dimension is split into."""
        sizes = dict(self.mesh.axes)
        parts = 1
        for axis in self.dimensions[dimension] if dimension < len(self.dimensions) else ():
            name, _, size = _parse_axis(axis)
            parts *= size or sizes[name]
        return parts

    def whole(self, dimensions: set[int]) -> Sharding:
        """The same with these dimensions not split."""
        return replace(self, dimensions=tuple(() if i in dimensions else a for i, a in enumerate(self.dimensions)))

    def without(self, axes: Collection[str]) -> Sharding:
        """The same without these axes."""

        def kept(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(name for name in names if _parse_axis(name)[0] not in axes)

        return replace(self, dimensions=tuple(map(kept, self.dimensions)), unreduced=kept(self.unreduced))

    def replicated(self) -> Sharding:
        """The same mesh with the whole value on each device."""
        return replace(self, dimensions=((),) * len(self.dimensions), unreduced=())

    def body(self) -> str:
        """As inside `#sdy.sharding_per_value`."""
        inner = ", ".join("{" + ", ".join(axes) + "}" for axes in self.dimensions)
        terms = f", unreduced={{{', '.join(self.unreduced)}}}" if self.unreduced else ""
        return f"<@{self.mesh.name}, [{inner}]{terms}>"

    def attribute(self) -> str:
        """As an attribute."""
        return f"#sdy.sharding{self.body()}"

    def op_sharding(self) -> bytes:
        """A serialised xla.OpSharding."""
        if not any(self.dimensions) and not self.unreduced:
            return REPLICATED
        # Split every mesh axis where a sub-axis begins or ends, so that all are whole axes of a finer mesh.
        cuts: dict[str, set[int]] = {name: {1, size} for name, size in self.mesh.axes}
        for axes in (*self.dimensions, self.unreduced):
            for axis in axes:
                name, before, size = _parse_axis(axis)
                if before:
                    cuts[name] |= {before, before * size}
        fine: list[tuple[str, int, int]] = []  # axis, product of the sizes before, size
        for name, _ in self.mesh.axes:
            edges = sorted(cuts[name])
            fine += [(name, a, b // a) for a, b in itertools.pairwise(edges)]
        devices = np.array(self.mesh.devices).reshape([size for *_, size in fine])
        order, tiles = [], []
        for axes in (*self.dimensions, *([self.unreduced] if self.unreduced else [])):
            tile = 1
            for axis in axes:
                name, before, size = _parse_axis(axis)
                low, high = (before, before * size) if before else (1, dict(self.mesh.axes)[name])
                for i, (other, start, extent) in enumerate(fine):
                    if other == name and low <= start and start * extent <= high:
                        order.append(i)
                        tile *= extent
            tiles.append(tile)
        rest = [i for i in range(len(fine)) if i not in order]
        spare = devices.size // int(np.prod(tiles, dtype=np.int64))
        flat = devices.transpose([*order, *rest]).reshape(-1)
        if spare > 1:
            tiles.append(spare)
        message = _field(1, _TILED) + _packed(3, tiles) + _packed(4, flat.tolist())
        if self.unreduced:
            return message + _packed(8, [_UNREDUCED, _REPLICATED][: 2 if spare > 1 else 1])
        return message + (_field(6, 1) if spare > 1 else b"")


def _parse_axis(axis: str) -> tuple[str, int, int]:
    match = _AXIS.match(axis)
    assert match is not None
    name, before, size = match.groups()
    return name, int(before or 0), int(size or 0)


def parse_sharding(text: str, known: dict[str, Mesh]) -> Sharding | None:
    """A `#sdy.sharding<@mesh, [{"x"}, {}]>`; None when it is on a mesh without axes."""
    match = re.search(r"<@([\w.\-]+), \[(.*?)\]", text)
    if match is None or match.group(1) not in known:
        return None
    dimensions = tuple(
        tuple(m.group(0) for m in _AXIS.finditer(part)) for part in re.findall(r"\{([^}]*)\}", match.group(2))
    )
    terms = re.search(r"unreduced=\{([^}]*)\}", text)
    unreduced = tuple(m.group(0) for m in _AXIS.finditer(terms.group(1))) if terms else ()
    return Sharding(known[match.group(1)], dimensions, unreduced)


def parse_shardings(text: str, known: dict[str, Mesh]) -> list[Sharding | None]:
    """The entries of a `#sdy.sharding_per_value<[<@mesh, [...]>, ...]>`."""
    return [parse_sharding(part.group(0), known) for part in re.finditer(r"<@[\w.\-]+, \[.*?\][^<]*>", text)]


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _packed(number: int, values: list[Any]) -> bytes:
    body = b"".join(_varint(v) for v in values)
    return _varint(number << 3 | 2) + _varint(len(body)) + body


# Serialised xla.OpShardings: a copy on each device, and values that each device has its own of.
REPLICATED, MANUAL = _field(1, _REPLICATED), _field(1, _MANUAL)
