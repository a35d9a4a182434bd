"""Which module a file is."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class File:
    """A module's file."""

    path: str
    blob: str
    package: bool
    """Whether it is an `__init__.py`."""


def package_files(blobs: Mapping[str, str], package: str) -> dict[str, File]:
    """A package's modules by dotted name, from blob ids by path; the package's folder may be below others."""
    inside = package.replace(".", "/") + "/"
    roots = sorted({path[: path.index(inside)] for path in blobs if f"/{inside}" in f"/{path}"}, key=len)
    roots = [root for root in roots if not root or root.endswith("/")]
    if not roots:
        return {}
    root = roots[0]
    files = {}
    for path, blob in blobs.items():
        if path.startswith(root + inside) and path.endswith(".py"):
            parts = path[len(root) : -len(".py")].split("/")
            is_package = parts[-1] == "__init__"
            files[".".join(parts[:-1] if is_package else parts)] = File(path, blob, is_package)
    return files
