"""Reads `[tool.torchtitan-sync]` of the plugin's pyproject.toml."""

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

from torchtitan_sync.model import Plugin, SyncError

AREAS = {
    "converters": ("**/converters/**",),
    "patches": ("**/patches/**", "**/patch*.py"),
    "models": ("**/models/**",),
    "distributed": ("**/distributed/**",),
    "config": ("**/config/**", "**/config*.py", "**/*.toml"),
    "train.py": ("**/train.py",),
    "entry.py": ("**/entry.py",),
}

_KINDS: dict[str, type] = {
    "package": str,
    "upstream": str,
    "document": str,
    "sources": list,
    "exclude": list,
    "areas": dict,
    "replaced": dict,
}


def load(root: Path, package: str | None = None) -> Plugin:
    """The plugin in a repository; `package` goes before the file's. Raises SyncError when no package can be found."""
    root = root.resolve()
    table = _table(root / "pyproject.toml")
    for key, value in table.items():
        if key not in _KINDS:
            raise SyncError(f"pyproject.toml: [tool.torchtitan-sync] has no key {key!r}; it takes {', '.join(_KINDS)}")
        if not isinstance(value, _KINDS[key]):
            raise SyncError(f"pyproject.toml: tool.torchtitan-sync.{key} must be a {_KINDS[key].__name__}")
    name = package or table.get("package") or _guess(root)
    fields: dict[str, Any] = {key: table[key] for key in ("upstream", "document", "replaced") if key in table}
    fields |= {key: tuple(table[key]) for key in ("sources", "exclude") if key in table}
    areas = {
        area: (globs,) if isinstance(globs, str) else tuple(globs) for area, globs in table.get("areas", AREAS).items()
    }
    plugin = Plugin(root=root, package=name, areas=areas, **fields)
    if not package_folder(plugin).is_dir():
        raise SyncError(f"{root} has no folder {name}: name the plugin with --package or `package` in pyproject.toml")
    return plugin


def package_folder(plugin: Plugin) -> Path:
    """Where the plugin's modules are: `root/package`, or `root/src/package`."""
    inside = Path(*plugin.package.split("."))
    nested = plugin.root / "src" / inside
    return nested if nested.is_dir() else plugin.root / inside


def changed(plugin: Plugin, **fields: Any) -> Plugin:
    return dataclasses.replace(plugin, **fields)


def _table(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("torchtitan-sync", {})
    except tomllib.TOMLDecodeError as error:
        raise SyncError(f"{path} is not valid TOML: {error}") from error


def _guess(root: Path) -> str:
    """torchtitan_npu, or the only package of the repository."""
    if (root / "torchtitan_npu").is_dir():
        return "torchtitan_npu"
    packages = sorted(file.parent.name for base in (root, root / "src") for file in base.glob("*/__init__.py"))
    packages = [name for name in packages if name not in ("tests", "test")]
    if len(packages) == 1:
        return packages[0]
    found = f"it could be one of {', '.join(packages)}" if packages else "no package is in sight"
    raise SyncError(f"which package of {root} is the plugin? {found}: name it with --package")
