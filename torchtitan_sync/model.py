"""What the parts of the tool hand to each other: an upstream range, the plugin, and what one does to the other.

`upstream.py` provides the first block, `impact.py` fills the last, and every command reads it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Protocol


class SyncError(Exception):
    """A problem its reader can solve: the message names the cause and the fix. Ends the run with exit code 2."""


# Upstream


@dataclass(frozen=True)
class Commit:
    hash: str
    subject: str
    pr: int | None
    """Number of the pull request: the last `(#123)` of the subject."""


@dataclass(frozen=True)
class Change:
    """What one commit did to one file."""

    commit: Commit
    old_blob: str
    """Empty where the commit adds the file."""
    new_blob: str
    """Empty where the commit removes the file."""


@dataclass(frozen=True)
class FileRename:
    old: str
    new: str
    similarity: float
    """0 to 1, as git measures it."""


class Snapshot(Protocol):
    """Upstream's files at one commit or in one release. Paths are relative to the repository and use slashes."""

    @property
    def id(self) -> str:
        """Full commit hash, or `pypi:VERSION`."""

    @property
    def label(self) -> str:
        """For people: `v0.2.2 (a1b2c3d)`."""

    def files(self) -> dict[str, str]:
        """Blob id by path, of every file. Equal ids are equal contents, in both snapshots and across runs."""

    def read(self, paths: Iterable[str]) -> dict[str, bytes]:
        """Contents by path, in one batch. Raises SyncError when one cannot be had."""


class Range(Protocol):
    """From the baseline to the target."""

    old: Snapshot
    new: Snapshot

    def renames(self) -> list[FileRename]:
        """Files that git takes for renamed, of those that are gone in `new`."""

    def commit_count(self) -> int | None:
        """None where there is no history (releases from PyPI)."""

    def history(self) -> dict[str, list[Change]]:
        """By path, the commits of old..new that touched it, newest first. Empty without history."""

    def read_blobs(self, blobs: Iterable[str]) -> dict[str, bytes]:
        """Contents by blob id, in one batch; what cannot be had is left out."""


# Downstream


@dataclass(frozen=True)
class Plugin:
    """The downstream repository as `[tool.torchtitan-sync]` of its pyproject describes it."""

    root: Path
    package: str
    """Import name of the plugin; also its folder below `root` or `root/src`."""
    upstream: str = "torchtitan"
    """Import name of upstream."""
    document: str = "docs/community/versioning_policy.md"
    sources: tuple[str, ...] = (".",)
    """Files and folders whose Python, TOML, shell and Markdown may name upstream, besides the package."""
    exclude: tuple[str, ...] = ()
    """Glob patterns of files not to read, relative to `root`."""
    areas: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """For the report's checklist: glob patterns by area."""
    replaced: dict[str, str] = field(default_factory=dict)
    """Declared successors: upstream's old dotted name to the new one that takes its place by design."""


# Findings


class Grade(IntEnum):
    """`grades.py` says which kind gets which."""

    P0 = 0
    P1 = 1
    P2 = 2
    P3 = 3
    P4 = 4


@dataclass(frozen=True, order=True)
class Use:
    """One place downstream."""

    file: str
    """Relative to the plugin's root."""
    line: int
    """Counted from 1."""
    column: int = field(default=0, compare=False)
    """Counted from 0, in characters, of the name that is concerned (the attribute, the keyword, the imported name)."""
    end_column: int = field(default=0, compare=False)
    """On the same line; equal to `column` where a whole line is meant."""
    text: str = field(default="", compare=False)
    """The line, stripped."""


@dataclass(frozen=True)
class Rename:
    """An edit that a machine can make at each of an item's places."""

    what: str
    """`symbol`, `attribute`, `parameter`, `field` or `module`."""
    old: str
    """Dotted upstream name: `pkg.mod.func`, `pkg.mod.Class.attribute`, `pkg.mod.func.parameter`."""
    new: str
    """The name in the new snapshot, dotted likewise."""


@dataclass
class Item:
    """One root cause and every place it reaches."""

    kind: str
    """A key of `grades.TABLE`."""
    upstream_symbol: str
    upstream_file: str
    what: str
    """One sentence, or old and new signature, or a short diff."""
    grade: Grade
    detail: str = ""
    """A diff or two signatures, for the report."""
    moved_to: str = ""
    confidence: float = 1.0
    """Of `moved_to` where there is one, else of the finding: 0 to 1."""
    commits: list[Commit] = field(default_factory=list)
    downstream: list[Use] = field(default_factory=list)
    cascade: list[Use] = field(default_factory=list)
    """Places that break only because this item does; they need no edit of their own."""
    suggestion: str = ""
    rename: Rename | None = None
    call: tuple[int, tuple[str, ...]] | None = None
    """Of a break in what is passed: how many arguments by position, and which by keyword."""
    follows: str = ""
    """The moved symbol behind which this was found: it shows only after that move was adapted."""
    notes: list[str] = field(default_factory=list)
    id: str = ""
    """Stable across runs: kind and symbol, so that a report keeps its ticks."""


@dataclass
class Analysis:
    """Everything `check`, `report`, `adapt` and `verify` say about a range."""

    old: str
    new: str
    items: list[Item]
    moves: list[Item] = field(default_factory=list)
    """Renamed, moved, split and merged modules and symbols, used by the plugin or not."""
    renamed_files: list[tuple[str, str, float]] = field(default_factory=list)
    """Modules whose file git takes for renamed, used by the plugin or not: old, new, similarity."""
    files: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """By upstream directory: files added, changed, removed."""
    commit_count: int | None = None
    references: int = 0
    """Upstream references found in the plugin."""
    unresolved_before: list[Use] = field(default_factory=list)
    """What did not resolve at the baseline either: the plugin's own attributes on upstream's objects, or stale uses."""
    unread: list[str] = field(default_factory=list)
    """Python files of the plugin that do not parse: what they use is not known."""
    unaffected: int = 0
    """Upstream symbols that changed and that the plugin does not use."""
