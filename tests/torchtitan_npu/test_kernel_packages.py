"""A SoC whose compiled operators are not installed: named before a run, and at the first launch."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torchtitan_npu.runs import LLAMA, SMALL, command
from torchtitan_npu import kernel_packages


@pytest.fixture
def without_a2(tmp_path: Path) -> dict[str, str]:
    """An environment on an A2 whose home has operators for the A3 alone."""
    packages = tmp_path / "opp"
    shutil.copytree(os.environ["ASCEND_OPP_PATH"], packages)
    shutil.rmtree(packages / "built-in" / "op_impl" / "ai_core" / "tbe" / "kernel" / "ascend910b")
    return {"ASCEND_OPP_PATH": str(packages), "CANN_EMULATOR_SOC": "Ascend910B1"}


@pytest.mark.parametrize(
    ("soc", "family"),
    [
        ("Ascend910B", "ascend910"),
        ("Ascend910B4-1", "ascend910b"),
        ("Ascend910_9391", "ascend910_93"),
        ("Ascend310P3", "ascend310p"),
        ("Ascend950PR_9599", "ascend950"),
        ("Ascend1234", None),
    ],
)
def test_family_of_a_soc(soc: str, family: str | None) -> None:
    assert kernel_packages.family(soc) == family


def test_doctor_names_the_missing_package(without_a2: dict[str, str], tmp_path: Path) -> None:
    result = command("doctor", "--json", cwd=tmp_path, **without_a2)
    broken = [finding for finding in json.loads(result.stdout) if finding["state"] == "broken"]
    assert result.returncode == 1
    assert [finding["check"] for finding in broken] == ["kernels"]
    assert "Ascend910B1" in broken[0]["text"] and "kernels package of ascend910b " in broken[0]["fix"]


def test_training_is_refused_before_it_starts(data: Path, without_a2: dict[str, str], tmp_path: Path) -> None:
    result = command("train", "--data", str(data), *LLAMA, *SMALL, cwd=tmp_path, **without_a2)
    assert result.returncode == 2
    assert "no compiled operators for Ascend910B1" in result.stderr and "fix: install" in result.stderr


def test_the_first_operator_fails_with_the_code_of_hardware(without_a2: dict[str, str]) -> None:
    program = "import torch\ntry:\n    torch.ones(2, device='npu').int()\nexcept RuntimeError as e:\n    print(e)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env={**os.environ, **without_a2}
    )
    assert "error code is 561000" in done.stdout and "no kernel binary for Ascend910B1" in done.stdout, done.stderr
