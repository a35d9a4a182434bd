"""Ctrl-C for processes that tests start."""

import signal


def interruptible() -> None:
    """A suite that was started in the background ignores Ctrl-C, and its children would inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
