"""How arguments and results of a program are spread: as the program says, whole, or as propagation chose."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir

from xla_npu.compiler.annotations import entries, function_types, main_function
from xla_npu.compiler.attributes import parse_type
from xla_npu.compiler.options import Options
from xla_npu.compiler.sharding import Mesh, Sharding, meshes, parse_sharding

_SHARDING = "sdy.sharding"

# Of a mesh, the finer axes that make up each of its own.
Axes = list[tuple[str, ...]]


def settle(module: ir.Module, options: Options) -> dict[str, set[int]]:
    """Replicates arguments and results whose sharding is not given and may not be chosen.

    Returns those that it may be chosen for, under the attribute that keeps it.
    """
    main = main_function(module)
    mesh = next(m.name for m in meshes(module).values() if not m.maximal)
    open_ends: dict[str, set[int]] = {}
    for name, allowed, types in zip(
        ("arg_attrs", "res_attrs"),
        (options.propagate_to_parameters, options.propagate_to_outputs),
        function_types(main),
        strict=True,
    ):
        open_ends[name] = set()
        settled = []
        for i, values in enumerate(_ends(main, name, len(types))):
            free = allowed[i] if i < len(allowed) else (allowed[0] if len(allowed) == 1 else False)
            if _SHARDING not in values and "token" not in types[i]:
                if free:
                    open_ends[name].add(i)
                else:
                    whole = ", ".join(["{}"] * len(parse_type(types[i])[1]))
                    values[_SHARDING] = ir.Attribute.parse(f"#sdy.sharding<@{mesh}, [{whole}]>")
            settled.append(ir.DictAttr.get(values))
        main.attributes[name] = ir.ArrayAttr.get(settled)
    return open_ends


def take_whole_axes(
    module: ir.Module, known: dict[str, Mesh], open_ends: dict[str, set[int]], axes: Sequence[Axes]
) -> None:
    """Where propagation chose, JAX has to be able to name it: by whole axes of the program's own meshes."""
    main = main_function(module)
    for name, types in zip(("arg_attrs", "res_attrs"), function_types(main), strict=True):
        settled = []
        for i, values in enumerate(_ends(main, name, len(types))):
            sharding = parse_sharding(str(values.get(_SHARDING, "")), known)
            if i in open_ends[name] and sharding is not None:
                named = _named(sharding, axes)
                values[_SHARDING] = ir.Attribute.parse(named.attribute())
            settled.append(ir.DictAttr.get(values))
        main.attributes[name] = ir.ArrayAttr.get(settled)


def _named(sharding: Sharding, axes: Sequence[Axes]) -> Sharding:
    """The same up to the first part of an axis in each dimension."""
    dimensions = sharding.dimensions
    for of_mesh in axes:
        dimensions = tuple(_whole(names, of_mesh) for names in dimensions)
    return Sharding(sharding.mesh, dimensions, sharding.unreduced)


def _whole(names: tuple[str, ...], axes: Axes) -> tuple[str, ...]:
    kept = 0
    while fitting := [axis for axis in axes if axis and names[kept : kept + len(axis)] == axis]:
        kept += len(fitting[0])
    return names[:kept]


def spread(module: ir.Module, known: dict[str, Mesh]) -> tuple[list[Sharding | None], list[Sharding | None]]:
    """How arguments and results are spread; None: a copy on each device."""
    main = main_function(module)
    arguments, results = (
        [parse_sharding(str(values.get(_SHARDING, "")), known) for values in _ends(main, name, len(types))]
        for name, types in zip(("arg_attrs", "res_attrs"), function_types(main), strict=True)
    )
    return arguments, results


def _ends(main: ir.Operation, name: str, count: int) -> list[dict[str, ir.Attribute]]:
    if name not in main.attributes:
        return [{} for _ in range(count)]
    return [entries(entry) for entry in ir.ArrayAttr(main.attributes[name])]
