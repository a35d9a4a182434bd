"""Reading a git object store directly: trees, contents in batches, renames and history. Nothing is ever checked out.

A store here is a directory of our own whose `objects/info/alternates` names the objects of a clone or a mirror. So a
user's clone is only read, and git never fetches a missing blob behind our back, one request each.
"""

import os
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from torchtitan_sync.model import Change, Commit, FileRename, SyncError

_PULL_REQUEST = re.compile(r"\(#(\d+)\)")
_ZERO = re.compile(r"0+")

_OF_A_HOOK = re.compile(r"GIT_(DIR|\w*_FILE|WORK_TREE|\w*DIRECTORY|\w*DIRECTORIES)")


def _environment() -> dict[str, str]:
    """A git hook's variables would send every command to the hook's repository; a prompt would wait for ever."""
    ours = {name: value for name, value in os.environ.items() if not _OF_A_HOOK.fullmatch(name)}
    return ours | {"GIT_TERMINAL_PROMPT": "0"}


def git(directory: Path | None, *arguments: str, stdin: bytes = b"", check: bool = True) -> bytes:
    """What a git command prints. Raises SyncError with git's own message where it fails."""
    command = ["git", *(["-C", str(directory)] if directory else []), "-c", "core.quotePath=false", *arguments]
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, env=_environment())
    except FileNotFoundError:
        raise SyncError("git is not installed, or not on PATH") from None
    if check and done.returncode:
        message = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
        raise SyncError(f"git {arguments[0]} failed: {message}")
    return done.stdout


class ObjectStore:
    """A bare repository without refs of its own that borrows the objects of others."""

    def __init__(self, path: Path) -> None:
        git(None, "init", "--quiet", "--bare", str(path))
        self.path = path

    def borrow(self, git_dir: Path) -> None:
        """Make the objects of another repository readable here. A shallow clone's borders are taken over."""
        objects = Path(_line(git(git_dir, "rev-parse", "--git-path", "objects")))
        common = Path(_line(git(git_dir, "rev-parse", "--git-common-dir")))
        with (self.path / "objects/info/alternates").open("a") as file:
            file.write(f"{(git_dir / objects).resolve()}\n")
        shallow = git_dir / common / "shallow"
        if shallow.exists():
            (self.path / "shallow").write_bytes(shallow.read_bytes())

    def commit_of(self, name: str) -> str | None:
        """Full hash of a commit that is here, by hash, tag or branch; None where it is not."""
        found = git(self.path, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", check=False)
        return _line(found) or None

    def has(self, commit: str) -> bool:
        """Whether a commit and its trees can be read."""
        return bool(git(self.path, "ls-tree", "-r", "-z", commit, check=False))

    def tree(self, commit: str) -> dict[str, str]:
        """Blob id by path, of every file of a commit."""
        files = {}
        for entry in git(self.path, "ls-tree", "-r", "-z", "--full-tree", commit).split(b"\0"):
            if entry:
                details, path = entry.split(b"\t", 1)
                _, kind, blob = details.split(b" ")
                if kind == b"blob":
                    files[path.decode(errors="surrogateescape")] = blob.decode()
        return files

    def missing(self, blobs: Iterable[str]) -> list[str]:
        """Of these, the ones that are not here."""
        wanted = "".join(f"{blob}\n" for blob in dict.fromkeys(blobs))
        answer = git(self.path, "cat-file", "--batch-check", stdin=wanted.encode())
        return [line.split(" ", 1)[0] for line in answer.decode().splitlines() if line.endswith(" missing")]

    def read(self, blobs: Iterable[str]) -> dict[str, bytes]:
        """Contents by blob id, in one batch. What is not here is left out."""
        wanted = "".join(f"{blob}\n" for blob in dict.fromkeys(blobs))
        answer = git(self.path, "cat-file", "--batch", stdin=wanted.encode())
        contents = {}
        position = 0
        while position < len(answer):
            end = answer.index(b"\n", position)
            header = answer[position:end].decode().split(" ")
            position = end + 1
            if header[-1] != "missing":
                contents[header[0]] = answer[position : position + int(header[2])]
                position += int(header[2]) + 1
        return contents

    def renames(self, old: str, new: str, below: str = ".", unreadable: Iterable[str] = ()) -> list[FileRename]:
        """Files of `old` that git takes for renamed in `new`, half of their lines or more being the same.

        Paths whose contents are not here have to be named in `unreadable`: git stops at them.
        """
        paths = [below, *(f":(exclude,literal){path}" for path in unreadable)]
        options = ("-r", "-z", "--find-renames=50%", "-l0", "--diff-filter=R")
        answer = git(self.path, "diff-tree", *options, old, new, "--", *paths)
        fields = answer.decode(errors="surrogateescape").split("\0")
        return [
            FileRename(fields[i + 1], fields[i + 2], int(fields[i].rsplit(" R", 1)[1]) / 100)
            for i in range(0, len(fields) - 2, 3)
        ]

    def count(self, old: str, new: str) -> int:
        """Commits that `new` has and `old` has not."""
        return int(git(self.path, "rev-list", "--count", f"{old}..{new}"))

    def history(self, old: str, new: str) -> dict[str, list[Change]]:
        """By path, what the commits that `new` has and `old` has not did to it, newest first."""
        answer = git(
            self.path,
            *("log", "-z", "--raw", "--no-abbrev", "--no-renames", "-m", "--first-parent"),
            *("--format=%x01%H%x02%s", f"{old}..{new}"),
        )
        changes: dict[str, list[Change]] = {}
        for record in answer.decode(errors="surrogateescape").split("\x01")[1:]:
            head, _, raw = record.partition("\0")
            hash_, subject = head.split("\x02", 1)
            commit = commit_from(hash_, subject)
            fields = raw.strip("\n\0").split("\0")
            for details, path in zip(fields[::2], fields[1::2], strict=False):
                _, _, before, after, _ = details.strip("\n").split(" ")
                blobs = [_ZERO.sub("", blob) if _ZERO.fullmatch(blob) else blob for blob in (before, after)]
                changes.setdefault(path, []).append(Change(commit, *blobs))
        return changes

    def add_commit(self, files: dict[str, bytes]) -> str:
        """Store files as a commit without a parent, and return its hash."""
        stream = [b"commit refs/imported\ncommitter release <> 0 +0000\ndata 0\n"]
        for path, content in sorted(files.items()):
            name = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            stream.append(b'M 100644 inline "%s"\ndata %d\n%s\n' % (name.encode(), len(content), content))
        git(self.path, "fast-import", "--quiet", "--force", stdin=b"".join(stream) + b"done\n")
        return _line(git(self.path, "rev-parse", "refs/imported"))


def commit_from(hash_: str, subject: str) -> Commit:
    numbers = _PULL_REQUEST.findall(subject)
    return Commit(hash_, subject, int(numbers[-1]) if numbers else None)


def is_repository(path: Path) -> bool:
    """Whether a directory is a work tree's root or a bare repository (and not merely inside of one)."""
    answer = git(path, "rev-parse", "--git-dir", check=False)
    return _line(answer) in (".", ".git") or (path / ".git").exists()


def fetch(git_dir: Path, specs: Iterable[str], *, negotiate: bool = True) -> str:
    """Fetch refs, or hashes, from `origin` without the blobs that nobody names. Returns git's message if that fails.

    Objects by hash need no negotiation of what both sides have, which would make the server look at every commit.
    """
    options = [] if negotiate else ["-c", "fetch.negotiationAlgorithm=noop"]
    command = ["git", "-C", str(git_dir), *options, "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--force"]
    command += ["--no-auto-gc", "--filter=blob:none", "--stdin", "origin"]
    names = "".join(f"{spec}\n" for spec in specs)
    done = subprocess.run(command, input=names, capture_output=True, text=True, env=_environment())
    if not done.returncode:
        return ""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip() and not line.startswith("warning:")]
    return "; ".join(lines) or f"exit code {done.returncode}"


def _line(answer: bytes) -> str:
    return answer.decode().strip()
