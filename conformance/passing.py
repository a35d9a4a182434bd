"""The list of cases that pass, kept in passing.txt: it may only grow."""

from collections.abc import Iterable
from pathlib import Path

from conformance import history

FILE = Path(__file__).parent / "passing.txt"


def read(text: str | None = None) -> set[tuple[str, str]]:
    """(operator, dtype) pairs: one operator a line, followed by its dtypes."""
    lines = (FILE.read_text() if text is None and FILE.exists() else text or "").splitlines()
    return {(words[0], dtype) for words in map(str.split, lines) for dtype in words[1:] if not words[0].startswith("#")}


def write(cases: Iterable[tuple[str, str]]) -> None:
    by_name: dict[str, list[str]] = {}
    for name, dtype in sorted(cases):
        by_name.setdefault(name, []).append(dtype)
    heading = (
        "# Operators that pass on NPU kernels, and their dtypes. `python -m conformance --update-passing` adds to it.\n"
    )
    FILE.write_text(heading + "".join(f"{name} {' '.join(dtypes)}\n" for name, dtypes in by_name.items()))


def ever_committed() -> set[tuple[str, str]] | None:
    """Every pair that any commit reachable from HEAD added; None where there is no git repository."""
    added = history.added_lines(FILE)
    return None if added is None else read("\n".join(line for _, line in added))
