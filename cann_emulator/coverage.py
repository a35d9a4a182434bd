"""Which aclnn operators are implemented, and where: read from the tables and the kernels' source, without torch.

An operator is a *row* (a line in a table, run natively as an ATen operator) or a *function* (a Python kernel,
registered by the decorator `@kernel("aclnnName")`).
"""

import ast
import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parent
SIGNATURES = PACKAGE / "signatures" / "aclnn.json"


@dataclass(frozen=True)
class Operator:
    """One line of `cann-emulator ops`: `kernel_file` is relative to the folder that holds the package."""

    name: str
    implemented: bool
    kernel_file: str | None
    source: str | None  # "row", "function", or None where the operator is not implemented


def operators() -> list[Operator]:
    """Every operator of the signature table, in its order."""
    found = {name: ("row", path) for path, name in _rows()}
    found |= {name: ("function", path) for path, name in _functions()}
    result = []
    for name in json.loads(SIGNATURES.read_text()):
        source, path = found.get(name, (None, None))
        result.append(Operator(name, source is not None, path, source))
    return result


def _rows() -> Iterator[tuple[str, str]]:
    for path in sorted((PACKAGE / "signatures" / "rows").glob("*.toml")):
        for table in tomllib.loads(path.read_text()).values():
            for name in table:
                yield _relative(path), name


def _functions() -> Iterator[tuple[str, str]]:
    for path in sorted((PACKAGE / "kernels").glob("**/*.py")):
        source = path.read_text()
        if "kernel(" not in source:
            continue
        for node in ast.walk(ast.parse(source, path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "kernel":
                for argument in node.args:
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                        yield _relative(path), argument.value


def _relative(path: Path) -> str:
    return path.relative_to(PACKAGE.parent).as_posix()
