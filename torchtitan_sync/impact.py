"""What a range of upstream changes does to the plugin: everything that `check` and the other commands say."""

import contextlib
import gc
from collections.abc import Callable, Iterator
from pathlib import Path

from torchtitan_sync import memory, sources
from torchtitan_sync.model import Analysis, Plugin, Range


def analyse(
    changes: Range, plugin: Plugin, cache: Path | None = None, say: Callable[[str], None] = lambda text: None
) -> Analysis:
    """`cache` is a folder for outlines; None uses the user's. `say` is told what is being done.

    Raises SyncError when one side cannot be read.
    """
    folder = cache or memory.user_folder()
    with _without_collector():
        files = sources.read(plugin)
        key = memory.name(changes, plugin, files.contents)
        known = memory.recall(folder / "results", key)
        if known is None:
            from torchtitan_sync import engine  # half of a second run's time, which does without

            known = engine.find(changes, plugin, files, folder / "outlines.sqlite", say)
            memory.keep(folder / "results", key, known)
        return known


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Syntax trees are many small objects in no cycles: looking for some again and again takes a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
