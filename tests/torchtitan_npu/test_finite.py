"""A loss or gradient that is no number stops every rank in its step, naming where it arose, and no weight changes."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.torchtitan_npu.runs import trainer
from torchtitan_npu import finite
from torchtitan_npu.errors import UserError

SHORT = ("--module", "tests.torchtitan_npu.short", "--config", "llama", "--training.seq_len", "32")
BATCHES = ("--training.local_batch_size", "1", "--training.global_batch_size", "2")


def test_an_infinite_weight_stops_the_run_in_its_step(data: Path, tmp_path: Path) -> None:
    flags = (*SHORT, *BATCHES, "--training.steps", "3", "--metrics.log_freq", "100", "--dump_folder", str(tmp_path))
    with trainer(data, *flags) as built:
        first, *_, last = built.model_parts[0].parameters()
        kept = last.detach().clone()
        with torch.no_grad():
            first.fill_(float("inf"))
        with pytest.raises(UserError, match=r"step 1: the loss of rank 0, batch 1 of 2 and 1 more, is nan"):
            built.train()
        assert torch.equal(last, kept)


@pytest.mark.parametrize("value", ["inf", "nan"])
def test_a_gradient_that_is_no_number_stops_the_run_although_the_loss_is_finite(
    data: Path, tmp_path: Path, value: str
) -> None:
    flags = (*SHORT, *BATCHES, "--training.steps", "3", "--dump_folder", str(tmp_path))
    with trainer(data, *flags) as built:
        first, *_, last = built.model_parts[0].parameters()
        kept = first.detach().clone()
        backward = built.forward_backward_step

        def spoilt(**batch: Any) -> torch.Tensor:
            loss = backward(**batch)
            last.grad.mul_(float(value))
            return loss

        built.forward_backward_step = spoilt
        with pytest.raises(UserError, match=r"step 1: gradients of rank 0 are infinite or not numbers"):
            built.train()
        assert torch.equal(first, kept)


RANKS = """
import sys
from datetime import timedelta
import torch, torch.distributed as dist
from torchtitan_npu import finite
from torchtitan_npu.errors import UserError
rank = int(sys.argv[1])
store = dist.FileStore(sys.argv[2], 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
finite.check([torch.tensor(1.0), torch.tensor([2.0])], [], 6)
try:
    finite.check([torch.tensor(1.0), torch.tensor(2.0 if rank == 0 else float("inf"))], [], 7)
except UserError as error:
    print(error)
layer = torch.nn.Linear(2, 2)
layer.weight.grad = torch.zeros(2, 2)
finite.check([torch.tensor(1.0)], [layer], 8)  # zeros are numbers
layer.bias.grad = torch.tensor([0.0, 0.0 if rank == 0 else float("nan")])
try:
    finite.check([torch.tensor(1.0)], [layer], 9)
except UserError as error:
    print(error)
dist.destroy_process_group()
"""


def test_every_rank_learns_which_one_has_it(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANKS, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE,
                         text=True, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, cwd=Path.cwd())
        for rank in (0, 1)
    ]  # fmt: skip
    for rank in ranks:
        said, _ = rank.communicate(timeout=100)
        assert rank.returncode == 0
        assert "step 7: the loss of rank 1, batch 2 of 2, is inf" in said
        assert "step 9: gradients of rank 1 are infinite or not numbers, while all losses are finite" in said


def test_finite_losses_of_one_process_pass() -> None:
    finite.check([torch.tensor(3.0)], [], 1)
