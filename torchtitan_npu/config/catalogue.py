"""`torchtitan-npu configs`: the modules and configs that upstream ships, read from its source and without torch."""

import ast
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

from torchtitan_npu.errors import UserError


def models() -> dict[str, list[str]]:
    """Config functions by module, for every model whose configs build torchtitan's own Trainer."""
    found = {path.parent.name: _functions(path) for path in sorted(_root().glob("models/*/config_registry.py"))}
    return {module: names for module, names in found.items() if names}


def is_upstream_module(name: str) -> bool:
    """Whether upstream has a module of this name whose configs this list does not show."""
    return any((_root() / folder / name).is_dir() for folder in ("models", "experiments", "experiments/rl/examples"))


def _root() -> Path:
    spec = importlib.util.find_spec("torchtitan")
    if spec is None or spec.submodule_search_locations is None:
        raise UserError("torchtitan is not installed", "pip install 'framework-adapter[train]'")
    return Path(spec.submodule_search_locations[0])


def _functions(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and node.returns is not None
        and ast.unparse(node.returns) == "Trainer.Config"
        and not node.name.startswith("_")
    ]


def run(module: str | None, *, as_json: bool, say: Callable[[str], None]) -> int:
    found = models()
    if module is not None:
        if module not in found:
            raise UserError(f"no module {module!r}; there are {', '.join(found)}", "torchtitan-npu configs")
        found = {module: found[module]}
    if as_json:
        say(json.dumps(found, indent=2))
        return 0
    for name, configs in found.items():
        say(name)
        for config in configs:
            say(f"  {config}")
    return 0
