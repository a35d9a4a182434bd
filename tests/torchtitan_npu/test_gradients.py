"""Gradients: a parameter without one stops the run, since torch_npu's inference operators drop them with a warning; and
their sum over ranks takes no pass that multiplies by 1.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch_npu
from torch import nn

from tests.torchtitan_npu.runs import FP32, trainer
from torchtitan_npu import gradients, launches
from torchtitan_npu.errors import UserError

HEADS, SIZE = 2, 16


class Attention(nn.Module):
    def __init__(self, for_training: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(HEADS * SIZE, 3 * HEADS * SIZE, bias=False)
        self.out = nn.Linear(HEADS * SIZE, HEADS * SIZE, bias=False)
        self.for_training = for_training

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.for_training:
            mixed = torch_npu.npu_fusion_attention(q, k, v, HEADS, "BSH")[0]
        else:
            mixed = torch_npu.npu_prompt_flash_attention(q, k, v, num_heads=HEADS, input_layout="BSH")
        return self.out(mixed)


def trained(for_training: bool) -> Attention:
    torch.manual_seed(0)
    model = Attention(for_training).to("npu", torch.float16)
    model(torch.randn(1, 8, HEADS * SIZE, device="npu", dtype=torch.float16)).float().sum().backward()
    return model


def test_inference_attention_in_a_model_that_trains_is_an_error() -> None:
    with pytest.raises(UserError, match=r"1 trainable parameters got no gradient: qkv\.weight;"):
        gradients.check([trained(for_training=False)])


def test_training_attention_gives_every_parameter_a_gradient() -> None:
    gradients.check([trained(for_training=True)])


def test_frozen_parameters_need_no_gradient() -> None:
    model = nn.Linear(2, 2).requires_grad_(False)
    gradients.check([model])


def a_step(data: Path, folder: Path) -> tuple[dict[int, float], int]:
    """Gradient norms, and launches that divide."""
    flags = ("--training.steps", "1", "--training.seq_len", "32", "--training.local_batch_size", "1", *FP32)
    short = ("--module", "tests.torchtitan_npu.short", "--config", "llama", "--debug.seed", "42")
    with trainer(data, *short, *flags, "--dump_folder", str(folder)) as built:
        before = launches.by_operator().get("aclnnDivs", 0)
        built.train()
        after = launches.by_operator().get("aclnnDivs", 0)
        return built.metrics_processor.history.gradient_norms, after - before


def test_gradients_are_summed_without_a_pass_that_divides_by_one(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    norms, divisions = a_step(data, tmp_path)
    monkeypatch.setattr(gradients, "only_sum", lambda model_parts: None)
    as_upstream, divisions_upstream = a_step(data, tmp_path)
    assert norms == as_upstream
    assert divisions == 0 < divisions_upstream


def test_ranks_sum_gradients_to_the_same_bits_with_fewer_launches() -> None:
    """Sharded, replicated, and in a group of one rank, as experts are that no two ranks share."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d",
         "--rdzv-endpoint", "localhost:0", "tests/torchtitan_npu/sum_ranks.py"],
        capture_output=True, text=True, timeout=200, cwd=Path.cwd(),
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(Path.cwd()),
             os.environ.get("PYTHONPATH", "")])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(ranks) == 2
    for found in ranks:
        assert all(way["same"] and way["norm"] > 0 for way in found.values())
        assert found["sharded"]["saved"] > 0 and found["alone"]["saved"] > 0
