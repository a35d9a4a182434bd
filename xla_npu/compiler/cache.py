"""Compiled programs on disk: keyed by everything that the result depends on, shared by processes."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from functools import cache as memoize
from importlib.metadata import version
from pathlib import Path

from xla_npu.compiler.backend import autofuse
from xla_npu.compiler.executable import FORMAT, Executable
from xla_npu.compiler.options import Options

logger = logging.getLogger(__name__)


def folder() -> Path | None:
    """`XLA_NPU_CACHE`, by default a folder of the user's cache; None when it is set to nothing or `0`."""
    setting = os.environ.get("XLA_NPU_CACHE")
    if setting is None:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "xla_npu"
    return Path(setting) if setting not in ("", "0") else None


@memoize
def _surroundings() -> str:
    """What may change the result beside the program: the compiler's own sources, jaxlib and CANN."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*")):
        if path.suffix in (".py", ".toml"):
            digest.update(path.read_bytes())
    home = Path(os.environ.get("ASCEND_HOME_PATH", ""))
    for name in ("version.info", "version.cfg"):
        for path in (home / name, home / "compiler" / name):
            if path.is_file():
                digest.update(path.read_bytes())
    return f"{FORMAT} {version('jaxlib')} {home} {autofuse()} {digest.hexdigest()}"


def key(code: bytes, options: Options, soc: str, allow_hf32: bool) -> str:
    """The name of a program's entry. `code` does not say where in the user's program its operations are."""
    digest = hashlib.sha256(code)
    digest.update(f"{options} {soc} {allow_hf32} {_surroundings()}".encode())
    return digest.hexdigest()


def read(name: str) -> Executable | None:
    """The program of that name; None when there is none, or what is there is damaged."""
    where = folder()
    if where is None:
        return None
    path = where / name[:2] / name
    try:
        return Executable.from_bytes(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("%s cannot be used and is compiled again: %s", path, error)
        return None


_warned: set[str] = set()


def write(name: str, executable: Executable) -> None:
    """Stores a program, whole or not at all; says once that it cannot."""
    where = folder()
    if where is None:
        return
    directory = where / name[:2]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory, delete=False) as file:
            file.write(executable.to_bytes())
        os.replace(file.name, directory / name)
    except OSError as error:
        if str(where) not in _warned:
            _warned.add(str(where))
            logger.warning("compiled programs are not kept: %s (XLA_NPU_CACHE names another folder)", error)
