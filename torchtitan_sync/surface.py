"""What the plugin uses of upstream: every reference in its files.

Python is walked (`evaluate.py`); TOML, shell and Markdown are searched for configuration fields and command-line flags.
"""

import re
import tomllib
from collections.abc import Iterator

from torchtitan_sync.evaluate import Evaluator
from torchtitan_sync.program import Found, Missing, Program, Result
from torchtitan_sync.records import Hints, Place, Record, Ref
from torchtitan_sync.sources import Sources
from torchtitan_sync.values import Class, Instance, Value


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
        whole.given |= record.given
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
