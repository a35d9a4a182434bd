"""The cases that pass, one file of names for each of JAX's test files: what is listed may only grow."""

from collections.abc import Iterable
from pathlib import Path

from conformance import history

FOLDER = Path(__file__).parent / "passing"


def read(name: str) -> set[str]:
    """The listed cases (`Class.test`) of a test file."""
    path = FOLDER / f"{name}.txt"
    return set(path.read_text(encoding="utf-8").splitlines()) if path.exists() else set()


def files() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.txt"))


def write(name: str, cases: Iterable[str]) -> None:
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.txt").write_text("".join(f"{case}\n" for case in sorted(cases)), encoding="utf-8")


def ever_committed() -> set[tuple[str, str]] | None:
    """Every (file, case) that a commit reachable from HEAD added; None where there is no git history."""
    added = history.added_lines(FOLDER)
    return None if added is None else set(added)
