"""What a case of JAX's tests comes to. Needs neither JAX nor pytest."""

import re
from enum import StrEnum


class Verdict(StrEnum):
    PASSED = "passed"
    REFUSED = "refused"  # the SoC lacks a dtype that the case needs, and the plugin says so
    FAILED = "failed"
    CRASHED = "crashed"  # the process ended, or hung
    SKIPPED = "skipped"  # by JAX itself
    LEFT_OUT = "left out"  # by skips.toml


# What the plugin says where the SoC has no kernel for a dtype; nothing else makes a failure a refusal.
_NO_DTYPE = re.compile(
    r"element type \S+ does not exist on the NPU"
    r"|the NPU has no [\w ]+ for type "
    r"|the NPU has no integers wide enough"
    r"|E?Z?3003.*No supported Ops kernel and engine are found"
)


def of(outcome: str, text: str) -> Verdict:
    """From pytest's outcome ("passed", "failed", "skipped") and the error's text."""
    if outcome == "failed" and _NO_DTYPE.search(text):
        return Verdict.REFUSED
    return Verdict(outcome)
