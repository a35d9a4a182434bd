"""Writes, for a break, a few lines of Python that pass on the old upstream and fail on the new, and runs them.

They run on the snapshots' own files. Every other package that upstream imports (torch among them) is replaced by a
stand-in that takes whatever is done to it, so that nothing has to be installed: whether a name, a parameter or a field
is there depends on upstream alone.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from torchtitan_sync.grades import TABLE
from torchtitan_sync.model import Analysis, Grade, Item, Plugin, Range, Snapshot, SyncError
from torchtitan_sync.modules import package_files

_SECONDS = 300

_HAS = """\
def has(cls, name):
    own = [c for c in cls.__mro__ if c.__module__.partition(".")[0] == {upstream!r}]
    declared = any(name in vars(c) or name in vars(c).get("__annotations__", {{}}) for c in own)
    return declared or any(f"self.{{name}}" in inspect.getsource(c) for c in own)
"""


def write(analysis: Analysis, changes: Range, plugin: Plugin, folder: Path) -> tuple[int, int]:
    """One script a P0 into `folder`; a hit that its script does not show is lowered to P2, with a note.

    Returns how many are shown and how many were lowered. Raises SyncError when the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("witness_*.py"):
            old.unlink()
        scripts = {}
        for item in analysis.items:
            code = script(item, plugin.upstream) if item.grade == Grade.P0 else ""
            if code:
                path = folder / f"witness_{item.id.replace('-', '_')}.py"
                path.write_text(code, encoding="utf-8")
                scripts[path.name] = item
        (folder / "run.py").write_text(Path(__file__).with_name("standins.py").read_text("utf-8"), encoding="utf-8")
    except OSError as error:
        raise SyncError(f"witnesses cannot be written: {error}; name another folder with --witness") from error
    results = [_run(side, plugin, folder, list(scripts)) for side in (changes.old, changes.new)]
    shown = 0
    for name, item in scripts.items():
        before, after = (result.get(name, "did not run") for result in results)
        if not before and after:
            shown += 1
            item.notes.append(f"shown by {name}: {after}")
        else:
            how = f"fails on the old upstream: {before}" if before else "passes on the new upstream"
            item.notes.append(f"was {item.kind}, but {name} {how}")
            item.kind, item.grade = "witness-failed", TABLE["witness-failed"].grade
    analysis.items.sort(key=lambda item: item.grade)
    return shown, len(scripts) - shown


def script(item: Item, upstream: str) -> str:
    """Empty for a kind that cannot be shown by looking at upstream alone."""
    lines = list(_lines(item, upstream))
    if not lines:
        return ""
    title = f"{item.grade.name} {item.kind}: {item.upstream_symbol}"
    head = f'"""{title}\n\nPasses on the old upstream, fails on the new.\n"""\n'
    return "\n".join([head, *lines, ""])


def _lines(item: Item, upstream: str) -> Iterator[str]:
    path = item.upstream_symbol
    owner, _, name = path.rpartition(".")
    match item.kind:
        case "module-moved" | "module-removed":
            yield from ("import importlib", "", f"importlib.import_module({path!r})")
        case "symbol-moved" | "symbol-removed" | "patch-target-gone":
            yield from _resolved(path)
        case "attribute-moved" | "attribute-removed" | "field-moved" | "field-removed":
            yield from ("import inspect", *_resolve_lines(owner), "", _HAS.format(upstream=upstream))
            yield f"assert has(found, {name!r}), {f'{owner} has no {name}'!r}"
        case "parameter-renamed" | "parameter-removed" if name.isidentifier() and "positional" not in item.what:
            yield from ("import inspect", *_resolve_lines(owner), "")
            yield "parameters = inspect.signature(found).parameters"
            yield "takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())"
            yield f"assert {name!r} in parameters or takes_any, {f'{owner} takes no {name}'!r}"
        case "parameter-required" | "parameter-removed" if item.call is not None:
            called = path if item.kind == "parameter-removed" else owner
            given = ["None"] * item.call[0] + [f"{word}=None" for word in item.call[1]]
            given = ["None", *given] if called.endswith(".__init__") else given
            yield from ("import inspect", *_resolve_lines(called), "")
            yield f"inspect.signature(found).bind({', '.join(given)})"
        case "key-removed":
            yield from (*_resolve_lines(owner), "")
            yield f"assert {name!r} in found, {f'{owner} has no key {name}'!r}"
        case "silent" if "re-export" in item.what:
            module, _, last = path.rpartition(".")
            yield from ("import importlib", "", f"module = importlib.import_module({module!r})")
            yield f"assert module.{last}.__module__ == module.__name__, {f'{path} is defined elsewhere'!r}"
        case "silent" if "is gone" in item.what:
            yield from ("import inspect", *_resolve_lines(owner), "", _HAS.format(upstream=upstream))
            yield f"there = has(found, {name!r}) if isinstance(found, type) else hasattr(found, {name!r})"
            yield f"assert there, {f'{owner} has no {name}'!r}"


def _resolved(path: str) -> Iterator[str]:
    yield from _resolve_lines(path)
    yield f"assert found is not None, {f'{path} is None'!r}"


def _resolve_lines(path: str) -> tuple[str, ...]:
    return (
        "import pkgutil",
        "",
        f"found = pkgutil.resolve_name({path!r})",
    )


def _run(side: Snapshot, plugin: Plugin, folder: Path, names: list[str]) -> dict[str, str]:
    """By script the error it ended with; empty where it passed."""
    if not names:
        return {}
    files = package_files(side.files(), plugin.upstream)
    contents = side.read([file.path for file in files.values()])
    with tempfile.TemporaryDirectory(prefix="torchtitan-sync-") as place:
        for name, file in files.items():
            target = Path(place, *name.split("."))
            target = target / "__init__.py" if file.package else target.with_suffix(".py")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(contents[file.path])
        command = [sys.executable, "-I", "-B", str(folder.resolve() / "run.py"), place, plugin.upstream, *names]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False)
            return json.loads(done.stdout.splitlines()[-1])
        except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
            raise SyncError(f"the witnesses could not be run at {side.label}: {error}; do without --witness") from error
