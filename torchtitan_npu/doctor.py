"""`torchtitan-npu doctor`: what is installed, what is missing, and whether every converter and patch still fits.

Each check is a function that returns findings; a finding that would break a run makes the exit code 1. A check that
could bring the process down (importing torch_npu without a driver) runs in a process of its own.
"""

import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torchtitan_npu import converters, devices, kernel_packages, patches

# The versions this release is made for; None: any.
_DISTRIBUTIONS: dict[str, str | None] = {
    "torch": "2.14.0",
    "torch_npu": "2.14.0",
    "torchtitan": "0.3.0",
    "triton": None,
    "datasets": None,
    "tokenizers": None,
    "safetensors": None,
    "matplotlib": None,
}
# Python modules that CANN's operator compiler imports; on hardware the first kernel fails without them.
_COMPILER_MODULES = ("attr", "cffi", "decorator", "numpy", "psutil", "scipy", "sympy", "yaml")

OK, NOTE, BROKEN = "ok", "note", "broken"


@dataclass(frozen=True)
class Finding:
    check: str
    state: str
    text: str
    fix: str = ""


def run(*, as_json: bool, say: Callable[[str], None]) -> int:
    findings = [finding for check in _FIRST for finding in check()]
    if any(finding.state == BROKEN for finding in findings):
        findings.append(Finding("converter", NOTE, "converters and patches not checked: mend the above first"))
    else:
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        importlib.import_module("torch_npu")
        findings += [finding for check in _SECOND for finding in check()]
    if as_json:
        say(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            say(_wrapped(f"{finding.state:<7} {finding.check}: {finding.text}"))
            if finding.fix and finding.state != OK:
                say(_wrapped(f"        fix: {finding.fix}"))
    broken = sum(finding.state == BROKEN for finding in findings)
    if not as_json:
        say(f"{broken} problem{'s' if broken != 1 else ''} that would break a run")
    return 1 if broken else 0


def _wrapped(line: str) -> str:
    """Within 80 columns; names and paths stay whole."""
    return textwrap.fill(line, 80, subsequent_indent=" " * 4, break_long_words=False, break_on_hyphens=False)


def _packages() -> Iterator[Finding]:
    for name, wanted in _DISTRIBUTIONS.items():
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Finding("package", BROKEN, f"{name} is not installed", "pip install 'framework-adapter[train]'")
            continue
        fits = wanted is None or found.split("+")[0] == wanted
        text = f"{name} {found}" + ("" if fits else f", made for {wanted}")
        yield Finding("package", OK if fits else BROKEN, text, f"pip install {name}=={wanted}")


def _cann() -> Iterator[Finding]:
    home = devices.cann_home()
    if home is None:
        yield Finding("cann", BROKEN, "ASCEND_HOME_PATH is not set", "source CANN's set_env.sh, or use the emulator")
        return
    kind = "emulated CANN" if devices.on_emulator() else "CANN"
    for part in (home, home / "runtime", home / "compiler", Path(os.environ.get("ASCEND_OPP_PATH", home / "opp"))):
        if not part.exists():
            yield Finding("cann", BROKEN, f"{kind}: {part} is missing", "install the CANN toolkit again")
    yield Finding("cann", OK, f"{kind} in {home}")
    if devices.on_emulator():
        return
    for name in _COMPILER_MODULES:
        if importlib.util.find_spec(name) is None:
            yield Finding(
                "cann",
                BROKEN,
                f"Python module {name}, which the operator compiler needs, is missing",
                f"pip install {name}",
            )


def _device() -> Iterator[Finding]:
    """Import torch_npu and count devices in a child: a missing library can end a process."""
    program = (
        "import torch, torch_npu; n = torch.npu.device_count(); print(n, torch.npu.get_device_name(0) if n else '')"
    )
    child = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        check=False,
    )
    if child.returncode != 0:
        lines = [line for line in child.stderr.splitlines() if line.strip()]
        cause = lines[-1] if lines else f"exit code {child.returncode}"
        yield Finding("device", BROKEN, f"torch_npu does not load: {cause}", _explain_import(cause))
        return
    count, _, name = child.stdout.strip().splitlines()[-1].partition(" ")
    visible = os.environ.get("ASCEND_RT_VISIBLE_DEVICES")
    if int(count) == 0:
        yield Finding("device", BROKEN, f"no device is visible{_visible_text(visible)}", _explain_visible(visible))
    else:
        yield Finding("device", OK, f"{count} x {name}{_visible_text(visible)}")
        if problem := kernel_packages.problem(name):
            yield Finding("kernels", BROKEN, *problem)


def _explain_import(cause: str) -> str:
    if "libascend_hal" in cause or "driver" in cause:
        return "the Ascend driver is not mounted here; install it, or use --device emulator"
    if "cannot open shared object" in cause:
        return "source CANN's set_env.sh so that its lib64 is on LD_LIBRARY_PATH, or use --device emulator"
    return "torch, torch_npu and CANN must be of matching versions; the error above names what is missing"


def _visible_text(visible: str | None) -> str:
    return f" (ASCEND_RT_VISIBLE_DEVICES={visible})" if visible is not None else ""


def _explain_visible(visible: str | None) -> str:
    """A list that is not ascending, or names a device that is not there, makes CANN count no device at all (207004)."""
    if visible is None:
        return "check the driver with npu-smi info"
    try:
        ids = [int(part) for part in visible.split(",")]
    except ValueError:
        return "ASCEND_RT_VISIBLE_DEVICES must be device numbers separated by commas"
    if ids != sorted(set(ids)):
        return f"the ids must ascend (CANN error 207004): use {','.join(map(str, sorted(set(ids))))}"
    return "an id is beyond the number of devices (CANN error 207004): npu-smi info lists them"


def _converters() -> Iterator[Finding]:
    for converter in converters.CONVERTERS:
        try:
            target = _attribute(converter.target)
            factory = _attribute(converter.factory)
        except (ImportError, AttributeError) as error:
            yield Finding("converter", BROKEN, f"{converter.name}: {error}", "this release fits torchtitan 0.3.0")
            continue
        problem = _forward_differs(target, factory)
        operator = f" -> {converter.operator}" if converter.operator else ""
        text = f"{converter.name}: {converter.target}{operator}"
        yield Finding("converter", BROKEN if problem else OK, text + (f": {problem}" if problem else ""))


def _forward_differs(target: Any, factory: Callable) -> str | None:
    """Whether upstream's forward takes parameters the replacement does not have."""
    replacement = _attribute_of_annotation(factory)
    upstream, ours = getattr(target._owner, "forward", None), getattr(replacement._owner, "forward", None)
    if upstream is None or ours is None or upstream is ours:
        return None
    wanted, found = inspect.signature(upstream).parameters, inspect.signature(ours).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in found.values()):
        wanted_names = [name for name, p in wanted.items() if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    else:
        wanted_names = list(wanted)
    missing = [name for name in wanted_names if name not in found and name != "kwargs"]
    return f"forward lacks {', '.join(missing)}" if missing else None


def _attribute_of_annotation(factory: Callable) -> Any:
    return inspect.signature(factory, eval_str=True).return_annotation


def _attribute(path: str) -> Any:
    owner, name = patches.resolve(path)
    return getattr(owner, name)


def _patches() -> Iterator[Finding]:
    if not patches.PATCHES:
        yield Finding("patch", OK, "none: upstream is used through its own extension points")
    for patch in patches.PATCHES:
        try:
            _attribute(patch.target)
            _attribute(patch.replacement)
        except (ImportError, AttributeError) as error:
            yield Finding("patch", BROKEN, f"{patch.name}: {error}", "this release fits torchtitan 0.3.0")
        else:
            yield Finding("patch", OK, f"{patch.name}: {patch.target} ({patch.reason})")


def _operators() -> Iterator[Finding]:
    import torch

    for name in sorted({converter.operator for converter in converters.CONVERTERS if converter.operator}):
        found = hasattr(torch.ops.npu, name) or hasattr(torch.ops.aten, name)
        yield Finding("operator", OK if found else BROKEN, name, "" if found else "torch_npu 2.14.0 has it")


# The second stage imports torch_npu and torchtitan into this process, so it waits for the first to pass.
_FIRST: tuple[Callable[[], Iterator[Finding]], ...] = (_packages, _cann, _device)
_SECOND: tuple[Callable[[], Iterator[Finding]], ...] = (_converters, _patches, _operators)
