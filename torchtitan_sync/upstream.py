"""Upstream between two points: a git URL, a local clone, a folder of releases, or PyPI.

Whatever it comes from, it ends up as two commits in one object store, so what follows knows git only:
  - a local clone is read in place, and never written to;
  - a URL becomes a mirror without blobs, to which the blobs that are asked for are added in one fetch;
  - a release from PyPI is stored as a commit. Its blobs get the ids that git gives them, so equal files are equal. Its
    archive is kept, since a release never changes.
"""

import contextlib
import hashlib
import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torchtitan_sync import memory, policy, releases
from torchtitan_sync.model import Change, FileRename, Plugin, Snapshot, SyncError
from torchtitan_sync.objects import ObjectStore, fetch, git, is_repository

_FULL_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_HASH = re.compile(r"[0-9a-f]{7,64}")
_ANCHOR_SEARCH = 40
"""Commits at the head of a release branch among which the one that was released is looked for."""


@dataclass(frozen=True)
class Point:
    """One end of a range."""

    id: str
    """Full commit hash, or `pypi:VERSION`."""
    label: str
    commit: str
    """Its files, as a commit of the store."""
    history: str | None
    """The commit of upstream's history that it is; None for a release that is nowhere in a history that is known."""


class UpstreamSnapshot:
    """`model.Snapshot` of a commit in a store."""

    def __init__(self, source: "Source", point: Point, *, package_only: str = "") -> None:
        self._source = source
        self._point = point
        self._package_only = package_only

    @property
    def id(self) -> str:
        return self._point.id

    @property
    def label(self) -> str:
        return self._point.label

    @cached_property
    def _files(self) -> dict[str, str]:
        tree = self._source.store.tree(self._point.commit)
        if not self._package_only:
            return tree
        # A wheel has no docs and tests: that the other side has some says nothing about upstream.
        return {p: blob for p, blob in tree.items() if "/" not in p or p.startswith(f"{self._package_only}/")}

    def files(self) -> dict[str, str]:
        """Blob id by path."""
        return self._files

    def read(self, paths: Iterable[str]) -> dict[str, bytes]:
        """Contents by path. Raises SyncError when a path is not in the snapshot, or its blob cannot be had."""
        blobs = {}
        for path in paths:
            if path not in self._files:
                raise SyncError(f"upstream has no file {path} at {self.label}")
            blobs[path] = self._files[path]
        contents = self._source.read(blobs.values())
        lacking = [path for path, blob in blobs.items() if blob not in contents]
        if lacking:
            raise SyncError(
                f"the contents of {len(lacking)} upstream files at {self.label} cannot be had, {lacking[0]} first: "
                f"{self._source.why_missing}"
            )
        return {path: contents[blob] for path, blob in blobs.items()}


class UpstreamRange:
    """`model.Range` between two points of one source."""

    def __init__(self, source: "Source", row: policy.Row, old: Point, new: Point, package: str) -> None:
        trees = [source.store.tree(point.commit) for point in (old, new) if policy.release_of(point.id)]
        wheel = any("pyproject.toml" not in tree for tree in trees)
        self._below = package if wheel else ""
        self._source = source
        self._ends = old, new
        self.row = row
        """The row of the versioning policy that this starts from."""
        self.old: Snapshot = UpstreamSnapshot(source, old, package_only=self._below)
        self.new: Snapshot = UpstreamSnapshot(source, new, package_only=self._below)
        self.notes = source.notes
        """What the reader should know about where this came from."""

    def renames(self) -> list[FileRename]:
        old, new = self.old.files(), self.new.files()
        only = {p: b for p, b in old.items() if p not in new} | {p: b for p, b in new.items() if p not in old}
        lacking = self._source.have(only.values())
        unreadable = [path for path, blob in only.items() if blob in lacking]
        return self._source.store.renames(self._ends[0].commit, self._ends[1].commit, self._below or ".", unreadable)

    def commit_count(self) -> int | None:
        ends = self._history_ends()
        return self._source.store.count(*ends) if ends else None

    @cached_property
    def _history(self) -> dict[str, list[Change]]:
        ends = self._history_ends()
        return self._source.store.history(*ends) if ends else {}

    def history(self) -> dict[str, list[Change]]:
        return self._history

    def read_blobs(self, blobs: Iterable[str]) -> dict[str, bytes]:
        return self._source.read(blobs)

    def _history_ends(self) -> tuple[str, str] | None:
        old, new = (point.history for point in self._ends)
        return (old, new) if old and new else None


class Source:
    """Where upstream comes from: a store of its own, and where to fetch what is not in it."""

    def __init__(self, work: Path, name: str, package: str) -> None:
        self.package = package
        """Upstream's import name, which is its distribution's name too."""
        self.store = ObjectStore(work / "objects.git")
        self.work = work
        self.name = name
        """For people: the URL or folder."""
        self.mirror: Path | None = None
        self.refs: dict[str, str] = {}
        """Commit by ref name."""
        self.release_folder: Path | None = None
        self.kept_releases = memory.user_folder() / "releases"
        self.why_missing = "fetch them, or use a complete clone"
        self.notes: list[str] = []

    def read(self, blobs: Iterable[str]) -> dict[str, bytes]:
        wanted = list(dict.fromkeys(blobs))
        self.have(wanted)
        return self.store.read(wanted)

    def have(self, blobs: Iterable[str]) -> set[str]:
        """Fetch, all at once, those of these blobs that are not here. Returns those that cannot be had."""
        missing = self.store.missing(blobs)
        if missing and self.mirror:
            self.why_missing = fetch(self.mirror, missing, negotiate=False) or "the server does not have them"
            missing = self.store.missing(missing)
        return set(missing)

    def point(self, name: str, what: str) -> Point:
        """The commit or release of this name. `what` says what it is for. Raises SyncError if it cannot be had."""
        if version := policy.release_of(name):
            return self._release(version)
        commit = self._commit(name)
        if commit is None:
            raise SyncError(f"{what} {name!r} is not in {self.name}: {self._advice(name)}")
        if not self.store.has(commit):
            raise SyncError(f"{what} {name!r} is in {self.name}, but its files are not: {self.why_missing}")
        label = commit[:9] if commit.startswith(name) else f"{name} ({commit[:9]})"
        return Point(commit, label, commit, commit)

    def _commit(self, name: str) -> str | None:
        heads = [f"refs/heads/{name}", f"refs/remotes/origin/{name}"]
        known = [
            self.refs[ref] for ref in (f"refs/tags/{name}", *heads, f"refs/remotes/{name}", name) if ref in self.refs
        ]
        if len(known) == 2 and self.store.count(known[0], known[1]) and not self.store.count(known[1], known[0]):
            return known[1]  # the remote's branch is ahead of the local one
        if known:
            return known[0]
        if not _HASH.fullmatch(name):
            return None
        commit = self.store.commit_of(name)
        if commit is None and self.mirror and _FULL_HASH.fullmatch(name):
            # On no branch that was fetched: a force-pushed branch, or a pull request.
            self.why_missing = fetch(self.mirror, [name])
            commit = self.store.commit_of(name)
        return commit

    def _advice(self, name: str) -> str:
        if not self.refs and self.mirror is None:
            return "there are only releases. Give --upstream a URL or a clone, or name a release as pypi:VERSION"
        if (self.store.path / "shallow").exists():
            return f"it is a shallow clone. git -C {self.name} fetch --unshallow, or --upstream URL"
        if _FULL_HASH.fullmatch(name):
            return (
                "its branch may have been force-pushed, and the server does not hand the commit out any more. Write "
                "the commit that took its place into the versioning policy, or give --upstream a clone that has it"
                + (f"\n  {self.why_missing}" if self.mirror and self.why_missing else "")
            )
        if _HASH.fullmatch(name):
            return "write the full hash"
        return "it names no branch, tag or commit there"

    def _release(self, version: str) -> Point:
        package = self.package
        archive = self.release_folder and releases.find(self.release_folder, package, version)
        if archive is None and self.release_folder:
            have = ", ".join(releases.versions(self.release_folder, package)) or "none"
            raise SyncError(
                f"{self.release_folder} has no wheel or source archive of {package} {version} (it has {have})"
            )
        archive = archive or releases.get(package, version, self.kept_releases, self.work / "releases")
        files = releases.read(archive)
        commit = self.store.add_commit(files)
        return Point(f"pypi:{version}", f"pypi:{version}", commit, self._released_commit(version, commit))

    def _released_commit(self, version: str, commit: str) -> str | None:
        """The commit that a release was made from: its tag's, or the most alike of its branch's last ones."""
        minor = ".".join(version.split(".")[:2])
        tags = [self.refs[ref] for ref in (f"refs/tags/v{version}", f"refs/tags/{version}") if ref in self.refs]
        if tags:
            return tags[0]
        branch = re.compile(rf"refs/(heads|remotes/origin)/release[-/_]v?({re.escape(version)}|{re.escape(minor)})")
        heads = [hash_ for ref, hash_ in self.refs.items() if branch.fullmatch(ref)]
        if not heads:
            return None
        recent = git(self.store.path, "rev-list", "--first-parent", f"--max-count={_ANCHOR_SEARCH}", heads[0])
        released = {(p, b) for p, b in self.store.tree(commit).items() if p.startswith(f"{self.package}/")}
        alike = {c: len(released & self.store.tree(c).items()) for c in recent.decode().split()}
        best = max(alike, key=lambda candidate: alike[candidate])
        if alike[best] < len(released):
            differ = len(released) - alike[best]
            self.notes.append(
                f"pypi:{version} is taken for commit {best[:9]}: {differ} of its {len(released)} files differ"
            )
        return best


@contextlib.contextmanager
def open_range(
    plugin: Plugin, *, target: str | None = None, upstream: str | None = None, cache: Path | None = None
) -> Iterator[UpstreamRange]:
    """Upstream from the plugin's baseline to a target.

    Args:
        plugin: its policy says the baseline, and the rest where that is not given.
        target: a commit, tag, branch or `pypi:VERSION`; by default the head of the row's branch, and where upstream is
            releases the newest one.
        upstream: a URL, a local clone, a folder of releases, or `pypi`; by default the row's URL.
        cache: keep the mirror and the releases here, and use them again. Without it they are removed at the end, also
            after an error or Ctrl-C.

    Raises:
        SyncError: the policy is incomplete, or upstream, the baseline or the target cannot be had.
    """
    document = plugin.root / plugin.document
    row = policy.Policy(document).row(policy.current_branch(plugin.root))
    with tempfile.TemporaryDirectory(prefix="torchtitan-sync-") as folder:
        work = Path(folder)
        names = [row.commit, target or row.upstream_branch]
        source = _open(work, upstream or row.url, plugin.upstream, names, cache)
        old = source.point(row.commit, f"{document}:{row.line}: the baseline")
        if target is None and source.release_folder:
            target = f"pypi:{releases.versions(source.release_folder, plugin.upstream)[-1]}"
        elif target is None and upstream == "pypi":
            target = f"pypi:{releases.newest(plugin.upstream, work / 'newest')}"
        new = source.point(target or row.upstream_branch, "the target")
        yield UpstreamRange(source, row, old, new, plugin.upstream)


def _open(work: Path, upstream: str, package: str, names: list[str], cache: Path | None) -> Source:
    source = Source(work, upstream, package)
    if cache:
        source.kept_releases = cache / "releases"
    folder = Path(upstream).expanduser()
    if upstream == "pypi":
        pass
    elif folder.is_dir() and is_repository(folder):
        _open_clone(source, folder)
    elif folder.is_dir() and releases.versions(folder, package):
        source.release_folder = folder
    elif folder.is_dir():
        raise SyncError(
            f"{upstream} is neither a git repository nor a folder with wheels or source archives of torchtitan"
        )
    elif all(policy.release_of(name) for name in names):
        pass  # two releases need no git
    else:
        _open_url(source, upstream, names, cache)
    return source


def _open_clone(source: Source, folder: Path) -> None:
    source.store.borrow(folder)
    refs = git(folder, "for-each-ref", "--format=%(refname)%00%(objectname)%00%(*objectname)").decode().splitlines()
    for name, hash_, peeled in (ref.split("\0") for ref in refs):
        source.refs[name] = peeled or hash_
    origin = git(folder, "config", "--get", "remote.origin.url", check=False).decode().strip()
    if origin:
        source.mirror = _mirror(source.work / "mirror.git", origin)
        source.store.borrow(source.mirror)
    if (source.store.path / "shallow").exists():
        source.notes.append(f"{folder} is a shallow clone: commits before its border are not counted or named")


def _open_url(source: Source, url: str, names: list[str], cache: Path | None) -> None:
    mirror = (
        (cache / "mirrors" / hashlib.sha256(url.encode()).hexdigest()[:16]) if cache else source.work / "mirror.git"
    )
    fresh = not (mirror / "HEAD").exists()
    _mirror(mirror, url)
    source.mirror = mirror
    source.store.borrow(mirror)
    try:
        remote = _ls_remote(url, names)
    except SyncError as error:
        if fresh:
            raise
        source.notes.append(f"{url} was not reached; this is what the cache has. {error}")
        remote = {}
    if remote:
        # Every ref that could be meant, and every commit that may be on none of them.
        specs = [f"+{ref}:{ref}" for ref in remote if not ref.endswith("^{}") and ref != "HEAD"]
        if failed := fetch(mirror, specs):
            raise SyncError(f"{url} could not be fetched: {failed}")
    refs = git(mirror, "for-each-ref", "--format=%(refname)%00%(objectname)%00%(*objectname)").decode().splitlines()
    for name, hash_, peeled in (ref.split("\0") for ref in refs):
        source.refs[name] = peeled or hash_


def _ls_remote(url: str, names: list[str]) -> dict[str, str]:
    """The refs that names (branches, tags, versions) can mean. Raises SyncError if the remote does not answer."""
    patterns = ["HEAD"]
    for name in names:
        if version := policy.release_of(name):
            minor = ".".join(version.split(".")[:2])
            patterns += [f"refs/tags/{prefix}{version}" for prefix in ("v", "")]
            patterns += [f"refs/heads/release*{v}" for v in (version, minor)]
        elif not _FULL_HASH.fullmatch(name):
            patterns += [f"refs/heads/{name}", f"refs/tags/{name}"]
    try:
        answer = git(None, "ls-remote", url, *patterns)
    except SyncError as error:
        raise SyncError(
            f"upstream {url} cannot be reached: {error}\n"
            "  Check the network and `torchtitan_repo_url` in the versioning policy, or give --upstream a local clone"
        ) from None
    return {ref: hash_ for hash_, ref in (line.split("\t") for line in answer.decode().splitlines())}


def _mirror(path: Path, url: str) -> Path:
    """A bare repository that can fetch from `url`."""
    if not (path / "HEAD").exists():
        git(None, "init", "--quiet", "--bare", str(path))
    git(path, "config", "remote.origin.url", url)
    return path
