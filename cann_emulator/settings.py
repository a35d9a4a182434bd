"""The CANN_EMULATOR_* variables: what each may be, checked before a program starts."""

import difflib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

# SoC names as aclrtGetSocName gives them, by product. Their cores and caches: native/ascendcl/soc.cpp.
_PRODUCTS = {
    "Ascend 910": ("910A", "910B", "910ProA", "910ProB", "910PremiumA"),
    "Ascend 310P": ("310P1", "310P3"),
    "Atlas A2": ("910B1", "910B2", "910B2C", "910B3", "910B4", "910B4-1"),
    "Atlas A3": ("910_9391", "910_9392", "910_9381", "910_9382", "910_9372", "910_9362"),
    "Ascend 950": ("950DT_9591", "950DT_9581", "950PR_9599", "950PR_9589", "950PR_9579"),
}
SOCS = {f"Ascend{name}": product for product, names in _PRODUCTS.items() for name in names}
DEFAULTS = {
    "CANN_EMULATOR_DEVICES": "8",
    "CANN_EMULATOR_SOC": "Ascend910_9391",
    "CANN_EMULATOR_HBM_GB": "64",
}
MAX_DEVICES = 1024
_SMALLEST_HBM = 0.01  # GiB; torch_npu takes memory in pieces of 2 and 20 MiB


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
        fits = _SMALLEST_HBM <= float(value) < float("inf")
    except ValueError:
        fits = False
    if not fits:
        raise BadSetting(f"a number of GiB of at least {_SMALLEST_HBM} is wanted")


def _folder(value: str) -> None:
    path = Path(value)
    if path.exists() and not path.is_dir():
        raise BadSetting("it is a file; a folder for the counters is wanted")


def _file(value: str) -> None:
    path = Path(value)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise BadSetting("a file in an existing folder is wanted")


def _switch(value: str) -> None:
    if value not in ("0", "1"):
        raise BadSetting("0 or 1 is wanted")


def _loss(value: str) -> None:
    device, _, model = value.partition(":")
    if not device.isdecimal() or not model.isdecimal() or int(model) < 1:
        raise BadSetting("DEVICE:N is wanted, such as 1:20 for device 1 from its 20th model on")


def _any(value: str) -> None:
    pass


CHECKS: dict[str, Callable[[str], None]] = {
    "CANN_EMULATOR_DEVICES": _devices,
    "CANN_EMULATOR_SOC": _soc,
    "CANN_EMULATOR_HBM_GB": _hbm,
    "CANN_EMULATOR_STATS": _folder,
    "CANN_EMULATOR_TRACE": _file,
    "CANN_EMULATOR_HOME": _any,
    "CANN_EMULATOR_HCCL_PORT_CLASH": _switch,
    "CANN_EMULATOR_LOSE_DEVICE": _loss,
}
# Read by programs that may change their working folder first.
_PATHS = ("CANN_EMULATOR_STATS", "CANN_EMULATOR_TRACE", "CANN_EMULATOR_HOME")


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
