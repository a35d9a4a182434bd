"""The plugin's own requirements that the new upstream does not go with: which line, and what to install instead.

A plugin and a framework that were made for other versions of each other fail at start, with a message that names
neither of the two versions.
"""

import re
from collections.abc import Iterator

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from torchtitan_sync.findings import Findings
from torchtitan_sync.records import Place
from torchtitan_sync.sources import is_requirements

_QUOTED = re.compile(r"""(?P<quote>["'])(?P<text>[A-Za-z][^"']*)(?P=quote)""")
_PYTHON = re.compile(r"""requires-python\s*=\s*["'](?P<text>[^"']*)["']""")
_PLAIN = re.compile(r"(?P<text>[A-Za-z][^#;]*)")


def compare(findings: Findings, bounds: dict[str, str], upstream: str) -> None:
    """`bounds` by package, as upstream has them now; `Python` is one, and so is upstream itself."""
    for path, data in findings.sources.contents.items():
        for name, own, place in _pinned(path, data.decode("utf-8", "replace")) if is_requirements(path) else ():
            bound = next((bound for package, bound in bounds.items() if canonicalize_name(package) == name), "")
            if bound and not _meet(own, bound):
                what = f"upstream is {bound.removeprefix('==')}" if name == upstream else f"upstream needs `{bound}`"
                findings.add(
                    "dependency",
                    "Python" if name == "python" else name,
                    f"{what}, the plugin has `{own}`",
                    place,
                    suggestion=f"install and require {name}{bound}, or stay at the old upstream",
                )


def _pinned(path: str, text: str) -> Iterator[tuple[str, str, Place]]:
    project = path.endswith(".toml")
    for number, line in enumerate(text.splitlines(), 1):
        python = _PYTHON.search(line) if project else None
        if python:
            yield "python", python["text"], _place(path, number, line, python)
            continue
        for match in _QUOTED.finditer(line) if project else filter(None, [_PLAIN.match(line)]):
            try:
                found = Requirement(match["text"].strip())
            except InvalidRequirement:
                continue
            if found.specifier:
                yield canonicalize_name(found.name), str(found.specifier), _place(path, number, line, match)


def _place(path: str, number: int, line: str, match: re.Match[str]) -> Place:
    start, end = (len(line[: match.span("text")[side]].encode()) for side in (0, 1))
    return Place(path, number, start, end)


def _meet(first: str, second: str) -> bool:
    """Whether some version is in both: one that either names, or one just beside it."""
    try:
        both = SpecifierSet(first) & SpecifierSet(second)
    except InvalidSpecifier:
        return True  # nothing that can be said
    named = [Version(spec.version.removesuffix(".*")) for spec in both if spec.operator != "==="]
    beside = [Version(f"{version.base_version}.0.0.1") for version in named]
    return any(both.contains(version, prereleases=True) for version in [*named, *beside, Version("0")])
