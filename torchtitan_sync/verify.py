"""`torchtitan-sync verify`: import, resolve and test the plugin on the target upstream, in a throw-away place."""

import argparse
import ast
import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from torchtitan_sync import console, probe, settings, state
from torchtitan_sync.impact import analyse
from torchtitan_sync.model import Analysis, Grade, Plugin, Range
from torchtitan_sync.objects import git
from torchtitan_sync.upstream import open_range

_PROBE_TIMEOUT = 900  # seconds; a plugin's imports compile kernels at worst
_TESTS_TIMEOUT = 3600  # seconds
_NOT_INSTALLED = re.compile(r"No module named '(\w+)")
_NO_TESTS = 5  # pytest's exit code
_SHOWN = 20
"""Failures and notes of a check that are printed; --json has all."""

# Makes another copy of the plugin or of upstream, installed in editable mode, invisible: those put a finder first.
_SITE = """\
import sys
for finder in list(sys.meta_path):
    if not isinstance(finder, type):
        for name in {names!r}:
            try:
                found = finder.find_spec(name, None)
            except Exception:
                found = None
            if found is not None and finder in sys.meta_path:
                sys.meta_path.remove(finder)
"""


@dataclass
class Check:
    name: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    problems: list[str] = field(default_factory=list)
    """Where, what and why, of what failed."""
    notes: list[str] = field(default_factory=list)

    def summary(self) -> str:
        text = f"{self.passed} passed, {self.failed} failed"
        return text + (f", {self.skipped} skipped" if self.skipped else "")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tests", action="store_true", help="run the tests that touch affected files too")
    parser.add_argument("--pytest", default="", metavar="ARGS", help="more arguments for pytest, as one word")


def run(args: argparse.Namespace) -> int:
    """Exit code 1 where a check failed."""
    plugin = settings.load(args.repo, args.package)
    with open_range(plugin, target=args.target, upstream=args.upstream, cache=args.cache) as upstream:
        analysis = analyse(upstream, plugin, args.cache, console.say)
        progress = state.load(plugin.root, upstream.old.id, upstream.new.id)
        affected = {use.file for item in analysis.items for use in item.downstream}
        affected |= set(state.changed_files(plugin.root, progress.started))
        checks = [_static(analysis)]
        with workplace(plugin, upstream) as place:
            console.say(f"verifying against {upstream.new.label}")
            checks += _probe(plugin, place)
            tests = affected_tests(plugin, affected)
            if args.tests:
                checks.append(_tests(place, tests, args.pytest.split()))
        progress.checks = {check.name: check.summary() for check in checks}
        state.save(plugin.root, progress)
    console.write_json(args.json, [dataclasses.asdict(check) for check in checks])
    if not console.is_output(args.json):
        _print(checks)
        if not args.tests:
            print(f"{len(tests)} test files touch affected files: --tests runs them")
        print(state.REMINDER)
    return int(any(check.failed for check in checks))


@dataclass
class Place:
    """Where the plugin meets the target upstream."""

    plugin: Plugin
    """A copy in a work tree of its own, uncommitted changes included."""
    folder: Path
    environment: dict[str, str]


@contextlib.contextmanager
def workplace(plugin: Plugin, upstream: Range) -> Iterator[Place]:
    """A work tree of the plugin and an environment in which its upstream is the target; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="torchtitan-sync-") as temporary:
        folder = Path(temporary).resolve()
        tree = folder / "plugin"
        top = Path(git(plugin.root, "rev-parse", "--show-toplevel").decode().strip())
        below = plugin.root.resolve().relative_to(top.resolve())
        # The plugin's hooks are for its own work trees.
        git(top, "-c", f"core.hooksPath={os.devnull}", "worktree", "add", "--quiet", "--detach", str(tree), "HEAD")
        try:
            _overlay(top, tree)
            copy = dataclasses.replace(plugin, root=tree / below)
            _write_upstream(upstream, plugin.upstream, folder / "upstream")
            yield Place(copy, folder, _environment(copy, folder))
        finally:
            git(top, "worktree", "remove", "--force", str(tree), check=False)
            git(top, "worktree", "prune", check=False)


def affected_tests(plugin: Plugin, affected: set[str]) -> list[str]:
    """Test files that are affected or import, directly or not, an affected module of the plugin."""
    graph = {name: set(_imports(plugin.root, name)) for name in _python_files(plugin.root)}
    modules = {_module_name(name, plugin): name for name in graph}
    reached = set(affected)
    while True:
        more = {
            name
            for name, imports in graph.items()
            if name not in reached and any(modules.get(module) in reached for module in imports)
        }
        if not more:
            break
        reached |= more
    return sorted(n for n in reached & graph.keys() if Path(n).name.startswith("test_") or n.endswith("_test.py"))


def _overlay(top: Path, tree: Path) -> None:
    """Bring uncommitted changes into the work tree."""
    for name in state.changed_files(top, "HEAD"):
        source, target = top / name, tree / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
        elif target.is_file():
            target.unlink()


def _write_upstream(upstream: Range, package: str, folder: Path) -> None:
    files = upstream.new.files()
    wanted = [path for path in files if path.startswith(f"{package}/") or path == "assets/version.txt"]
    contents = upstream.new.read(path for path in wanted if path.endswith((".py", ".txt", ".json", ".toml", ".yaml")))
    for path, content in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    # A release says its version in its id, a commit in a file; importlib.metadata wants it in this form.
    version = upstream.new.id.partition("pypi:")[2] or contents.get("assets/version.txt", b"0").decode().strip()
    metadata = folder / f"{package}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")


def _environment(plugin: Plugin, folder: Path) -> dict[str, str]:
    site = folder / "site"
    site.mkdir()
    names = (plugin.package.split(".")[0], plugin.upstream)
    (site / "sitecustomize.py").write_text(_SITE.format(names=names))
    roots = [site, settings.package_folder(plugin).parents[plugin.package.count(".")], plugin.root, folder / "upstream"]
    path = os.pathsep.join([*map(str, roots), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(folder)}


def _static(analysis: Analysis) -> Check:
    breaks = [item for item in analysis.items if item.grade == Grade.P0]
    lines = [
        f"{use.file}:{use.line}: {item.upstream_symbol}: {item.what}" for item in breaks for use in item.downstream
    ]
    return Check("P0 left", passed=analysis.references - len(lines), failed=len(breaks), problems=lines)


def _probe(plugin: Plugin, place: Place) -> list[Check]:
    files = _python_files(place.plugin.root)
    inside = settings.package_folder(place.plugin).relative_to(place.plugin.root).as_posix()
    modules = {
        _module_name(name, place.plugin): name
        for name in files
        if name.startswith(f"{inside}/") and not name.endswith("__main__.py")
    }
    task, result = place.folder / "task.json", place.folder / "result.json"
    details = {"root": str(place.plugin.root), "package": plugin.package, "upstream": plugin.upstream}
    task.write_text(json.dumps(details | {"modules": modules, "result": str(result)}))
    # -P: the folder of that file, this package, is not for the plugin to import from.
    command = [sys.executable, "-P", str(Path(probe.__file__)), str(task)]
    output = place.folder / "probe.log"
    code = _run(command, place, output, _PROBE_TIMEOUT)
    if not result.exists():
        tail = output.read_text(errors="replace").strip().splitlines()[-5:]
        return [Check("import", failed=1, problems=[f"the interpreter ended with code {code}: " + " / ".join(tail)])]
    checks: dict[str, Check] = {}
    seen: Counter[tuple[str, str, str]] = Counter()
    for found in json.loads(result.read_text()):
        check = checks.setdefault(found["check"], Check(found["check"]))
        key = (found["check"], found["name"], found["where"])
        seen[key] += 1
        if seen[key] > 1:
            continue
        line = f"{found['where']}: {found['name']}: {found['why']}"
        if found["state"] == probe.OK:
            check.passed += 1
        elif found["state"] == probe.SKIPPED:
            check.skipped += 1
            check.notes.append(line)
        else:
            check.failed += 1
            check.problems.append(line)
    return list(checks.values())


def _tests(place: Place, tests: list[str], arguments: list[str]) -> Check:
    check = Check("tests")
    if not tests:
        check.notes.append("no test touches an affected file")
        return check
    report, output = place.folder / "tests.xml", place.folder / "tests.log"
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", "-p", "no:cacheprovider", *arguments]
    console.say(f"running {len(tests)} test files")
    code = _run([*command, *tests], place, output, _TESTS_TIMEOUT)
    if not report.exists():
        tail = output.read_text(errors="replace").strip().splitlines()[-5:]
        return Check("tests", failed=1, problems=[f"pytest ended with code {code}: " + " / ".join(tail)])
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        broken = next((child for child in case if child.tag in ("failure", "error")), None)
        if broken is not None:
            check.failed += 1
            check.problems.append(f"{name}: {(broken.get('message') or '').splitlines()[:1]}")
        elif case.find("skipped") is not None:
            check.skipped += 1
        else:
            check.passed += 1
    if code == _NO_TESTS:
        check.notes.append("pytest selected no test")
    return check


def _run(command: list[str], place: Place, output: Path, timeout: float) -> int:
    """Run in a process group of its own, so that what it starts ends with it. Returns the exit code."""
    with output.open("wb") as file:
        child = subprocess.Popen(
            command,
            cwd=place.plugin.root,
            env=place.environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return child.wait(timeout)
        except subprocess.TimeoutExpired:
            file.write(f"\nstopped after {timeout:.0f} seconds\n".encode())
            return -signal.SIGKILL
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _python_files(root: Path) -> list[str]:
    names = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.py")
    found = names.decode(errors="surrogateescape").split("\0")
    return sorted(name for name in dict.fromkeys(found) if name and (root / name).is_file())


def _module_name(name: str, plugin: Plugin) -> str:
    """Import name of a file: below the folder that holds the plugin's package, else below the repository."""
    holder = settings.package_folder(plugin).parents[plugin.package.count(".")].relative_to(plugin.root).as_posix()
    inner = name.removeprefix(f"{holder}/") if holder != "." else name
    return inner.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imports(root: Path, name: str) -> Iterable[str]:
    """Modules that a file imports, each with those it may be a name of."""
    try:
        tree = ast.parse((root / name).read_bytes())
    except (SyntaxError, ValueError):
        return
    package = name.removesuffix(".py").split("/")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _print(checks: list[Check]) -> None:
    print(f"{'check':12} {'passed':>7} {'failed':>7} {'skipped':>8}")
    for check in checks:
        print(f"{check.name:12} {check.passed:7} {check.failed:7} {check.skipped:8}")
    for check in checks:
        for line in check.problems[:_SHOWN]:
            print(f"{check.name}: {line}")
        lacking = sorted({name for line in check.notes for name in _NOT_INSTALLED.findall(line)})
        if lacking:
            print(f"{check.name}: skipped for what is not installed: {', '.join(lacking)}")
        for line in [line for line in check.notes if not _NOT_INSTALLED.search(line)][:_SHOWN]:
            print(f"{check.name}: {line}")
        if len(check.problems) > _SHOWN:
            print(f"{check.name}: {len(check.problems) - _SHOWN} more; --json FILE has all")
