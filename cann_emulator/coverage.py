"""Which aclnn operators are implemented, and where: read from the tables and the kernels' source, without torch.

An operator is a *row* (a line in a table, run natively as an ATen operator) or a *function* (a Python kernel,
registered by the decorator `@kernel("aclnnName")`). The few aclnn functions that launch nothing are *native*, in C++.
"""

import ast
import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent
SIGNATURES = PACKAGE / "signatures" / "aclnn.json"
DIRECT = "cann_emulator/native/opapi/direct.cpp"


@dataclass(frozen=True)
class Operator:
    """One line of `cann-emulator ops`: `kernel_file` is relative to the folder that holds the package."""

    name: str
    implemented: bool
    kernel_file: str | None
    source: str | None  # "row", "function", "native", or None where the operator is not implemented


@cache
def signatures() -> dict[str, dict]:
    """The signature table, without what it says about itself (names with an underscore)."""
    table = json.loads(SIGNATURES.read_text())
    return {name: entry for name, entry in table.items() if not name.startswith("_")}


def operators() -> list[Operator]:
    """Every operator of the signature table, in its order."""
    found = kernels()
    result = []
    for name, entry in signatures().items():
        # A `...GetMaxWorkspaceSize` entry is another first phase of the operator it is named after.
        source, path = found.get(name.removesuffix("GetMaxWorkspaceSize"), (None, None))
        if entry.get("form") == "direct":
            source, path = "native", DIRECT
        result.append(Operator(name, source is not None, path, source))
    return result


def kernels() -> dict[str, tuple[str, str]]:
    """Name -> ("row" or "function", file) of everything that is written down as an operator's kernel."""
    found = {name: ("row", path) for path, name in _rows()}
    return found | {name: ("function", path) for path, name in _functions()}


def _rows() -> Iterator[tuple[str, str]]:
    for path in sorted((PACKAGE / "signatures" / "rows").glob("*.toml")):
        for name in tomllib.loads(path.read_text()):
            yield _relative(path), name


def _functions() -> Iterator[tuple[str, str]]:
    for path in sorted((PACKAGE / "kernels").glob("*.py")):  # those below are the Graph Engine's operators
        nodes = list(ast.walk(ast.parse(path.read_text(), path)))
        for node in nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "kernel":
                for argument in node.args:
                    yield from ((_relative(path), name) for name in _names(argument, nodes))


def _names(argument: ast.expr, nodes: list[ast.AST]) -> list[str]:
    """The operators that an argument of `kernel(...)` names: one, or a family, registered for the entries of a table in
    the same file, as in `for name in TABLE: kernel(f"aclnnForeach{name}List")(...)`.
    """
    match argument:
        case ast.Constant():
            return [str(argument.value)]
        case ast.JoinedStr():
            family = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in argument.values)
        case _:
            family = "{}"
    known = signatures()
    return [name for entry in _table_entries(nodes) if (name := family.format(entry)) in known]


def _table_entries(nodes: list[ast.AST]) -> list[str]:
    """The keys of the file's dictionaries, and the texts in its other collections."""
    texts: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Dict | ast.Tuple | ast.List | ast.Set):
            entries = node.keys if isinstance(node, ast.Dict) else node.elts
            texts |= {
                entry.value for entry in entries if isinstance(entry, ast.Constant) and isinstance(entry.value, str)
            }
    return sorted(texts)


def _relative(path: Path) -> str:
    return path.relative_to(PACKAGE.parent).as_posix()
