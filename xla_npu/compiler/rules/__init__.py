"""One function per StableHLO operation, by subject."""

from importlib import import_module

SUBJECTS = (
    "elementwise",
    "shape",
    "reduce",
    "dot",
    "control",
    "gather",
    "sort",
    "conv",
    "rng",
    "fft",
    "linalg",
    "custom",
)


def load() -> None:
    """Registers all rules."""
    for subject in SUBJECTS:
        import_module(f"{__name__}.{subject}")
