"""CANN's compiled operators come in a package for each family of SoCs; without the right one no operator runs.

The first launch then fails with 561000 and a text that names the operator, not the package. Needs no torch.
"""

import os
import re
from pathlib import Path

from torchtitan_npu import devices

_KERNELS = Path("built-in") / "op_impl" / "ai_core" / "tbe" / "kernel"
# The first pattern that a SoC's name matches gives the folder of its family.
_FAMILIES = (
    (r"Ascend910B\d", "ascend910b"),
    (r"Ascend910_93", "ascend910_93"),
    (r"Ascend910", "ascend910"),
    (r"Ascend310P", "ascend310p"),
    (r"Ascend950", "ascend950"),
)


def family(soc: str) -> str | None:
    """The family of a SoC's name as torch_npu gives it ("Ascend910_9391" -> "ascend910_93"), None if unknown."""
    return next((name for pattern, name in _FAMILIES if re.match(pattern, soc)), None)


def missing(soc: str) -> Path | None:
    """The folder that should hold the operators of `soc` and does not exist; None where all is well."""
    home, name = devices.cann_home(), family(soc)
    if home is None or name is None:
        return None
    folder = Path(os.environ.get("ASCEND_OPP_PATH", home / "opp")) / _KERNELS / name
    return None if folder.is_dir() else folder


def problem(soc: str) -> tuple[str, str] | None:
    """(what is wrong, how to mend it) for `soc`, or None."""
    folder = missing(soc)
    if folder is None:
        return None
    return (
        f"no compiled operators for {soc}: {folder} does not exist; the first operator would fail with 561000",
        f"install the CANN kernels package of {family(soc)} for this CANN version",
    )
