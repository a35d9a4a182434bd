"""The chunked loss under a backward that is split into inputs first, weights later, as ZBVZeroBubble does it."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss

from torchtitan_npu.patches.chunked_loss import keep_gathered

TOKENS, WIDTH, WORDS = 8, 16, 32


class LastStage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.norm(hidden)


@pytest.fixture(autouse=True)
def _upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of other tests in this process may have applied the patch."""
    patched = ChunkedLossWrapper._gradient_backprop
    if hasattr(patched, "__npu_patch__"):
        monkeypatch.setattr(ChunkedLossWrapper, "_gradient_backprop", staticmethod(patched.__wrapped__))


@pytest.fixture
def stage() -> Iterator[nn.Module]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    torch.manual_seed(0)
    stage = LastStage()
    fully_shard([stage.norm, stage.lm_head], mesh=mesh, reshard_after_forward=False)
    fully_shard(stage, mesh=mesh)
    yield stage
    dist.destroy_process_group()


def _loss(stage: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    loss = ChunkedLossWrapper(ChunkedLossWrapper.Config(num_chunks=2, loss_fn=CrossEntropyLoss.Config()))
    loss.set_lm_head(stage.lm_head)
    hidden = torch.linspace(-1, 1, TOKENS * WIDTH).view(1, TOKENS, WIDTH).sin().requires_grad_()
    labels = torch.arange(TOKENS).view(1, TOKENS)
    return hidden, loss(stage(hidden), labels, torch.tensor(float(TOKENS)))[0]


def _gradient_of_split(stage: nn.Module) -> torch.Tensor | None:
    hidden, loss = _loss(stage)
    for switch in (stage.set_is_last_backward, stage.set_reshard_after_backward, stage.set_requires_gradient_sync):
        switch(False)
    _, groups = stage_backward_input([loss], None, [hidden], stage.parameters())
    stage_backward_weight(stage.parameters(), groups)
    return stage.norm.weight.grad


def test_the_last_norm_has_the_gradient_of_a_whole_backward(stage: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    _, loss = _loss(stage)
    loss.backward()
    whole = stage.norm.weight.grad.full_tensor().clone()
    stage.zero_grad()
    assert _gradient_of_split(stage) is None, "upstream gives it a gradient: patch 'chunked loss' can go"
    stage.reshard()
    upstream = ChunkedLossWrapper._gradient_backprop
    monkeypatch.setattr(ChunkedLossWrapper, "_gradient_backprop", keep_gathered(upstream))
    split = _gradient_of_split(stage)
    assert split is not None
    torch.testing.assert_close(split, whole)
