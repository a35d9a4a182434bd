"""Work on many files in two processes."""

import os
import signal
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

_PROCESSES = 2
_AT_ONCE = 4
"""Files handed to a process in one go: few, so that Ctrl-C has little to wait for."""


def each(work: Callable[[bytes], bytes], sources: Mapping[str, bytes]) -> dict[str, bytes]:
    """What a module's function makes of each source, by the same key. Empty where there is one processor or where no
    process can be started: the caller then does the work itself."""
    if (os.cpu_count() or 1) < _PROCESSES:
        return {}
    try:
        pool = ProcessPoolExecutor(_PROCESSES, initializer=_leave_interrupts)
    except (OSError, ImportError, NotImplementedError):  # a system without shared semaphores
        return {}
    try:
        # The longest first: the two then end at about the same time.
        order = sorted(sources, key=lambda key: (-len(sources[key]), key))
        rows = pool.map(work, (sources[key] for key in order), chunksize=_AT_ONCE)
        return dict(zip(order, rows, strict=True))
    except (OSError, BrokenProcessPool):
        return {}
    finally:
        pool.shutdown(cancel_futures=True)


def _leave_interrupts() -> None:
    """Ctrl-C reaches every process of the terminal; the first one ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
