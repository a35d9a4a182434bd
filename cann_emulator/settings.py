"""The CANN_EMULATOR_* variables: what each may be, checked before a program starts."""

import difflib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

# SoC names as aclrtGetSocName gives them, by product.
SOCS = {
    "Ascend910B1": "Atlas A2",
    "Ascend910B2": "Atlas A2",
    "Ascend910B3": "Atlas A2",
    "Ascend910B4": "Atlas A2",
    "Ascend910_9391": "Atlas A3",
    "Ascend910_9392": "Atlas A3",
    "Ascend910_9381": "Atlas A3",
    "Ascend910_9382": "Atlas A3",
    "Ascend910_9372": "Atlas A3",
    "Ascend910_9362": "Atlas A3",
    "Ascend950PR_9579": "Atlas 950",
    "Ascend950DT_9595": "Atlas 950",
}
DEFAULTS = {
    "CANN_EMULATOR_DEVICES": "8",
    "CANN_EMULATOR_SOC": "Ascend910_9391",
    "CANN_EMULATOR_HBM_GB": "64",
}
MAX_DEVICES = 64


class BadSetting(Exception):
    """A CANN_EMULATOR_* variable or option has a value that it cannot have."""


def _devices(value: str) -> None:
    if not value.isdecimal() or not 1 <= int(value) <= MAX_DEVICES:
        raise BadSetting(f"a whole number from 1 to {MAX_DEVICES} is wanted")


def _soc(value: str) -> None:
    if value not in SOCS:
        near = difflib.get_close_matches(value, SOCS, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}? " if near else ""
        raise BadSetting(f"{hint}known names: {', '.join(SOCS)}")


def _hbm(value: str) -> None:
    try:
        positive = 0 < float(value) < float("inf")
    except ValueError:
        positive = False
    if not positive:
        raise BadSetting("a number of GiB greater than 0 is wanted")


def _folder(value: str) -> None:
    path = Path(value)
    if path.exists() and not path.is_dir():
        raise BadSetting("it is a file; a folder for the counters is wanted")


def _file(value: str) -> None:
    path = Path(value)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise BadSetting("a file in an existing folder is wanted")


def _any(value: str) -> None:
    pass


CHECKS: dict[str, Callable[[str], None]] = {
    "CANN_EMULATOR_DEVICES": _devices,
    "CANN_EMULATOR_SOC": _soc,
    "CANN_EMULATOR_HBM_GB": _hbm,
    "CANN_EMULATOR_STATS": _folder,
    "CANN_EMULATOR_TRACE": _file,
    "CANN_EMULATOR_FAULTS": _any,
    "CANN_EMULATOR_HOME": _any,
}
# Read by programs that may change their working folder first.
_PATHS = ("CANN_EMULATOR_STATS", "CANN_EMULATOR_TRACE", "CANN_EMULATOR_FAULTS", "CANN_EMULATOR_HOME")


def setting(name: str) -> str:
    """The value in force: the environment's, or the default."""
    return os.environ.get(name) or DEFAULTS[name]


def checked(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings in `environ`, checked, with paths made absolute."""
    found = {name: environ[name] for name in CHECKS if environ.get(name)}
    for name, value in found.items():
        try:
            CHECKS[name](value)
        except BadSetting as error:
            raise BadSetting(f"{name}={value}: {error}") from None
        if name in _PATHS:
            found[name] = str(Path(value).absolute())
    return found


def unknown(environ: Mapping[str, str]) -> list[str]:
    """One warning for each variable that looks like a setting and is none, so that a typing error is seen."""
    warnings = []
    for name in sorted(environ):
        if name.startswith("CANN_EMULATOR_") and name not in CHECKS:
            near = difflib.get_close_matches(name, CHECKS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(CHECKS)}"
            warnings.append(f"{name} is not a setting and has no effect; {hint}")
    return warnings
