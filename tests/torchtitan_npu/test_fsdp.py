"""FSDP on 2 and 4 ranks against 1 rank, from one seed checkpoint, in float32; and what a sharded model allows."""

import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.torchtitan_npu.layouts import STEPS, Curves, Layouts, assert_trains_as
from tests.torchtitan_npu.runs import LLAMA


@pytest.fixture(scope="module")
def layouts(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Layouts:
    return Layouts.make(tmp_path_factory.mktemp("fsdp"), data, LLAMA)


@pytest.fixture(scope="module")
def one_rank(layouts: Layouts) -> Curves:
    return layouts.train("one", 1, 1)


@pytest.mark.parametrize("degree", [2, 4])
def test_more_ranks_train_as_one(layouts: Layouts, one_rank: Curves, degree: int) -> None:
    assert_trains_as(layouts.train(f"ranks-{degree}", degree, degree), one_rank)


@pytest.mark.slow  # four runs of two steps, and the two that they resume
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("wrote", "ranks"), [(1, 2), (2, 1)])
def test_a_checkpoint_of_more_or_fewer_ranks_resumes_weights_optimizer_and_learning_rate(
    layouts: Layouts, one_rank: Curves, wrote: int, ranks: int
) -> None:
    """The data starts anew; step by step it is the same at every degree."""
    before = layouts.folder / ("one" if wrote == 1 else f"ranks-{wrote}")
    if not before.exists():
        layouts.train(before.name, wrote, wrote)
    resumed = []
    for degree in (wrote, ranks):
        name = f"wrote-{wrote}-resumed-{degree}"
        shutil.copytree(before, layouts.folder / name)
        flags = ("--training.steps", f"{STEPS + 2}", "--checkpoint.exclude_from_loading", "dataloader")
        resumed.append(layouts.train(name, degree, degree, *flags))
    assert len(resumed[0].losses) == 2
    assert resumed[1].losses == pytest.approx(resumed[0].losses, abs=1e-3)
    assert resumed[1].gradient_norms == pytest.approx(resumed[0].gradient_norms, rel=1e-4)


def test_a_sharded_model_can_be_cast() -> None:
    """torch_npu's own cast operator would need a sharding rule of DTensor."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        model = torch.nn.Linear(8, 6, bias=False, dtype=torch.bfloat16, device="npu")
        own_rows = model.weight.detach().float().cpu()[3:]
        fully_shard(model, mesh=init_device_mesh("npu", (2,)))
        model.to(torch.float32)
        assert isinstance(model.weight, DTensor) and model.weight.dtype == torch.float32
        assert torch.equal(model.weight.to_local().detach().cpu(), own_rows)
    finally:
        dist.destroy_process_group()
