"""Why a program cannot be compiled, in PJRT's terms."""

from __future__ import annotations


class CompileError(Exception):
    """A program is refused; `code` is PJRT's error code."""

    code = "INTERNAL"
    located = False
    """Whether the message says where in the user's program."""


class Unsupported(CompileError):
    """The program needs something that CANN, the SoC or this compiler does not have."""

    code = "UNIMPLEMENTED"


class NeedsExpansion(Unsupported):
    """An operation has no rule, but MLIR may have a pass that expresses it in operations that have one."""


class OtherPrecision(CompileError):
    """The program is for a worker with another precision setting; the message is that setting's name."""


class InvalidProgram(CompileError):
    """The program cannot be read, or contradicts itself."""

    code = "INVALID_ARGUMENT"
