"""Where the process would compute: an Ascend device, the CANN emulator, or nowhere. Needs no torch."""

import os
import shutil
import sys
from pathlib import Path

from torchtitan_npu.errors import UserError

CHOICES = ("auto", "npu", "emulator")

# Only the emulated home has this library: it is how a process tells that its CANN is the emulated one.
_EMULATOR_MARK = Path("lib64") / "libcann_bridge.so"


def ascend_devices() -> list[Path]:
    """The device nodes that the Ascend driver makes, davinci0 and so on."""
    return sorted(node for node in Path("/dev").glob("davinci*") if node.name.removeprefix("davinci").isdigit())


def cann_home() -> Path | None:
    home = os.environ.get("ASCEND_HOME_PATH")
    return Path(home) if home else None


def on_emulator() -> bool:
    home = cann_home()
    return home is not None and (home / _EMULATOR_MARK).exists()


def emulator_command() -> list[str]:
    """`cann-emulator run --`, from this environment or from PATH."""
    beside = Path(sys.executable).parent / "cann-emulator"
    program = str(beside) if beside.exists() else shutil.which("cann-emulator")
    if program is None:
        raise UserError(
            "no Ascend device was found and the command cann-emulator is not installed",
            "pip install 'framework-adapter[train,emulator]', or run where an Ascend driver is installed",
        )
    return [program, "run", "--"]


def choose(requested: str) -> str:
    """Return "npu" or "emulator" for a --device request, or say why it cannot be had."""
    if requested == "auto":
        return "npu" if ascend_devices() and not on_emulator() else "emulator"
    if requested == "npu" and not ascend_devices():
        raise UserError(
            "--device npu: no Ascend device found (no /dev/davinci*)",
            "use --device emulator, or install the Ascend driver and mount its device nodes",
        )
    return requested
