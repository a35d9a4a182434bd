"""Real git repositories in temporary folders, for tests."""

import os
import subprocess
import textwrap
from pathlib import Path

_IDENTITY = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "Ada"), ("EMAIL", "ada@example.org"), ("DATE", "2026-01-02T03:04:05Z"))
}


class Repository:
    """A git repository with a branch `main`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self.git("init", "--quiet", "--initial-branch=main")
        # What GitHub allows, so that the tests' remotes behave as it does.
        self.git("config", "uploadpack.allowFilter", "true")
        self.git("config", "uploadpack.allowAnySHA1InWant", "true")

    def git(self, *arguments: str) -> str:
        environment = os.environ | _IDENTITY | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        done = subprocess.run(
            ["git", "-c", "commit.gpgsign=false", *arguments],
            cwd=self.path,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    def write(self, files: dict[str, str | bytes | None]) -> None:
        """Write files by path; None removes one. Text is dedented."""
        for name, content in files.items():
            path = self.path / name
            if content is None:
                path.unlink()
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else textwrap.dedent(content).encode())

    def commit(self, files: dict[str, str | bytes | None], subject: str = "A change") -> str:
        """Write files and commit everything. Returns the hash."""
        self.write(files)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", subject)
        return self.git("rev-parse", "HEAD")

    @property
    def url(self) -> str:
        """An address that git treats as remote, unlike a path."""
        return f"file://{self.path}"


POLICY = """\
# Versions

## Branch sync table

| torchtitan_npu_branch | torchtitan_repo_url | torchtitan_branch | torchtitan_commit | updated_at | notes |
| --- | --- | --- | --- | --- | --- |
| main | {url} | {branch} | {commit} | 2026-01-02 | first |

## Release compatibility table

| plugin | torchtitan | torch |
| --- | --- | --- |
| 0.1.0 | 0.2.2 | 2.10.0 |
"""


def plugin(
    path: Path, url: str, commit: str, files: dict[str, str | bytes | None] | None = None, *, branch: str = "main"
) -> Repository:
    """A plugin's repository whose policy says that it is synced to a commit of upstream."""
    repository = Repository(path)
    policy = POLICY.format(url=url, branch=branch, commit=commit)
    project = '[project]\nname = "plugin"\n\n[tool.torchtitan-sync]\npackage = "torchtitan_npu"\n'
    fixed: dict[str, str | bytes | None] = {
        "docs/community/versioning_policy.md": policy,
        "pyproject.toml": project,
        "torchtitan_npu/__init__.py": "",
    }
    repository.commit(fixed | (files or {}), "The plugin")
    return repository
