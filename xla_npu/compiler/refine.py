"""Splits mesh axes into prime factors, so that Shardy never has to name a part of an axis.

Its pass that makes programs local gets parts of axes wrong: it slices along the wrong part and permutes shards to the
wrong devices. Meshes over the same devices in the same order become one mesh on the way, so that a value can go from
one to the other.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Any

from jaxlib.mlir import ir

from xla_npu.compiler.sharding import Mesh, meshes

_REFERENCE = re.compile(r'"([^"]+)"(?::\((\d+)\)(\d+))?')


@dataclass
class _Refined:
    """A mesh in finer axes: `factors` are their sizes, the first the slowest to change."""

    mesh: Mesh
    name: str
    factors: list[int]
    prefix: str

    def axes(self, axis: str, before: int, size: int) -> list[str]:
        """The finer axes that make up an axis, or the part of it behind a product of sizes `before`."""
        low = 1
        for name, extent in self.mesh.axes:
            if name == axis:
                break
            low *= extent
        if before:
            low, high = low * before, low * before * size
        else:
            high = low * dict(self.mesh.axes)[axis]
        names, at = [], 1
        for i, factor in enumerate(self.factors):
            if low <= at < high:
                names.append(f'"{self.prefix}{i}"')
            at *= factor
        return names


def _primes(number: int) -> list[int]:
    factors, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return factors


def _edges(mesh: Mesh) -> set[int]:
    return set(itertools.accumulate([1, *(size for _, size in mesh.axes)], lambda a, b: a * b))


def _factors(edges: set[int]) -> list[int] | None:
    """Prime factors between the edges; None when one edge does not divide the next."""
    ordered = sorted(edges)
    factors: list[int] = []
    for low, high in itertools.pairwise(ordered):
        if high % low:
            return None
        factors += _primes(high // low)
    return factors


def refine(module: ir.Module) -> list[list[tuple[str, ...]]]:
    """Rewrites the meshes of a module, and every attribute that names an axis.

    Returns for each mesh that there was the finer axes that make up each of its own.
    """
    known = meshes(module)
    plans: dict[str, _Refined] = {}
    for devices, group in itertools.groupby(sorted(known.values(), key=lambda m: m.devices), lambda m: m.devices):
        members = list(group)
        common = _factors(set().union(*(_edges(m) for m in members)))
        for number, mesh in enumerate(members):
            own = common if common is not None else _factors(_edges(mesh))
            assert own is not None
            shared = members[0].name if common is not None else mesh.name
            plans[mesh.name] = _Refined(mesh, shared, own, f"axis{len(devices)}_" if common else f"axis{number}_")
    _rewrite_all(module, plans)
    for op in list(module.body.operations):
        operation = op.operation
        if operation.name != "sdy.mesh":
            continue
        plan = plans.get(ir.StringAttr(operation.attributes["sym_name"]).value)
        if plan is None:
            continue
        if plan.name != plan.mesh.name:
            operation.erase()
            continue
        axes = ", ".join(f'"{plan.prefix}{i}"={factor}' for i, factor in enumerate(plan.factors))
        ids = plan.mesh.devices
        order = "" if list(ids) == list(range(len(ids))) else f", device_ids=[{', '.join(map(str, ids))}]"
        operation.attributes["mesh"] = ir.Attribute.parse(f"#sdy.mesh<[{axes}]{order}>")
    return [[tuple(plan.axes(name, 0, 0)) for name, _ in plan.mesh.axes] for plan in plans.values()]


def _rewrite_all(module: ir.Module, plans: dict[str, _Refined]) -> None:
    def visit(op: Any) -> ir.WalkResult:
        if op.name == "sdy.mesh":
            return ir.WalkResult.ADVANCE
        mesh = _mesh_of(op)
        for name in list(op.attributes):
            if name in _NOT_SHARDINGS:
                continue
            text = str(op.attributes[name])
            if "#sdy" in text:
                op.attributes[name] = ir.Attribute.parse(_rewrite(text, plans, mesh))
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)


# Attributes that are long and never name an axis.
_NOT_SHARDINGS = frozenset({"value", "function_type", "sym_name"})
_PART = re.compile(r"(<@)([\w.\-]+)(, )")


def _mesh_of(op: Any) -> str:
    """The mesh of axes that an attribute names without a mesh (`manual_axes`)."""
    for name in ("in_shardings", "out_shardings"):
        if name in op.attributes:
            match = _PART.search(str(op.attributes[name]))
            if match:
                return match.group(2)
    return ""


def _rewrite(text: str, plans: dict[str, _Refined], mesh: str) -> str:
    """Replaces mesh and axis names; text between two mesh names belongs to the first."""
    pieces = _PART.split(text)
    out = [_axes(pieces[0], plans.get(mesh))]
    for i in range(1, len(pieces), 4):
        plan = plans.get(pieces[i + 1])
        out += [pieces[i], plan.name if plan else pieces[i + 1], pieces[i + 2], _axes(pieces[i + 3], plan)]
    return "".join(out)


def _axes(text: str, plan: _Refined | None) -> str:
    if plan is None:
        return text
    known = dict(plan.mesh.axes)

    def replaced(match: re.Match[str]) -> str:
        name, before, size = match.groups()
        if name not in known:
            return match.group(0)
        return ", ".join(plan.axes(name, int(before or 0), int(size or 0)))

    text = _REFERENCE.sub(replaced, text)
    # Axes of size 1 are gone: so are the commas that were next to them.
    text = re.sub(r"(?:, )+", ", ", text)
    text = text.replace("{, ", "{").replace(", }", "}")
    return text.replace(", replicated={}", "").replace(", unreduced={}", "")
