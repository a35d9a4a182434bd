"""`xla-npu doctor`: what is installed, what is missing, and whether a small program gives the right numbers.

What can end a process (loading the plugin, opening a device, compiling) runs in a process of its own.
"""

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from xla_npu.library import cann_is_installed, find_library
from xla_npu.versions import VERSIONS

OK, BROKEN = "ok", "broken"
_ANY_VERSION = ("numpy", "protobuf")
_NO_CANN = "source CANN's set_env.sh; where there is no NPU: cann-emulator run -- xla-npu doctor"

# Prints one JSON object: the devices, then what a program of each kind differs by from numpy in double precision.
_SMOKE = """
import json
import jax, jax.numpy as jnp, numpy as np
devices = jax.devices("npu")
report = {"devices": [f"{d.id}: {d.device_kind}" for d in devices], "backend": jax.default_backend()}
x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
programs = {
    "x + 1": (lambda x: x + 1, x.astype(np.float64) + 1),
    "matrix product": (lambda x: jnp.matmul(x, x, precision="highest"), x.astype(np.float64) @ x.astype(np.float64)),
    "gradient of sum(sin(x))": (jax.grad(lambda x: jnp.sin(x).sum()), np.cos(x.astype(np.float64))),
    "random bits": (lambda x: jax.random.bits(jax.random.key(0), (4,)), None),
}
with jax.default_device(devices[0]):
    report["programs"] = {}
    for name, (program, expected) in programs.items():
        if expected is None:  # bits are the same on every backend
            with jax.default_device(jax.local_devices(backend="cpu")[0]):
                expected = np.asarray(jax.jit(program)(x)).astype(np.float64)
        got = np.asarray(jax.jit(program)(x)).astype(np.float64)
        report["programs"][name] = float(np.abs(got - expected).max())
print("SMOKE", json.dumps(report))
"""
_LARGEST = 1e-5


@dataclass(frozen=True)
class Finding:
    check: str
    state: str
    text: str
    fix: str = ""


def run(*, as_json: bool, say: Callable[[str], None]) -> int:
    """Says every finding; 1 if one would break a program, else 0."""
    findings = [finding for check in _CHECKS for finding in check()]
    if not any(finding.state == BROKEN for finding in findings):
        findings += _smoke()
    if as_json:
        say(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            say(f"{finding.state:<7} {finding.check}: {finding.text}")
            if finding.state == BROKEN and finding.fix:
                say(f"        fix: {finding.fix}")
    broken = sum(finding.state == BROKEN for finding in findings)
    if not as_json:
        say(f"{broken} problem{'s' if broken != 1 else ''} that would break a program")
    return int(broken > 0)


def _packages() -> Iterator[Finding]:
    for name, wanted in {**VERSIONS, **dict.fromkeys(_ANY_VERSION)}.items():
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Finding("package", BROKEN, f"{name} is not installed", "pip install 'framework-adapter[jax]'")
            continue
        fits = wanted in (None, found)
        text = f"{name} {found}" + ("" if fits else f", made for {wanted}")
        yield Finding("package", OK if fits else BROKEN, text, "" if fits else f"pip install {name}=={wanted}")


def _plugin() -> Iterator[Finding]:
    try:
        library = find_library()
    except FileNotFoundError as error:
        yield Finding("plugin", BROKEN, str(error))
        return
    program = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).GetPjrtApi"
    done = subprocess.run([sys.executable, "-c", program, str(library)], capture_output=True, text=True)
    if done.returncode:
        cause = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        yield Finding("plugin", BROKEN, f"{library} does not load: {cause}", "make native, or reinstall the package")
        return
    names = [entry.name for entry in importlib.metadata.entry_points(group="jax_plugins")]
    found = "npu" in names
    fix = "" if found else "reinstall framework-adapter: its entry point jax_plugins is missing"
    yield Finding("plugin", OK if found else BROKEN, f"{library}" if found else "JAX does not see the plugin", fix)


def _cann() -> Iterator[Finding]:
    if not cann_is_installed():
        yield Finding("cann", BROKEN, "libascendcl.so is not where set_env.sh would put it", _NO_CANN)
        return
    home = os.environ.get("ASCEND_HOME_PATH", "")
    yield Finding("cann", OK, home or "libascendcl.so on LD_LIBRARY_PATH")
    try:
        found = importlib.util.find_spec("ge.offline_compile") is not None
    except ImportError:
        found = False
    if found:
        spec = importlib.util.find_spec("ge")
        yield Finding("compiler", OK, f"package ge in {Path(spec.origin).parent if spec and spec.origin else home}")
    else:
        yield Finding("compiler", BROKEN, "CANN's Python package ge cannot be imported", _NO_CANN)


def _smoke() -> Iterator[Finding]:
    environment = {**os.environ, "JAX_PLATFORMS": "npu,cpu", "XLA_NPU_CACHE": "0"}
    done = subprocess.run([sys.executable, "-c", _SMOKE], capture_output=True, text=True, env=environment)
    lines = [line for line in done.stdout.splitlines() if line.startswith("SMOKE ")]
    if not lines:
        cause = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        yield Finding("program", BROKEN, f"a small program does not run: {cause}", "the error names what is missing")
        return
    report: dict[str, Any] = json.loads(lines[0].removeprefix("SMOKE "))
    devices = report["devices"]
    yield Finding("device", OK, f"{len(devices)} x {devices[0].partition(': ')[2]}, default {report['backend']}")
    for name, difference in report["programs"].items():
        right = difference <= _LARGEST
        yield Finding("program", OK if right else BROKEN, f"{name}: differs by {difference:.1e}", "report this")


_CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (_packages, _plugin, _cann)
