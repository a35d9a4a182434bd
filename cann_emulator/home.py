"""Where the emulated CANN is installed, and the environment that puts it where programs look for CANN."""

import os
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import cann_emulator


class HomeNotFound(Exception):
    """The native part is not installed, or CANN_EMULATOR_HOME names another folder."""


def find_home() -> Path:
    """The CANN home: $CANN_EMULATOR_HOME, or the one installed with this package.

    An editable install keeps Python files in the checkout and the built home in site-packages; the package's path
    lists both.
    """
    if override := os.environ.get("CANN_EMULATOR_HOME"):
        home = Path(override).absolute()
        if not _is_home(home):
            raise HomeNotFound(f"CANN_EMULATOR_HOME is {override}, which has no set_env.sh and lib64: not a CANN home")
        return home
    for folder in cann_emulator.__path__:
        home = Path(folder).absolute() / "home"
        if _is_home(home):
            return home
    raise HomeNotFound(
        "the native libraries are not installed: run `make native` in a checkout, "
        "or `pip install --no-build-isolation framework-adapter` after installing torch"
    )


def _is_home(folder: Path) -> bool:
    return (folder / "set_env.sh").is_file() and (folder / "lib64").is_dir()


def environment(home: Path, base: Mapping[str, str]) -> dict[str, str]:
    """The variables that make a program started with them, on top of `base`, find the emulated CANN in `home`.

    The same as sourcing the home's set_env.sh; a checkout that is not installed is put on PYTHONPATH besides, since
    the libraries import the kernels.
    """
    python_path = [str(home / "python")]
    package_parent = Path(__file__).absolute().parent.parent
    if str(package_parent) not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        python_path.append(str(package_parent))
    return {
        "ASCEND_HOME_PATH": str(home),
        "ASCEND_TOOLKIT_HOME": str(home),
        "ASCEND_OPP_PATH": str(home / "opp"),
        "LD_LIBRARY_PATH": _prepend([str(home / "lib64")], base.get("LD_LIBRARY_PATH", "")),
        "PYTHONPATH": _prepend(python_path, base.get("PYTHONPATH", "")),
        # torch_npu's dispatch thread would wait, GIL held, for kernels that need the GIL: launch from the caller.
        "TASK_QUEUE_ENABLE": base.get("TASK_QUEUE_ENABLE") or "0",
        # Kernels' threads spin a moment while they wait for each other, then sleep. OpenMP uses 300,000 turns, which
        # make a step 25 times slower when another program takes a core; 5,000 turns cost a third on a quiet machine.
        # 30,000 is the knee: twice as many are four times slower with a core taken.
        "GOMP_SPINCOUNT": base.get("GOMP_SPINCOUNT") or "30000",
    }


def _prepend(folders: list[str], path: str) -> str:
    rest = [entry for entry in path.split(os.pathsep) if entry and entry not in folders]
    return os.pathsep.join(folders + rest)
