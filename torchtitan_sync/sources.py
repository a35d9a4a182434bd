"""The plugin's files: its Python, and what else may name upstream."""

import ast
import fnmatch
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from torchtitan_sync import settings
from torchtitan_sync.model import Plugin, SyncError
from torchtitan_sync.modules import File, package_files
from torchtitan_sync.objects import git

REPORT = "torchtitan_changes.md"
"""What `report` writes; it quotes the plugin."""
_IGNORED = {"__pycache__", "build", "dist", "node_modules", "site-packages"}
_TEXT = (".toml", ".sh", ".md", ".yaml", ".yml", ".txt", ".rst")


@dataclass
class Sources:
    """The plugin's files."""

    plugin: Plugin
    contents: dict[str, bytes] = field(default_factory=dict)
    """By path relative to the root."""
    modules: dict[str, File] = field(default_factory=dict)
    """Python files by module name; files outside of the package have a name made from their path."""
    trees: dict[str, ast.Module] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    """Python files that do not parse."""

    def parse(self) -> None:
        for file in self.modules.values():
            try:
                self.trees[file.path] = ast.parse(self.contents[file.path])
            except (SyntaxError, ValueError):
                self.broken.append(file.path)

    def blobs(self) -> dict[str, bytes]:
        return {file.blob: self.contents[file.path] for file in self.modules.values()}

    def line(self, file: str, number: int) -> str:
        lines = self.contents[file].decode("utf-8", "replace").splitlines()
        return lines[number - 1].strip() if 0 < number <= len(lines) else ""


def read(plugin: Plugin) -> Sources:
    """Raises SyncError when the package has no Python file."""
    sources = Sources(plugin)
    folder = settings.package_folder(plugin)
    ids: dict[str, str] = {}
    for path in _walk(plugin, folder):
        if path.suffix == ".py" or path.suffix in _TEXT:
            _take(sources, path, ids)
    prefix = folder.relative_to(plugin.root).as_posix()
    parent = prefix[: len(prefix) - len(plugin.package.replace(".", "/"))]
    below = {path.removeprefix(parent): blob for path, blob in ids.items() if path.endswith(".py")}
    for name, file in package_files(below, plugin.package).items():
        sources.modules[name] = File(parent + file.path, file.blob, file.package)
    if not sources.modules:
        raise SyncError(f"{folder} holds no Python file: name the plugin's package with --package")
    for name in plugin.sources:
        for path in _walk(plugin, plugin.root / name):
            if path.suffix in (".py", *_TEXT) and not path.is_relative_to(folder):
                relative = _take(sources, path, ids)
                if not (is_requirements(relative) or _names(sources.contents[relative], plugin)):
                    del sources.contents[relative]
                    continue
                if path.suffix == ".py" and not any(file.path == relative for file in sources.modules.values()):
                    is_package = path.name == "__init__.py"
                    parts = relative.removesuffix(".py").split("/")
                    module = ".".join(parts[:-1] if is_package else parts)
                    sources.modules.setdefault(module, File(relative, ids[relative], is_package))
    return sources


def is_requirements(path: str) -> bool:
    name = PurePosixPath(path).name
    return name == "pyproject.toml" or ("requirements" in name and name.endswith(".txt"))


def _names(data: bytes, plugin: Plugin) -> bool:
    """Whether a file outside of the package can concern upstream: it names one of the two, or sets options."""
    return plugin.upstream.encode() in data or plugin.package.encode() in data or b" --" in data


def _walk(plugin: Plugin, top: Path, own: frozenset[str] | None = None) -> Iterator[Path]:
    """Files of the plugin's own: what git ignores, submodules, and what this tool reads and writes are not."""
    own = _own(plugin.root) if own is None else own
    if top.is_file():
        yield top
    for path in sorted(top.iterdir()) if top.is_dir() else ():
        relative = path.relative_to(plugin.root).as_posix()
        if path.name.startswith(".") or path.name in _IGNORED:
            continue
        if any(fnmatch.fnmatch(relative, pattern) for pattern in plugin.exclude):
            continue
        if path.is_symlink() and path.is_dir():
            continue  # may lead round in a circle; what is in it is not the repository's
        if path.is_dir():
            yield from _walk(plugin, path, own)
        elif path.is_file() and relative not in (REPORT, plugin.document) and (not own or relative in own):
            yield path


def _own(root: Path) -> frozenset[str]:
    """Files that git has, or would take; none outside of a repository, where every file counts."""
    names = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", check=False)
    return frozenset(names.decode(errors="surrogateescape").split("\0")[:-1])


def _take(sources: Sources, path: Path, ids: dict[str, str]) -> str:
    relative = path.relative_to(sources.plugin.root).as_posix()
    if relative not in sources.contents:
        data = path.read_bytes()
        sources.contents[relative] = data
        # The id that git gives: the outline of a file is then kept under one name wherever it comes from.
        ids[relative] = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    return relative
