"""What else the range brought: models, documents, tests, dependencies, files by directory."""

import re
import tomllib
from collections import Counter
from collections.abc import Iterable

from torchtitan_sync import pins, surface
from torchtitan_sync.findings import Findings
from torchtitan_sync.model import Range

_OTHER = ("docs", "tests", ".github", ".ci", "assets", "benchmarks", "scripts", "README.md", "CONTRIBUTING.md")
_DEPENDENCIES = re.compile(r"(^|/)(pyproject\.toml|PKG-INFO|[\w./-]*requirements[\w.-]*\.txt|setup\.cfg)$")
_REQUIREMENT = re.compile(r"^\s*([A-Za-z][\w.-]*)(\[[^\]]*\])?\s*([^#;]*)")


def directories(old: dict[str, str], new: dict[str, str]) -> dict[str, tuple[int, int, int]]:
    """Files added, changed and removed by directory, two levels deep."""
    counts: dict[str, Counter[str]] = {}
    for path in {*old, *new}:
        if old.get(path) == new.get(path):
            continue
        what = "added" if path not in old else "removed" if path not in new else "changed"
        parts = path.split("/")[:-1]
        counts.setdefault("/".join(parts[:3]) or ".", Counter())[what] += 1
    return {name: (c["added"], c["changed"], c["removed"]) for name, c in sorted(counts.items())}


def models(findings: Findings, old: dict[str, str], new: dict[str, str], upstream: str) -> None:
    """One finding a model folder."""
    before, after = _model_files(old, upstream), _model_files(new, upstream)
    for name in sorted({*before, *after}):
        first, second = before.get(name, {}), after.get(name, {})
        symbol = f"{upstream}.models.{name}"
        folder = f"{upstream}/models/{name}"
        if not first:
            findings.add("model-added", symbol, f"new model `{name}`, {len(second)} files", file=folder)
        elif not second:
            findings.add("model-removed", symbol, f"model `{name}` is gone", file=folder)
        elif first != second:
            changed = sum(first.get(path) != second.get(path) for path in {*first, *second})
            findings.add("model-changed", symbol, f"{changed} files of model `{name}` changed", file=folder)


def model_names(findings: Findings, old: dict[str, str], new: dict[str, str], upstream: str) -> None:
    """Models that the plugin's scripts and configurations run, and that are gone."""
    before, after = _model_files(old, upstream), _model_files(new, upstream)
    for name, place in surface.model_names(findings.sources):
        if name in before and name not in after:
            symbol = f"{upstream}.models.{name}"
            findings.add("key-removed", symbol, f"model `{name}` is gone", place, file=f"{upstream}/models/{name}")


def _model_files(files: dict[str, str], upstream: str) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for path, blob in files.items():
        parts = path.split("/")
        if len(parts) > 3 and parts[:2] == [upstream, "models"] and path.endswith(".py") and parts[2] != "common":
            found.setdefault(parts[2], {})[path] = blob
    return found


def others(findings: Findings, old: dict[str, str], new: dict[str, str]) -> None:
    counts: Counter[str] = Counter()
    for path in {*old, *new}:
        top = path.partition("/")[0]
        if old.get(path) != new.get(path) and (top in _OTHER or path.endswith((".md", ".rst"))):
            counts[top if top in _OTHER else "documents"] += 1
    for top, count in sorted(counts.items()):
        findings.add("other", top, f"{count} files of {top} changed", file=top)


def dependencies(findings: Findings, changes: Range) -> None:
    """Bounds on torch, Python and other packages."""
    bounds = []
    for snapshot in (changes.old, changes.new):
        paths = [path for path in snapshot.files() if _DEPENDENCIES.search(path) and "/experiments/" not in f"/{path}"]
        paths = [path for path in paths if path.count("/") <= 3]
        contents = snapshot.read(paths)
        found: dict[str, tuple[str, str]] = {}
        for path in sorted(paths, key=lambda path: path.count("/"), reverse=True):
            for name, bound in _requirements(path, contents[path].decode("utf-8", "replace")):
                found[name] = bound, path
        bounds.append(found)
    before, after = bounds
    needs = {name: bound for name, (bound, _) in after.items() if before.get(name, ("",))[0] != bound}
    release = changes.new.id.removeprefix("pypi:")
    upstream = findings.sources.plugin.upstream
    pins.compare(findings, needs | ({upstream: f"=={release}"} if release != changes.new.id else {}), upstream)
    if not before or not after:
        return
    for name in sorted({*before, *after}):
        first, second = before.get(name), after.get(name)
        if first is not None and second is not None and first[0] == second[0]:
            continue
        was = f"`{name} {first[0]}`".replace(" `", "`") if first else "not required"
        now = f"`{name} {second[0]}`".replace(" `", "`") if second else "no longer required"
        file = (second or first or ("", ""))[1]
        findings.add("dependency", name, f"was {was}, is {now}", file=file)


def _requirements(path: str, text: str) -> Iterable[tuple[str, str]]:
    if path.endswith("pyproject.toml"):
        try:
            project = tomllib.loads(text).get("project", {})
        except tomllib.TOMLDecodeError:
            return
        if "requires-python" in project:
            yield "Python", project["requires-python"]
        lines = project.get("dependencies", [])
    elif path.endswith("PKG-INFO"):
        for line in text.splitlines():
            if line.startswith("Requires-Python:"):
                yield "Python", line.partition(":")[2].strip()
        lines = [line.partition(":")[2] for line in text.splitlines() if line.startswith("Requires-Dist:")]
        lines = [line for line in lines if "extra ==" not in line]
    else:
        lines = [line for line in text.splitlines() if not line.lstrip().startswith(("-", "#"))]
    for line in lines:
        match = _REQUIREMENT.match(line)
        if match:
            bound = match[3].strip().strip("()").replace(" ", "")
            yield match[1].lower().replace("_", "-"), ",".join(sorted(filter(None, bound.split(","))))
