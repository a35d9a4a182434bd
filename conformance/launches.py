"""Which kernels a call launched, asked of the emulator's counters in this process."""

import ctypes
import json
import os
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path

COPY = b"aclnnInplaceCopy"


@cache
def _library() -> ctypes.CDLL | None:
    """The emulator's runtime, or None where there is none: on the CPU, or under another CANN."""
    home = os.environ.get("ASCEND_HOME_PATH")
    path = Path(home or ".") / "lib64" / "libascendcl.so"
    if not home or not path.exists():
        return None
    library = ctypes.CDLL(str(path))
    if not hasattr(library, "emu_kernel_launches"):
        return None
    library.emu_kernel_launches.restype = ctypes.c_int64
    library.emu_kernel_launches.argtypes = [ctypes.c_char_p]
    return library


def computing_launches() -> int:
    """Kernels launched so far, but for copies."""
    library = _library()
    return library.emu_kernel_launches(None) - library.emu_kernel_launches(COPY) if library else 0


def by_operator() -> Counter[str]:
    """Launches so far by aclnn operator."""
    library = _library()
    if not library:
        return Counter()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "stats.json"
        library.emu_write_stats(str(file).encode())
        counters = json.loads(file.read_text())["counters"]
    return Counter({entry["name"]: entry["launches"] for entry in counters if entry["kind"] == "kernel"})
