"""How many kernels this process has launched, where CANN counts them: the emulator does, hardware does not.

The emulator's runtime writes its counters to a JSON file on request. The request is a C function of the loaded
libascendcl.so that the hardware's library does not have: then there is no count.
"""

import ctypes
import json
import tempfile
from pathlib import Path
from typing import Any


def by_operator() -> dict[str, int] | None:
    """Kernel launches of this process so far, by operator."""
    counted = _kernels()
    return None if counted is None else {counter["name"]: counter["launches"] for counter in counted}


def bytes_moved() -> int | None:
    """Bytes of all kernels' arguments so far: what they read and write of the device's memory at least."""
    counted = _kernels()
    return None if counted is None else sum(counter["bytes"] for counter in counted)


def _kernels() -> list[dict[str, Any]] | None:
    try:
        write = ctypes.CDLL("libascendcl.so").emu_write_stats
    except (OSError, AttributeError):
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stats.json"
        if write(str(path).encode()) != 0:
            return None
        counters = json.loads(path.read_text(encoding="utf-8"))["counters"]
    return [counter for counter in counters if counter["kind"] == "kernel"]


def total() -> int | None:
    counted = by_operator()
    return None if counted is None else sum(counted.values())
