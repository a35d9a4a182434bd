"""The versioning policy: the Markdown page that says which upstream each downstream branch is written against.

It is read and written cell by cell, so that everything else on the page stays as its authors left it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchtitan_sync.model import SyncError
from torchtitan_sync.objects import git

SYNC_SECTION = ("分支同步表", "branch sync table")
RELEASE_SECTION = ("发布兼容性表", "release compatibility table")
REQUIRED = ("torchtitan_npu_branch", "torchtitan_repo_url", "torchtitan_branch", "torchtitan_commit")

_HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.*?)\s*#*\s*$")
_FENCE = re.compile(r"^ {0,3}(```|~~~)")
_RULE = re.compile(r"^:?-+:?$")
_CELL_END = re.compile(r"(?<!\\)\|")
_HASH = re.compile(r"[0-9a-f]{7,40}|[0-9a-f]{64}")
_RELEASE = re.compile(r"pypi:([A-Za-z0-9][A-Za-z0-9.!+_-]*)")


@dataclass(frozen=True)
class Row:
    """A branch's row of the sync table."""

    branch: str
    url: str
    upstream_branch: str
    """A branch or a tag."""
    commit: str
    """A commit hash, or `pypi:VERSION`."""
    updated_at: str
    notes: str
    line: int
    """In the document, counted from 1."""


@dataclass
class _Table:
    header: list[str]
    rows: dict[int, list[str]]
    """Cells by line, counted from 0."""
    end: int
    """The line after the last one."""


class Policy:
    """A versioning policy. `set_cells` and `add_row` change the text in memory; `save` writes it."""

    def __init__(self, path: Path) -> None:
        """Raises SyncError if there is no such document."""
        try:
            text = path.read_bytes().decode("utf-8-sig")
        except FileNotFoundError:
            raise SyncError(
                f"{path} does not exist: it says which upstream commit this plugin is synced to. "
                "Write it with a section 'Branch sync table', or name it with `document` in [tool.torchtitan-sync]"
            ) from None
        except UnicodeDecodeError as error:
            raise SyncError(f"{path} is not UTF-8: {error}") from None
        self.path = path
        self._bom = path.read_bytes().startswith(b"\xef\xbb\xbf")
        self._newline = "\r\n" if "\r\n" in text else "\n"
        self._lines = text.replace("\r\n", "\n").split("\n")

    def row(self, branch: str) -> Row:
        """The row of `branch`. Raises SyncError, which names the cell to fill in, where it is missing or wrong."""
        table = self._table(SYNC_SECTION)
        missing = [name for name in REQUIRED if name not in table.header]
        if missing:
            raise SyncError(
                f"{self.path}: the branch sync table lacks the column {', '.join(f'`{m}`' for m in missing)}"
            )
        key = table.header.index(REQUIRED[0])
        found = [(line, cells) for line, cells in table.rows.items() if _plain(_cell(cells, key)) == branch]
        if not found:
            raise SyncError(
                f"{self.path}: no row of the branch sync table is for the branch `{branch}`: add one, and fill in "
                + ", ".join(f"`{name}`" for name in REQUIRED)
            )
        if len(found) > 1:
            lines = ", ".join(str(line + 1) for line, _ in found)
            raise SyncError(f"{self.path}: lines {lines} are all for the branch `{branch}`: keep one")
        line, cells = found[0]
        values = {name: _plain(_cell(cells, i)) for i, name in enumerate(table.header)}
        for name in REQUIRED:
            if not values[name]:
                raise SyncError(
                    f"{self.path}:{line + 1}: fill in the cell `{name}` in the row of the branch `{branch}`"
                )
        commit = values["torchtitan_commit"]
        commit = commit.lower() if _HASH.fullmatch(commit.lower()) else commit
        if not _HASH.fullmatch(commit) and not _RELEASE.fullmatch(commit):
            raise SyncError(
                f"{self.path}:{line + 1}: fill in the cell `torchtitan_commit` in the row of the branch `{branch}` "
                f"with a plain commit hash, or with pypi:VERSION for a release, and nothing else; it reads {commit!r}"
            )
        return Row(
            branch,
            _address(values["torchtitan_repo_url"]),
            values["torchtitan_branch"],
            commit,
            values.get("updated_at", ""),
            values.get("notes", ""),
            line + 1,
        )

    def releases(self) -> list[dict[str, str]]:
        """The release table's rows, top to bottom, as cells by column. Raises SyncError if there is no such table."""
        table = self._table(RELEASE_SECTION)
        return [{name: _plain(_cell(c, i)) for i, name in enumerate(table.header)} for c in table.rows.values()]

    def set_cells(self, line: int, cells: Mapping[str, str]) -> None:
        """Change cells, by column, of the sync table's row in this line (counted from 1)."""
        table = self._table(SYNC_SECTION)
        self._write(line - 1, table, cells)

    def set_release(self, cells: Mapping[str, str]) -> None:
        """Change the release table's row with the same first column, or add it as the first row.

        Columns that are not in `cells` are copied from the present first row of a new release, and kept of an old one.
        """
        table = self._table(RELEASE_SECTION)
        key = table.header[0]
        for line, old in table.rows.items():
            if _plain(_cell(old, 0)) == cells[key]:
                return self._write(line, table, cells)
        first = min(table.rows, default=table.end)
        template = table.rows.get(first, [""] * len(table.header))
        self._lines.insert(first, _join(template))
        table = self._table(RELEASE_SECTION)
        return self._write(first, table, cells)

    def save(self) -> None:
        text = self._newline.join(self._lines).encode()
        self.path.write_bytes(b"\xef\xbb\xbf" * self._bom + text)

    def _write(self, line: int, table: _Table, cells: Mapping[str, str]) -> None:
        row = table.rows[line]
        row += [""] * (len(table.header) - len(row))
        for name, value in cells.items():
            if name in table.header:
                row[table.header.index(name)] = re.sub(r"(?<!\\)\|", r"\\|", " ".join(value.split()))
        self._lines[line] = _join(row)

    def _table(self, section: tuple[str, ...]) -> _Table:
        """The first table below the first heading that names the section."""
        inside = fenced = False
        for number, line in enumerate(self._lines):
            if _FENCE.match(line):
                fenced = not fenced
            elif fenced:
                continue
            elif heading := _HEADING.match(line):
                inside = any(name in heading[1].lower() for name in section)
            elif inside and "|" in line and number + 1 < len(self._lines):
                rule = _split(self._lines[number + 1])
                if rule and all(_RULE.match(cell) for cell in rule):
                    return self._rows(number)
        raise SyncError(
            f"{self.path} has no table in a section '{section[0]}' (or '{section[1].capitalize()}'): add it"
        )

    def _rows(self, header: int) -> _Table:
        end = header + 2
        while end < len(self._lines) and "|" in self._lines[end]:
            end += 1
        names = [_plain(cell) for cell in _split(self._lines[header])]
        return _Table(names, {i: _split(self._lines[i]) for i in range(header + 2, end)}, end)


def current_branch(repository: Path) -> str:
    """The branch that is checked out, or, where a commit is (as in CI), the only branch at that commit.

    Raises SyncError outside of a git repository, and where no single branch is meant.
    """
    if not git(repository, "rev-parse", "--git-dir", check=False):
        raise SyncError(f"{repository} is not a git repository: run inside the plugin's, or give --repo DIR")
    branch = git(repository, "symbolic-ref", "--quiet", "--short", "HEAD", check=False).decode().strip()
    if branch:
        return branch
    for kind, prefix in (("heads", 2), ("remotes", 3)):
        names = git(
            repository, "for-each-ref", "--points-at=HEAD", f"--format=%(refname:lstrip={prefix})", f"refs/{kind}"
        )
        branches = set(names.decode().split()) - {"HEAD"}
        if len(branches) == 1:
            return branches.pop()
    raise SyncError(f"no branch is checked out in {repository}, so which row counts is not clear: git switch BRANCH")


def release_of(commit: str) -> str | None:
    """VERSION of `pypi:VERSION`; None for anything else."""
    match = _RELEASE.fullmatch(commit)
    return match[1] if match else None


def _split(line: str) -> list[str]:
    inner = line.strip()
    inner = inner[1:] if inner.startswith("|") else inner
    if inner.endswith("|") and not inner.endswith("\\|"):
        inner = inner[:-1]
    return [cell.strip() for cell in _CELL_END.split(inner)]


def _join(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(cells: list[str], index: int) -> str:
    return cells[index] if index < len(cells) else ""


def _plain(cell: str) -> str:
    """A cell without the code quotes around the whole of it, which change only how it looks."""
    return cell[1:-1].strip() if re.fullmatch(r"`[^`]*`", cell) else cell


def _address(cell: str) -> str:
    """A URL, also where it is written as `<URL>` or as a link."""
    match = re.fullmatch(r"<([^>]*)>|\[[^\]]*\]\(([^)]*)\)", cell)
    return (match[1] or match[2]).strip() if match else cell
