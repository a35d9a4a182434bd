"""JAX on Ascend NPUs: a PJRT plugin over CANN's runtime and Graph Engine.

JAX finds this package through the entry point group `jax_plugins` and calls `initialize()` when a program first needs a
device. Importing it changes nothing.
"""

import logging
from functools import partial
from typing import NoReturn

from xla_npu.library import cann_is_installed, find_library

__all__ = ["PLATFORM", "initialize"]

PLATFORM = "npu"
_PRIORITY = 500  # above JAX's own CPU (0) and TPU (300) backends: an NPU that is there is the default

logger = logging.getLogger(__name__)


def initialize() -> None:
    """Registers the platform `npu` with JAX.

    Where CANN is not installed and the program did not ask for `npu`, nothing is registered, so that JAX keeps working
    on other backends.

    Raises:
        ImportError: the installed jax or jaxlib is not a version that this package was made for.
        FileNotFoundError: the native part of the package is missing.
    """
    from jax._src import config, xla_bridge

    wanted = (config.jax_platforms.value or "").split(",")
    if PLATFORM in xla_bridge._backend_factories:
        return  # a program called this before JAX did
    if PLATFORM not in wanted and not cann_is_installed():
        logger.debug("CANN is not installed: the platform npu is not registered")
        return
    from xla_npu import platform

    try:
        platform.check_versions()
        library = find_library()
        xla_bridge.register_plugin(PLATFORM, priority=_PRIORITY, library_path=str(library))
    except Exception as error:
        if PLATFORM in wanted:  # JAX only logs what happens here; its own error shall say it, too
            xla_bridge.register_backend_factory(PLATFORM, partial(_refuse, error), priority=_PRIORITY)
        raise
    platform.register(library)


def _refuse(error: Exception) -> NoReturn:
    raise error
