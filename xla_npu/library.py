"""Where the plugin's native part and CANN are."""

import os
import sysconfig
from pathlib import Path

LIBRARY = "pjrt_plugin_npu.so"


def find_library() -> Path:
    """The plugin: $XLA_NPU_PLUGIN, or the one installed with this package.

    An editable install keeps Python files in the checkout and the built library in site-packages.

    Raises:
        FileNotFoundError: there is none; the message says how to build it.
    """
    import xla_npu

    if override := os.environ.get("XLA_NPU_PLUGIN"):
        if not Path(override).is_file():
            raise FileNotFoundError(f"XLA_NPU_PLUGIN is {override}: there is no such file")
        return Path(override).absolute()
    folders = [*xla_npu.__path__, f"{sysconfig.get_path('platlib')}/xla_npu"]
    for folder in folders:
        if (library := Path(folder).absolute() / LIBRARY).is_file():
            return library
    raise FileNotFoundError(
        f"{LIBRARY} is not in {' or '.join(dict.fromkeys(folders))}: "
        "reinstall framework-adapter, or in a checkout run `make native`"
    )


def cann_is_installed() -> bool:
    """Whether libascendcl.so is where CANN's set_env.sh says, without loading it."""
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    if home := os.environ.get("ASCEND_HOME_PATH"):
        folders.append(f"{home}/lib64")
    return any(folder and (Path(folder) / "libascendcl.so").exists() for folder in folders)
