"""Initialisation of the online path."""

from .._compiler import options as known_options
from ..error import GraphFault, ge_error

_config: dict[str, str] = {}


def global_options() -> dict[str, str]:
    """What `GeApi.ge_initialize` was given."""
    return dict(_config)


class GeApi:
    """Begins and ends the use of Graph Engine in a process."""

    @classmethod
    def ge_initialize(cls, config: dict[str, str]) -> int:
        """Begins.

        Args:
            config: global options; `ge.exec.deviceId` is the device.

        Raises:
            GeError: an option is not known or has a value that it cannot have.
        """
        if not isinstance(config, dict):
            raise TypeError("Ge init config must be a dictionary")
        if not config:
            raise TypeError("Ge init config must not be empty")
        try:
            known_options.check(config, {**known_options.GLOBAL, "ge.graphRunMode": ("0", "1")})
        except GraphFault as fault:
            raise ge_error("GEInitialize", fault) from None
        _config.update(config)
        return 0

    @classmethod
    def ge_finalize(cls) -> int:
        """Ends."""
        _config.clear()
        return 0
