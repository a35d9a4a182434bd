"""One step on several ranks against the same step on one: what each loads, the loss, and the norm that clips."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.torchtitan_npu import steps
from tests.torchtitan_npu.runs import FP32, trainer

VALID = [1, 9, 32, 5]  # labels that count in each of the step's rows
MODEL = ("--module", "tests.torchtitan_npu.short", "--config", "deepseek", *FP32, "--training.max_norm", "1.0")
STEP = ("--training.steps", "10", "--training.seq_len", f"{steps.LENGTH}", "--debug.seed", "42", "--checkpoint.enable")
LOUD = 10.0


@dataclass(frozen=True)
class OneRank:
    seed: Path
    loaded: dict[str, str]
    loss: float
    norm: float


@pytest.fixture(scope="module")
def one_rank(data: Path, tmp_path_factory: pytest.TempPathFactory) -> OneRank:
    """The seed checkpoint, in which one expert is far louder than the others, and a step from it."""
    folder = tmp_path_factory.mktemp("seed")
    flags = (*MODEL, *STEP, "--training.local_batch_size", f"{len(VALID)}", "--dump_folder", str(folder))
    with trainer(data, *flags) as built:
        blocks = built.model_parts[0].layers.values()
        layers = [block.moe.routed_experts.inner_experts for block in blocks if block.moe_enabled]
        with torch.no_grad():
            for experts in layers:
                experts.w1_EFD[0] *= LOUD
        built.checkpointer.save(curr_step=0, last_step=True)
        loaded = steps.digests(built)
        steps.take(built, steps.rows(VALID), len(VALID))
        grads = torch.stack([experts.w2_EDF.grad.flatten(1).norm(dim=1) for experts in layers])
        assert (grads[:, 0] > LOUD / 2 * grads[:, 1:].mean(dim=1)).any()
        return OneRank(folder / "checkpoint" / "step-0", loaded, **steps.result(built))


def run(data: Path, folder: Path, seed: Path, ranks: int, *flags: str) -> list[dict]:
    """What each rank wrote."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--rdzv-backend", "c10d",
         "--rdzv-endpoint", "localhost:0", "-m", "tests.torchtitan_npu.steps", str(data), ",".join(map(str, VALID)),
         *MODEL, *STEP, "--dump_folder", str(folder), "--checkpoint.initial_load_path", str(seed), *flags],
        capture_output=True, text=True, timeout=280, cwd=Path.cwd(),
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(Path.cwd()),
             os.environ.get("PYTHONPATH", "")])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in range(ranks)]


PARALLELISM = "--parallelism."
EXPERTS = ("--training.local_batch_size", "2", f"{PARALLELISM}data_parallel_shard_degree=2",
           f"{PARALLELISM}expert_parallel_degree=2")  # fmt: skip
TENSOR = ("--training.local_batch_size", "2", f"{PARALLELISM}data_parallel_shard_degree=2",
           f"{PARALLELISM}tensor_parallel_degree=2", f"{PARALLELISM}expert_parallel_degree=2")  # fmt: skip


@pytest.mark.parametrize(
    ("ranks", "flags"),
    [
        pytest.param(2, EXPERTS, id="experts on two ranks"),
        pytest.param(4, TENSOR, id="experts and tensors on four", marks=pytest.mark.slow),
    ],
)
def test_ranks_load_the_weights_weigh_tokens_and_clip_as_one_rank(
    data: Path, tmp_path: Path, one_rank: OneRank, ranks: int, flags: tuple[str, ...]
) -> None:
    """Ranks with 10 and with 37 valid labels; one expert whose gradient is far larger, on one of them."""
    for each in run(data, tmp_path, one_rank.seed, ranks, *flags):
        assert each["loaded"] == one_rank.loaded
        assert each["loss"] == pytest.approx(one_rank.loss, rel=1e-6)
        assert each["norm"] == pytest.approx(one_rank.norm, rel=1e-5)  # more than 1: all are clipped
        assert each["norm"] > 1
        assert "_StridedShard" in str(each["placements"])


def test_the_norm_that_clips_is_that_of_all_pipeline_stages(data: Path, tmp_path: Path, one_rank: OneRank) -> None:
    flags = ("--training.local_batch_size", "4", f"{PARALLELISM}pipeline_parallel_degree=2",
             f"{PARALLELISM}pipeline_parallel_schedule=1F1B")  # fmt: skip
    stages = run(data, tmp_path, one_rank.seed, 2, *flags)
    assert stages[0]["loaded"].keys() & stages[1]["loaded"].keys() == set()
    assert stages[0]["loaded"] | stages[1]["loaded"] == one_rank.loaded
    for stage in stages:
        assert stage["norm"] == pytest.approx(one_rank.norm, rel=1e-5)
    assert max(stage["loss"] for stage in stages) == pytest.approx(one_rank.loss, rel=1e-6)
