"""What is kept from run to run, and where.

The same range and the same plugin give the same answer, which need not be found twice.

What is kept is named by everything that went in: the two snapshots, the settings, each of the plugin's files, and this
tool's own code. A change of any of them is another name.
"""

import dataclasses
import hashlib
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from torchtitan_sync.model import Analysis, Commit, Grade, Item, Plugin, Range, Rename, Use

_KEPT = 20


def user_folder() -> Path:
    """Where things are kept that only save time. A user without a home has none: that nothing can be made below it is
    as with one that cannot be written to."""
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        home = os.devnull
    return Path(home) / "torchtitan-sync"


def name(changes: Range, plugin: Plugin, contents: dict[str, bytes]) -> str:
    # A label can change although nothing else does: a branch's name stays while it moves, and the other way round.
    settings = dataclasses.asdict(plugin) | {"root": None}
    sides = [(side.id, side.label) for side in (changes.old, changes.new)]
    text = json.dumps([_own_code(), sides, settings], sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode())
    for path, data in sorted(contents.items()):
        digest.update(f"\0{path}\0".encode() + hashlib.sha256(data).digest())
    return digest.hexdigest()[:32]


@cache
def _own_code() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def recall(folder: Path, key: str) -> Analysis | None:
    try:
        data = json.loads((folder / f"{key}.json").read_text(encoding="utf-8"))
        items = [_item(entry) for entry in data.pop("items")]
        moves = [items[index] for index in data.pop("moves")]
        data["unresolved_before"] = [Use(**use) for use in data["unresolved_before"]]
        renamed = [(old, new, likeness) for old, new, likeness in data.pop("renamed_files")]
        files = {path: (a, b, c) for path, (a, b, c) in data.pop("files").items()}
        return Analysis(items=items, moves=moves, renamed_files=renamed, files=files, **data)
    except (OSError, ValueError, TypeError, KeyError, IndexError):
        return None


def keep(folder: Path, key: str, analysis: Analysis) -> None:
    """A folder that cannot be written to is done without."""
    data = dataclasses.asdict(analysis)
    data["moves"] = [analysis.items.index(item) for item in analysis.moves]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{key}.json").write_text(json.dumps(data), encoding="utf-8")
        for old in sorted(folder.glob("*.json"), key=lambda path: -path.stat().st_mtime)[_KEPT:]:
            old.unlink(missing_ok=True)
    except OSError:
        return


def _item(data: dict[str, Any]) -> Item:
    data["grade"] = Grade(data["grade"])
    data["commits"] = [Commit(**commit) for commit in data["commits"]]
    data["downstream"] = [Use(**use) for use in data["downstream"]]
    data["cascade"] = [Use(**use) for use in data["cascade"]]
    data["call"] = (data["call"][0], tuple(data["call"][1])) if data["call"] else None
    data["rename"] = Rename(**data["rename"]) if data["rename"] else None
    return Item(**data)
