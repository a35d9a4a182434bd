"""Which commits of a range did what an item says."""

import re
from collections.abc import Iterator
from functools import lru_cache

from torchtitan_sync.model import Change, Commit, Item, Range

_MOST = 5
"""Commits named for one item."""


def attribute(changes: Range, items: list[Item]) -> None:
    """Fills `commits`: those that changed the symbol's own lines, else those that touched its file."""
    history = changes.history()
    if not history:
        return
    wanted = [(item, _touching(history, item.upstream_file)) for item in items if item.grade <= 2]
    blobs = {blob for _, touched in wanted for change in touched for blob in (change.old_blob, change.new_blob) if blob}
    contents = changes.read_blobs(blobs)
    blocks: dict[tuple[str, str], str] = {}
    for item, touched in wanted:
        names = item.upstream_symbol.split(".")
        found = [change.commit for change in touched if _changes(change, names, contents, blocks)]
        item.commits = _unique(found)[:_MOST] or _unique([change.commit for change in touched])[:1]


def _touching(history: dict[str, list[Change]], path: str) -> list[Change]:
    """Of a file, or of everything in a folder."""
    if path in history or not path:
        return history.get(path, [])
    return [change for name, touched in history.items() if name.startswith(f"{path}/") for change in touched]


def _changes(change: Change, names: list[str], contents: dict[str, bytes], blocks: dict[tuple[str, str], str]) -> bool:
    """Whether the lines of the innermost name that is defined in the file differ before and after."""
    if not change.old_blob or not change.new_blob:
        return True
    for name in reversed(names[-3:]):
        before, after = (_block(blob, name, contents, blocks) for blob in (change.old_blob, change.new_blob))
        if before or after:
            return before != after
    return False


def _block(blob: str, name: str, contents: dict[str, bytes], blocks: dict[tuple[str, str], str]) -> str:
    key = blob, name
    if key not in blocks:
        text = contents.get(blob, b"").decode("utf-8", "replace")
        blocks[key] = "\n".join(_lines_of(text, name)) if name in text else ""
    return blocks[key]


def _lines_of(text: str, name: str) -> Iterator[str]:
    """Each definition with the deeper lines below it, and each line that assigns or imports the name."""
    at = text.find(name)
    while at >= 0:
        start = text.rfind("\n", 0, at) + 1
        end = text.find("\n", at)
        line = text[start : end if end >= 0 else len(text)]
        match = _named(name).match(line)
        if match is not None:
            if match["indent"] is not None:
                end = _end_of_block(text, end, len(match["indent"]))
            yield text[start : end if end >= 0 else len(text)].rstrip()
        at = text.find(name, end) if end >= 0 else -1


def _end_of_block(text: str, end: int, indent: int) -> int:
    """Where the first line begins that is not deeper than the definition, closing brackets apart."""
    while end >= 0:
        following = text.find("\n", end + 1)
        line = text[end + 1 : following if following >= 0 else len(text)]
        bare = line.lstrip()
        if bare and len(line) - len(bare) <= indent and bare[0] not in ")]":
            return end
        end = following
    return end


@lru_cache(maxsize=1024)
def _named(name: str) -> re.Pattern[str]:
    word = re.escape(name)
    return re.compile(
        rf"(?P<indent>[ \t]*)(?:async )?(?:def|class) {word}\b"
        rf"|[ \t]*(?:self\.)?{word}[ \t]*[:=]"
        rf"|.*\bimport\b.*\b{word}\b"
    )


def _unique(commits: list[Commit]) -> list[Commit]:
    return list({commit.hash: commit for commit in commits}.values())
