"""What the bridge asks for: the kernel functions, the rows, and the dtypes that operators are limited to.

A **row** maps an aclnn operator to one ATen operator and is run by the bridge without Python. A **function** is a
Python kernel. Rows and limits are data in `cann_emulator/signatures/`; functions are decorated with `kernel`.
"""

import ast
import importlib
import json
import os
import pkgutil
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NoReturn

from cann_emulator import settings

SIGNATURES = Path(__file__).parent.parent / "signatures"
_FUNCTIONS: dict[str, Callable] = {}
_ROW = re.compile(r"(?P<flags>(?:\w+ +)*)(?P<op>\w+)(?:\.(?P<overload>\w+))?\((?P<args>.*)\)(?: *-> *(?P<outs>.+))?$")
_LITERALS = {"none": None, "true": True, "false": False, "float64": 7}  # a dtype is ATen's number of it
# f32: halves are computed in fp32. cube: so are those of a matrix product, unless the CPU itself sums bf16 in fp32.
FLAGS = ("f32", "cube")


class AclnnError(Exception):
    """An operator's refusal; `code` is the aclnn status that the caller sees.

    Attributes:
        code: aclnn status, e.g. 161002 (parameter invalid).
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def refuse(code: int, message: str) -> NoReturn:
    """Refuses the call as hardware would.

    Args:
        code: aclnn status, e.g. 161002 for an invalid parameter.
        message: names the argument, what it got and what is allowed.
    """
    raise AclnnError(code, message)


def kernel(*names: str) -> Callable[[Callable], Callable]:
    """Registers a function as the kernel of the aclnn operators `names`.

    The function gets the operator's arguments in the order of `signatures/aclnn.json` (tensors share the device
    memory) and writes its outputs in place. Where the table lists `dynamic_outputs`, it returns their real shape, or
    a tuple of shapes.
    """

    def register(function: Callable) -> Callable:
        for name in names:
            if name in _FUNCTIONS:
                raise ValueError(f"{name} has two kernels: {_FUNCTIONS[name].__module__} and {function.__module__}")
            _FUNCTIONS[name] = function
        return function

    return register


@dataclass(frozen=True, slots=True)
class Argument:
    """A value for one argument of the ATen operator.

    Attributes:
        keyword: the ATen argument's name, or None where it is given by position.
        source: index of the aclnn argument that holds the value, or -1 for a literal.
        literal: the value where `source` is -1.
    """

    keyword: str | None
    source: int
    literal: object


@dataclass(frozen=True, slots=True)
class Row:
    """An aclnn operator that is one ATen operator.

    Attributes:
        name: aclnn name.
        op: ATen operator, without `aten::`.
        overload: its overload, "" for the default.
        arguments: what ATen's arguments are given.
        outputs: indices of the aclnn arguments that the results are copied to, where the ATen form has no `out`.
        flags: those of `FLAGS` that are set.
        file: the file that holds the row, relative to the signatures folder.
    """

    name: str
    op: str
    overload: str
    arguments: tuple[Argument, ...]
    outputs: tuple[int, ...]
    flags: tuple[str, ...]
    file: str


@cache
def signatures() -> dict[str, dict]:
    """The signature table: aclnn name -> entry (see `signatures/README.md`)."""
    table = json.loads((SIGNATURES / "aclnn.json").read_text())
    return {name: entry for name, entry in table.items() if not name.startswith("_")}


def parse_row(name: str, text: str, file: str) -> Row:
    """Reads one row.

    Raises:
        ValueError: the text is no row, or names an argument the operator does not have.
    """
    entry = signatures().get(name)
    if entry is None:
        raise ValueError(f"{file}: {name} is not in signatures/aclnn.json")
    match = _ROW.match(text)
    if match is None:
        raise ValueError(f'{file}: {name} = "{text}" is not of the form "[flags] op.overload(arguments) [-> outputs]"')
    indices = {arg: i for i, (arg, _) in enumerate(entry["args"])}

    def argument(keyword: str | None, node: ast.expr) -> Argument:
        if isinstance(node, ast.Name):
            if node.id in indices:
                return Argument(keyword, indices[node.id], None)
            if node.id in _LITERALS:
                return Argument(keyword, -1, _LITERALS[node.id])
            raise ValueError(f"{file}: {name} has no argument {node.id}; it has {', '.join(indices)}")
        return Argument(keyword, -1, ast.literal_eval(node))

    call = ast.parse(f"f({match['args']})", mode="eval").body
    assert isinstance(call, ast.Call)
    arguments = [argument(None, node) for node in call.args]
    arguments += [argument(keyword.arg, keyword.value) for keyword in call.keywords]
    outputs = [out.strip() for out in match["outs"].split(",")] if match["outs"] else []
    unknown = [out for out in outputs if out not in indices]
    if unknown:
        raise ValueError(f"{file}: {name} has no output {unknown[0]}; it has {', '.join(indices)}")
    flags = tuple(match["flags"].split())
    if not set(flags) <= set(FLAGS):
        raise ValueError(f"{file}: {name} has flags {flags}; known are {FLAGS}")
    return Row(
        name, match["op"], match["overload"] or "", tuple(arguments), tuple(indices[o] for o in outputs), flags, file
    )


def rows() -> dict[str, Row]:
    """All rows by aclnn name.

    Raises:
        ValueError: a row is malformed or written twice.
    """
    found: dict[str, Row] = {}
    for path in sorted((SIGNATURES / "rows").glob("*.toml")):
        for name, text in tomllib.loads(path.read_text()).items():
            if name in found:
                raise ValueError(f"{name} has two rows: {found[name].file} and rows/{path.name}")
            found[name] = parse_row(name, text, f"rows/{path.name}")
    return found


def functions() -> dict[str, Callable]:
    """All kernel functions by aclnn name; imports every module of `cann_emulator.kernels`."""
    package = importlib.import_module(__package__ or "cann_emulator.kernels")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return _FUNCTIONS | {name: _absent(name, products) for name, products in _absences()}


def soc() -> str:
    """The emulated SoC's name."""
    return os.environ.get("CANN_EMULATOR_SOC") or settings.DEFAULTS["CANN_EMULATOR_SOC"]


def product() -> str:
    """The emulated SoC's product, such as "Atlas A3"."""
    return settings.SOCS[soc()]


def _absences() -> Iterator[tuple[str, list[str]]]:
    """The operators that the emulated product has no kernel of, and the products that have one."""
    table = tomllib.loads((SIGNATURES / "products.toml").read_text())
    for name, products in table.items():
        if name not in signatures() or not set(products) <= set(settings.SOCS.values()):
            raise ValueError(f"products.toml: {name} = {products}: no such operator or product")
        if product() not in products:
            yield name, products


def _absent(name: str, products: list[str]) -> Callable:
    def function(*args: object) -> NoReturn:
        refuse(561000, f"{name} has no kernel binary for {soc()}; it exists for {', '.join(products)}")

    return function


@cache
def _acl_dtypes() -> dict[str, int]:
    """ "float16" -> 1: aclDataType numbers by lower-case name without the ACL_ prefix."""
    table = json.loads((SIGNATURES / "acl_enums.json").read_text())["aclDataType"]
    return {name.removeprefix("ACL_").lower(): facts["value"] for name, facts in table.items() if facts["value"] >= 0}


def dtype_limits() -> Iterator[tuple[str, int, int]]:
    """(aclnn name, argument index, bit mask over aclDataType) for every limit in `signatures/dtypes.toml`.

    Raises:
        ValueError: the table names an operator, argument or dtype that does not exist.
    """
    path = SIGNATURES / "dtypes.toml"
    if not path.exists():
        return
    table = tomllib.loads(path.read_text())
    for name, limits in table["limits"].items():
        if name not in signatures():
            raise ValueError(f"dtypes.toml: {name} is not in signatures/aclnn.json")
        indices = {arg: i for i, (arg, _) in enumerate(signatures()[name]["args"])}
        for args, listed in limits.items():
            dtypes = {dtype for entry in listed for dtype in table["sets"].get(entry, [entry])}
            for arg in args.split():
                if arg not in indices or not dtypes <= _acl_dtypes().keys():
                    raise ValueError(f"dtypes.toml: {name}.{arg}: no such argument, or unknown dtypes in {listed}")
                yield name, indices[arg], sum(1 << _acl_dtypes()[dtype] for dtype in dtypes)


@cache
def _torch_dtypes() -> dict:
    import torch

    names = {
        "float": "float32",
        "double": "float64",
        "bf16": "bfloat16",
        "float8_e5m2": "float8_e5m2",
        "float8_e4m3fn": "float8_e4m3fn",
        "float8_e8m0": "float8_e8m0fnu",
    }
    return {
        value: getattr(torch, names.get(name, name))
        for name, value in _acl_dtypes().items()
        if hasattr(torch, names.get(name, name))
    }


def torch_dtype(acl_dtype: int):  # unannotated: torch is imported only when a kernel runs
    """The torch dtype of an aclDataType number.

    Raises:
        AclnnError: 161002, torch has no such dtype.
    """
    found = _torch_dtypes().get(acl_dtype)
    if found is None:
        refuse(161002, f"aclDataType {acl_dtype} has no counterpart in torch")
    return found
