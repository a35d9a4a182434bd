"""What the plugin uses of upstream: its files, and every reference in them.

Python is walked (`evaluate.py`); TOML, shell and Markdown are searched for configuration fields and command-line flags.
"""

import ast
import fnmatch
import hashlib
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from torchtitan_sync import settings
from torchtitan_sync.evaluate import Evaluator
from torchtitan_sync.model import Plugin, SyncError
from torchtitan_sync.objects import git
from torchtitan_sync.program import File, Found, Missing, Program, Result, package_files
from torchtitan_sync.records import Hints, Place, Record, Ref
from torchtitan_sync.values import Class, Instance, Value

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


def walk(sources: Sources, program: Program, hints: Hints | None = None, only: set[str] | None = None) -> Record:
    """Every use of upstream, in all files or in those of some modules."""
    whole = Record("", sources.plugin.upstream)
    for module, file in sources.modules.items():
        tree = sources.trees.get(file.path)
        if tree is None or (only is not None and module not in only):
            continue
        record = Record(file.path, sources.plugin.upstream)
        Evaluator(program, module, record, hints).module_body(tree)
        whole.refs += record.refs
        whole.calls += record.calls
        whole.patches += record.patches
        whole.handlers += record.handlers
        whole.wrapped += record.wrapped
    return whole


# Configuration outside of Python

_FLAG = re.compile(r"(?<![\w-])--([a-z][\w-]*(?:\.[a-z][\w-]*)+)")


def options(sources: Sources, program: Program, root: Class | None) -> list[Ref]:
    """Configuration fields that TOML files set, and flags in scripts, documents and lists of arguments."""
    found: list[Ref] = []
    if root is None:
        return found
    for path, data in sources.contents.items():
        text = data.decode("utf-8", "replace")
        if path.endswith(".toml"):
            found += _toml(path, text, program, root)
        for number, line in enumerate(text.splitlines(), 1):
            for match in _FLAG.finditer(line):
                place = Place(path, number, _leaf(line, match.start(1), match[1]), len(line[: match.end(1)].encode()))
                found.append(_option(program, root, match[1].replace("-", "_"), place))
    return found


def _leaf(line: str, start: int, dotted: str) -> int:
    """Where the last part of a dotted name begins, in bytes as in syntax trees."""
    return len(line[: start + len(dotted) - len(dotted.rpartition(".")[2])].encode())


def _toml(path: str, text: str, program: Program, root: Class) -> Iterator[Ref]:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[\s*([\w.\-]+)\s*\]", line)
        key = re.match(r"\s*([\w\-.]+)\s*=", line)
        if header:
            section = header[1]
        name = (header or key) and ((f"{section}.{key[1]}" if section else key[1]) if key and not header else section)
        match = header or key
        if name and match:
            yield _option(program, root, name.replace("-", "_"), _toml_place(path, number, line, match))


def _toml_place(path: str, number: int, line: str, match: re.Match[str]) -> Place:
    return Place(path, number, _leaf(line, match.start(1), match[1]), len(line[: match.end(1)].encode()))


_MODEL = re.compile(r"--(?:model\.name|module)[ =][\"']?([A-Za-z_]\w*)")
_MODEL_KEY = re.compile(r"\s*name\s*=\s*[\"'](\w+)[\"']")


def model_names(sources: Sources) -> Iterator[tuple[str, Place]]:
    """Upstream's models that scripts, documents and TOML files name."""
    for path, data in sources.contents.items():
        section = ""
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
            if path.endswith(".toml"):
                header = re.match(r"\s*\[\s*([\w.\-]+)\s*\]", line)
                section = header[1] if header else section
                found = _MODEL_KEY.match(line) if section == "model" else None
            else:
                found = _MODEL.search(line)
            if found:
                start = len(line[: found.start(1)].encode())
                yield found[1], Place(path, number, start, start + len(found[1].encode()))


def _option(program: Program, root: Class, dotted: str, place: Place) -> Ref:
    owner: Class | None = root
    result: Result = None
    path = root.path
    for name in dotted.split("."):
        if owner is None:  # behind something that is no section
            return Ref(place, "option", dotted, result if not isinstance(result, Found) else None, path)
        path = owner.path
        result = program.attribute(owner, name)
        owner = field_class(program, owner, result)
    return Ref(place, "option", dotted, result, path)


def field_class(program: Program, owner: Class, result: Result) -> Class | None:
    """The class of a field's value, where it is one; of a field that is missing, the one it had."""
    if isinstance(result, Missing) and program.formerly is not None:
        former = program.formerly(result.owner, result.name)
        return former.of if isinstance(former, Instance) else None
    if not isinstance(result, Found):
        return None
    value: Value | None = Evaluator(program, owner.module).found_value(result, via=Instance(owner))
    return value.of if isinstance(value, Instance) else None


def config_root(program: Program, upstream: str) -> Class | None:
    """The class that the command line fills: upstream's `JobConfig`, later `Trainer.Config`."""
    for path in (
        f"{upstream}.config.JobConfig",
        f"{upstream}.trainer.Trainer.Config",
        f"{upstream}.train.Trainer.Config",
    ):
        found = program.resolve_plainly(path)
        if isinstance(found, Found) and found.symbol is not None and found.symbol.kind == "class":
            return Class(found.module, found.name)
    return None
