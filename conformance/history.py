"""What a list kept in git has ever named, so that a test can see that it only grows."""

import subprocess
from pathlib import Path


def added_lines(path: Path) -> list[tuple[str, str]] | None:
    """(stem of the file, line) for every line that a commit reachable from HEAD added to a file or a folder's files;
    None where there is no git history."""
    command = ["git", "log", "--format=", "--unified=0", "--patch", "--no-renames", "--", path.name]
    done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True)
    if done.returncode:
        return None
    found: list[tuple[str, str]] = []
    stem = ""
    for line in done.stdout.splitlines():
        if line.startswith("+++ "):
            stem = Path(line.split("/", 1)[-1]).stem
        elif line.startswith("+") and line[1:].strip():
            found.append((stem, line[1:].strip()))
    return found
