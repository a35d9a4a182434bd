"""Random numbers of tensors that ranks share: what is promised is that no two ranks draw the same.

They are not those of one device: DTensor gives every shard a part of the stream of its own. Runs of different layouts
are compared from one seed checkpoint (see the guide on parallelism). Each rank is played in turn by this process.
"""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.distributed.tensor._random as dtensor_random
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.testing._internal.distributed.fake_pg import FakeStore

from torchtitan_npu.patches.host_random import draw_on_host

RANKS, SHAPE = 2, (8, 6)
Draw = Callable[[DTensor], DTensor]
DRAWS = pytest.mark.parametrize(
    "draw",
    [lambda x: x.normal_(), lambda x: torch.nn.functional.dropout(x, 0.5)],
    ids=["normal", "dropout"],
)


def parts(placement: Placement, draw: Draw, device: str = "npu") -> list[torch.Tensor]:
    """What each rank draws for its part of ones, which is on that device."""
    drawn = []
    for rank in range(RANKS):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=RANKS)
        try:
            mesh = init_device_mesh("npu", (RANKS,))
            torch.manual_seed(7)
            dtensor_random.manual_seed(7, mesh)
            whole = torch.ones(SHAPE, device="npu")
            local = whole.chunk(RANKS, placement.dim)[rank] if isinstance(placement, Shard) else whole
            spec = DTensorSpec(mesh, (placement,), tensor_meta=TensorMeta(whole.shape, whole.stride(), whole.dtype))
            part = DTensor(local.clone().to(device), spec, requires_grad=False)
            drawn.append(draw(part).to_local().cpu())
        finally:
            dist.destroy_process_group()
    return drawn


@DRAWS
@pytest.mark.parametrize("dim", [0, 1])
def test_ranks_draw_different_numbers_for_their_shards(dim: int, draw: Draw) -> None:
    first, second = parts(Shard(dim), draw)
    assert first.shape == second.shape
    assert not torch.equal(first, second)


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> Callable:
    """DTensor's own region, also where a run in this process has applied the patch."""
    region = dtensor_random.OffsetBasedRNGTracker._distribute_region
    region = region.__wrapped__ if hasattr(region, "__npu_patch__") else region
    monkeypatch.setattr(dtensor_random.OffsetBasedRNGTracker, "_distribute_region", region)
    return region


def test_shards_on_the_host_differ_and_a_truncated_normal_ends(
    upstream: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As CPU offload initialises parameters."""
    monkeypatch.setattr(dtensor_random.OffsetBasedRNGTracker, "_distribute_region", draw_on_host(upstream))

    def twice(x: DTensor) -> DTensor:
        first = torch.nn.init.trunc_normal_(x, a=-0.5, b=0.5).to_local().clone()
        assert not torch.equal(torch.nn.init.trunc_normal_(x, a=-0.5, b=0.5).to_local(), first)
        return x

    first, second = parts(Shard(0), twice, "cpu")
    assert not torch.equal(first, second)


def test_upstream_draws_the_same_on_the_host_again_and_again(upstream: Callable) -> None:
    """Once this fails, patch 'random numbers on the host' can go."""

    def again(x: DTensor) -> DTensor:
        first = x.normal_().to_local().clone()
        assert torch.equal(x.normal_().to_local(), first)
        return x

    parts(Shard(0), again, "cpu")


@DRAWS
def test_a_replicated_tensor_is_that_of_one_device_on_every_rank(draw: Draw) -> None:
    torch.manual_seed(7)
    alone = draw(torch.ones(SHAPE, device="npu")).cpu()
    for part in parts(Replicate(), draw):
        assert torch.equal(part, alone)
