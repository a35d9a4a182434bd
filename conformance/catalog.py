"""The operators of PyTorch's database, by name, and the dtypes they are run in."""

import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "bool": torch.bool,
}

# Their result is whatever was in memory: shape, dtype and device are compared.
UNINITIALISED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}


class Deviation(NamedTuple):
    """What deviations.toml says of an operator."""

    results: frozenset[int] = frozenset()
    gradients: frozenset[int] = frozenset()
    error: str = "(?!)"  # matches nothing
    absolute: Mapping[str, float] = MappingProxyType({})  # by dtype


@cache
def deviations() -> dict[str, Deviation]:
    """By operator."""
    found: dict[str, Deviation] = {}
    table = tomllib.loads((Path(__file__).parent / "deviations.toml").read_text())
    for entry in table.values():
        for name in entry["operators"]:
            had = found.get(name, Deviation())
            found[name] = Deviation(
                had.results | frozenset(entry.get("results", ())),
                had.gradients | frozenset(entry.get("gradients", ())),
                entry.get("error", had.error),
                {**had.absolute, **entry.get("absolute", {})},
            )
    return found


@cache
def operators() -> dict[str, Any]:
    """name -> OpInfo."""
    from torch.testing._internal import common_methods_invocations as database

    # The database seeds with 42 around what draws, and puts the generator back. Here the caller seeds, and looks at the
    # generator to learn whether anything was drawn.
    database.wrapper_set_seed = lambda call, *args, **kwargs: call(*args, **kwargs)
    return {op.full_name: op for op in database.op_db}


def dtypes_of(op: Any) -> list[str]:
    """The dtypes that are run: those which the CPU supports."""
    supported = op.supported_dtypes("cpu")
    return [name for name, dtype in DTYPES.items() if dtype in supported]


def differentiable(op: Any, dtype: torch.dtype) -> bool:
    return op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")


def cases(names: Iterable[str] | None = None) -> list[tuple[str, str]]:
    """Every (operator, dtype), or those of the named operators."""
    known = operators()
    return [(name, dtype) for name in (names or known) for dtype in dtypes_of(known[name])]
