"""What has been done of a sync so far, kept inside the plugin's git directory for the summary that ends it."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path

from torchtitan_sync.objects import git

REMINDER = "This sync is not recorded yet: when it is done, run `torchtitan-sync record`."


@dataclass
class State:
    """The sync of one range. A command that continues it keeps what others noted."""

    old: str
    new: str
    started: str = ""
    """The plugin's commit before anything was adapted; empty in a repository without commits."""
    points: str = ""
    """The main points of the range, as they were before the plugin was adapted."""
    checks: dict[str, str] = field(default_factory=dict)
    """Result by name of the check."""


def load(root: Path, old: str, new: str) -> State:
    """The state of this range's sync; a new one where the last state is another range's."""
    path = _path(root)
    if path.exists():
        try:
            state = State(**json.loads(path.read_text(encoding="utf-8")))
            if (state.old, state.new) == (old, new):
                return state
        except (ValueError, TypeError):
            pass  # of another version of this tool: what it noted is not needed to go on
    return State(old, new, git(root, "rev-parse", "--verify", "--quiet", "HEAD", check=False).decode().strip())


def save(root: Path, state: State) -> None:
    _path(root).write_text(json.dumps(dataclasses.asdict(state), indent=1), encoding="utf-8")


def changed_files(root: Path, since: str) -> list[str]:
    """Files below the repository that differ from a commit, also uncommitted and untracked ones."""
    commands = [["ls-files", "-z", "--others", "--exclude-standard"]]
    commands += [["diff", "-z", "--name-only", "--no-renames", "--relative", since]] if since else []
    found = set()
    for command in commands:
        found |= {name for name in git(root, *command).decode(errors="surrogateescape").split("\0") if name}
    return sorted(found)


def _path(root: Path) -> Path:
    return root / git(root, "rev-parse", "--git-path", "torchtitan-sync.json").decode().strip()
