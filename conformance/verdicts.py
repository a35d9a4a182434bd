"""What can be said of one sample, one (operator, dtype) and one operator. Needs no torch."""

import re
from enum import StrEnum


class Verdict(StrEnum):
    """Ordered from best to worst: what stands for several samples is the worst of them."""

    PASSES = "passes"  # right, and a kernel other than a copy was launched
    NO_KERNEL = "no kernel"  # right, and nothing but views and copies was needed
    REFUSED = "refused"  # torch_npu or the operator does not take these arguments
    FALLBACK = "fallback"  # torch_npu would compute it on the CPU
    NOT_IMPLEMENTED = "not implemented"  # the operator has no kernel here
    WRONG = "wrong"  # another result, an unexpected error, a crash or a time-out


BEST_FIRST = list(Verdict)


def worst(verdicts: set[Verdict]) -> Verdict:
    """The verdict of a group. Samples that need no kernel do not take from the others that they pass on one."""
    if Verdict.PASSES in verdicts:
        verdicts = verdicts - {Verdict.NO_KERNEL}
    return max(verdicts, key=BEST_FIRST.index)


# What an error raised on the NPU, and not on the CPU, says; the first pattern found decides.
# torch_npu's own codes: ERR01xxx are its operators' checks, ERR00100 is a CANN call that failed, whose code follows.
_ERRORS = [
    (r"error code is 561003", Verdict.NOT_IMPLEMENTED),
    # An operator of the older interface (aclopCompileAndExecute), which the emulator does not offer.
    (r"OpParamMaker\.cpp:\d+ OPS function error: \w+, error code is 207000", Verdict.NOT_IMPLEMENTED),
    (r"TORCH_NPU_FALLBACK_CPU_DISABLE=1", Verdict.FALLBACK),
    # ATen refuses what a row of the emulator's table hands it: samples are right, so the row is not.
    (r"\(arguments of a table row\)", Verdict.WRONG),
    (r"error code is 161002", Verdict.REFUSED),
    (r"ERR0[01]00[1-37] (OPS|PTA)", Verdict.REFUSED),
    (r"is not currently supported on the NPU backend", Verdict.REFUSED),
    (r"Could not run '.*' (with arguments from|from) the '\w*(npu|PrivateUse1)' backend", Verdict.REFUSED),
    # Differentiable on the CPU, and declared otherwise by torch_npu.
    (r"is not differentiable with respect to argument", Verdict.REFUSED),
]


def of_error(message: str) -> Verdict:
    return next((verdict for pattern, verdict in _ERRORS if re.search(pattern, message)), Verdict.WRONG)


# torch_npu's warning where it computes on the CPU in a way that its own switch does not stop.
FALLBACK_WARNING = re.compile(rb"fall ?back to run on the CPU")
