"""The examples train on the NPU as on JAX's CPU backend, and a program compiled ahead of time serves elsewhere."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "jax"


def run(name: str, *arguments: str, platforms: str = "npu,cpu") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        env={**os.environ, "JAX_PLATFORMS": platforms},
        capture_output=True,
        text=True,
        timeout=280,
    )


@pytest.mark.parametrize("name", ["digits_mlp", "transformer", "resnet_block"])
def test_training_gives_the_cpus_loss_curve(name: str) -> None:
    runs = {
        platforms: run(f"{name}.py", "--steps", "12", "--json", platforms=platforms) for platforms in ("npu,cpu", "cpu")
    }
    assert all(done.returncode == 0 for done in runs.values()), [done.stderr for done in runs.values()]
    on_npu, on_cpu = (json.loads(done.stdout) for done in runs.values())
    assert (on_npu["device"], on_cpu["device"]) == ("npu", "cpu")
    differences = [abs(a - b) for a, b in zip(on_npu["losses"], on_cpu["losses"], strict=True)]
    assert len(differences) == 12 and max(differences) <= 1e-4
    assert on_npu["losses"][-1] < on_npu["losses"][0] - 0.3


def test_a_loss_curve_is_drawn(tmp_path: Path) -> None:
    done = run("digits_mlp.py", "--steps", "2", "--plot", str(tmp_path / "loss.png"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_a_program_compiled_ahead_of_time_serves_in_another_process(tmp_path: Path) -> None:
    file = tmp_path / "program"
    compiled = run("inference_aot.py", "compile", str(file))
    assert compiled.returncode == 0, compiled.stderr
    served = {platforms: run("inference_aot.py", "serve", str(file), platforms=platforms) for platforms in ("npu,cpu",)}
    assert "sum of probabilities [1.0, 1.0, 1.0]" in served["npu,cpu"].stdout, served["npu,cpu"].stderr
    refused = run("inference_aot.py", "serve", str(file), platforms="cpu")  # it is for another platform
    assert refused.returncode != 0
