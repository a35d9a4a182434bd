"""pypjrt's conformance checks, which nobody here wrote, pass against the plugin."""

import json
import os
import subprocess
import sys

from xla_npu.library import find_library

# What the plugin does not offer, and why.
SKIPPED = {
    "abi.unknown_slot_is_clean_error": "the whole function table is there",
    "triton.compile": "Triton's kernels are for GPUs",
    "abi_version.extension_present": "a serialised program carries its version and its SoC itself",
    "abi_version.executable_proto": "as above",
    "abi_version.is_compatible_with_executable": "as above",
}


def test_pypjrt_s_checks_pass(tmp_path):
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "pypjrt.conform", str(find_library()), "--json", str(report)]
    # Nothing of ours is imported there, so the plugin has to be told which Python has the compiler.
    environment = {**os.environ, "XLA_NPU_PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    checks = {check["id"]: check["result"] for check in json.loads(report.read_text())["checks"]}
    assert [name for name, result in checks.items() if result == "fail"] == [], done.stdout
    assert {name for name, result in checks.items() if result == "skip"} == set(SKIPPED)
    assert [name for name, result in checks.items() if result == "unsupported"] == []
    assert len(checks) >= 63
