"""What `cann-emulator info` prints: the emulated devices, and the packages found, read without importing them."""

import ast
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cann_emulator import settings
from cann_emulator.coverage import operators
from cann_emulator.home import HomeNotFound, find_home

PACKAGES = ("torch", "torch_npu", "torchtitan", "triton", "numpy")


def collect() -> dict[str, Any]:
    settings.checked({name: settings.setting(name) for name in settings.DEFAULTS})
    soc = settings.setting("CANN_EMULATOR_SOC")
    home, problem = None, None
    try:
        home = find_home()
    except HomeNotFound as error:
        problem = str(error)
    implemented = [op for op in operators() if op.implemented]
    return {
        "home": str(home) if home else None,
        "home_problem": problem,
        "libraries": sorted(path.name for path in (home / "lib64").glob("*.so")) if home else [],
        "soc": soc,
        "product": settings.SOCS[soc],
        "devices": int(settings.setting("CANN_EMULATOR_DEVICES")),
        "hbm_gb": float(settings.setting("CANN_EMULATOR_HBM_GB")),
        "operators_implemented": len(implemented),
        "versions": {"framework-adapter": _version("framework-adapter")} | {name: _version(name) for name in PACKAGES},
        "torch_build": _torch_build(),
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _torch_build() -> str | None:
    """CPU, or the CUDA release that torch was built for: read from its version file."""
    spec = find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    for node in ast.parse((Path(spec.submodule_search_locations[0]) / "version.py").read_text()).body:
        if isinstance(node, ast.AnnAssign | ast.Assign) and isinstance(node.value, ast.Constant):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(target, ast.Name) and target.id == "cuda":
                return f"CUDA {node.value.value!s}" if node.value.value else "CPU"
    return None


def render(facts: dict[str, Any]) -> str:
    lines = [
        ("devices", f"{facts['devices']} x {facts['soc']} ({facts['product']}), {facts['hbm_gb']:g} GiB each"),
        ("home", facts["home"] or f"none: {facts['home_problem']}"),
        ("operators", f"{facts['operators_implemented']} implemented"),
    ]
    for name, version in facts["versions"].items():
        build = f" ({facts['torch_build']} build)" if name == "torch" and facts["torch_build"] else ""
        lines.append((name, (version or "not installed") + build))
    return "\n".join(f"{name:<18} {text}" for name, text in lines)
