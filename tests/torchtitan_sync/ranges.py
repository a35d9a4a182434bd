"""An upstream of two commits and a plugin on top of it, analysed as `check` does."""

from pathlib import Path

from tests.torchtitan_sync.repositories import Repository, plugin
from torchtitan_sync import impact, settings, upstream
from torchtitan_sync.model import Analysis, Grade, Item

Files = dict[str, str | bytes | None]


def analysed(
    folder: Path, old: Files, new: Files, mine: Files, *, config: str = "", subject: str = "Change it (#7)"
) -> Analysis:
    """`old` and `new` are upstream's files; a file that `new` does not name stays. Paths are below `torchtitan/`."""
    repository = Repository(folder / "upstream")
    base: Files = {"torchtitan/__init__.py": ""}
    first = repository.commit(base | {f"torchtitan/{name}": text for name, text in old.items()}, "First")
    repository.commit({f"torchtitan/{name}": text for name, text in new.items()}, subject)
    downstream = plugin(folder / "plugin", repository.url, first, mine)
    if config:
        path = downstream.path / "pyproject.toml"
        path.write_text(path.read_text() + config)
    settled = settings.load(downstream.path)
    with upstream.open_range(settled, target=None, upstream=str(repository.path), cache=None) as changes:
        return impact.analyse(changes, settled, folder / "cache")


def graded(analysis: Analysis, grade: Grade) -> list[Item]:
    return [item for item in analysis.items if item.grade == grade]


def of_kind(analysis: Analysis, kind: str) -> list[Item]:
    return [item for item in analysis.items if item.kind == kind]


def places(item: Item) -> list[tuple[str, int]]:
    return [(use.file, use.line) for use in item.downstream]
