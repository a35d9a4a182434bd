"""Operator definitions: what an operator takes and gives, and which dtypes the SoC computes it in.

The data is in `operators/prototypes.json`, one operator a line:
    inputs, outputs: [name, "" | "optional" | "dynamic", dtypes of the prototype ("*": all)]
    attrs: name -> [kind] for a required attribute, [kind, default] for the others
    graphs: [name] or [name, "dynamic"]
    plugin: the module of `ge.es` that has the operator, "math"
    socs: SoC families for which a kernel is registered in public
    core, cpu: combinations of dtypes that AI Core and AI CPU kernels are registered for: a text for each input and
        output; the n-th words of all of them are the n-th combination
"""

import json
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from ..error import GraphFault
from ..graph.types import DataType

# Short names of dtypes, as the data has them.
SHORT = {
    DataType.DT_FLOAT: "f32",
    DataType.DT_FLOAT16: "f16",
    DataType.DT_BF16: "bf16",
    DataType.DT_DOUBLE: "f64",
    DataType.DT_INT8: "i8",
    DataType.DT_INT16: "i16",
    DataType.DT_INT32: "i32",
    DataType.DT_INT64: "i64",
    DataType.DT_UINT8: "u8",
    DataType.DT_UINT16: "u16",
    DataType.DT_UINT32: "u32",
    DataType.DT_UINT64: "u64",
    DataType.DT_BOOL: "bool",
    DataType.DT_COMPLEX32: "c32",
    DataType.DT_COMPLEX64: "c64",
    DataType.DT_COMPLEX128: "c128",
    DataType.DT_FLOAT8_E5M2: "f8e5m2",
    DataType.DT_FLOAT8_E4M3FN: "f8e4m3",
    DataType.DT_FLOAT8_E8M0: "f8e8m0",
}
LONG = {short: int(dtype) for dtype, short in SHORT.items()}
BYTES = {
    "f32": 4, "f16": 2, "bf16": 2, "f64": 8, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "u8": 1, "u16": 2, "u32": 4,
    "u64": 8, "bool": 1, "c32": 4, "c64": 8, "c128": 16, "f8e5m2": 1, "f8e4m3": 1, "f8e8m0": 1,
}  # fmt: skip
# What only Ascend 950 has.
_ONLY_950 = frozenset({"f8e5m2", "f8e4m3", "f8e8m0", "hif8", "f4e2m1", "f4e1m2"})
_FAMILIES = {
    "Ascend910B": "ascend910b",
    "Ascend910_93": "ascend910_93",
    "Ascend950": "ascend950",
    "Ascend310P": "ascend310p",
}


def family(soc: str) -> str:
    """The family of a SoC, "ascend910b" for Ascend910B1, as kernels name it."""
    return next((known for prefix, known in _FAMILIES.items() if soc.startswith(prefix)), "ascend910")


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of an operator; `kind` is "", "optional" or "dynamic"."""

    name: str
    kind: str
    dtypes: frozenset[str]


@dataclass(slots=True)
class Prototype:
    """An operator's definition."""

    type: str
    inputs: list[Port]
    outputs: list[Port]
    attrs: dict[str, list[Any]]
    graphs: list[list[str]]
    socs: frozenset[str]
    tables: list[frozenset[tuple[str, ...]]]
    allowed: dict[tuple[str, tuple[str | None, ...]], bool] = field(default_factory=dict)

    def check_dtypes(self, soc_family: str, soc: str, used: tuple[str | None, ...], name: str) -> None:
        """Refuses dtypes that the prototype or the SoC's kernels do not have.

        Args:
            soc_family: see `family`.
            soc: the SoC's name, for the message.
            used: dtypes of the inputs, then of the outputs; None for absent ones.
            name: the node's name, for the message.

        Raises:
            GraphFault: EZ3002 or EZ3003.
        """
        key = (soc_family, used)
        if self.allowed.get(key):
            return
        ports = self.inputs + self.outputs
        for port, dtype in zip(ports, used, strict=True):
            if dtype is not None and dtype not in port.dtypes and "*" not in port.dtypes:
                side = "input" if port in self.inputs else "output"
                raise GraphFault(
                    "EZ3002",
                    f"Optype [{self.type}] of node [{name}]: {side} {port.name} has dtype {dtype}; its prototype "
                    f"allows {' '.join(sorted(port.dtypes))}.",
                )
            if dtype in _ONLY_950 and soc_family != "ascend950":
                raise GraphFault(
                    "EZ3003",
                    f"Optype [{self.type}] of node [{name}]: {soc} has no {dtype}; Ascend950 has it (documented).",
                )
        if self.tables and not any(_matches(row, used) for table in self.tables for row in table):
            documented = soc_family == "ascend950" or soc_family in self.socs
            rows = {row[: len(self.inputs)] for table in self.tables for row in table}
            raise GraphFault(
                "EZ3003",
                f"No supported Ops kernel and engine are found for [{name}], optype [{self.type}] on {soc}: its dtypes "
                f"are {_text(used[: len(self.inputs)])} -> {_text(used[len(self.inputs) :])}; kernels exist for inputs "
                f"{'; '.join(sorted(_text(row) for row in rows))} "
                + (
                    "(documented)."
                    if documented
                    else "(assumed: this SoC's kernels are not public; Ascend950's table)."
                ),
            )
        self.allowed[key] = True


def _text(dtypes: tuple[str | None, ...]) -> str:
    return ", ".join(dtype or "none" for dtype in dtypes)


def _matches(row: tuple[str, ...], used: tuple[str | None, ...]) -> bool:
    return all(have is None or have == want or have in want.split("|") for want, have in zip(row, used, strict=True))


def _tables(entry: dict[str, Any]) -> list[frozenset[tuple[str, ...]]]:
    return [
        frozenset(zip(*(column.split() for column in entry[kind]), strict=True))
        for kind in ("core", "cpu")
        if kind in entry
    ]


@cache
def _raw() -> dict[str, dict[str, Any]]:
    return json.loads((Path(__file__).parent.parent / "operators" / "prototypes.json").read_text())


def known_types() -> list[str]:
    """All operator types."""
    return list(_raw())


def types_of_plugin(name: str) -> list[str]:
    """The operator types of a module of `ge.es`."""
    return [type for type, entry in _raw().items() if entry.get("plugin") == name]


@cache
def prototype(type: str) -> Prototype:
    """The definition of an operator.

    Raises:
        GraphFault: E14005, there is none.
    """
    entry = _raw().get(type)
    if entry is None:
        if type.startswith("Hcom"):
            raise GraphFault(
                "E14005",
                f"Operator type [{type}]: the CANN emulator's models do not communicate. Cut the program at "
                f"collectives and call HCCL between the models.",
            )
        near = get_close_matches(type, _raw(), n=3)
        hint = f" Near: {', '.join(near)}." if near else ""
        raise GraphFault("E14005", f"Operator type [{type}] is not registered in the emulated CANN.{hint}")

    def ports(side: str) -> list[Port]:
        return [Port(name, kind, frozenset(dtypes.split())) for name, kind, dtypes in entry[side]]

    return Prototype(
        type,
        ports("inputs"),
        ports("outputs"),
        entry.get("attrs", {}),
        entry.get("graphs", []),
        frozenset(entry.get("socs", [])),
        _tables(entry),
    )
