"""Parallel layouts against 1 rank: the losses of ten steps agree within 1e-3, in float32, from one seed checkpoint;
so does the norm that clips the gradients of all ranks.

A core of the matrix runs with every change; the rest is marked slow and runs with `make test-all`.
"""

import functools
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.torchtitan_npu.layouts import Curves, Layouts, assert_trains_as

_FLAGS = {
    "hsdp": "data_parallel_replicate_degree",
    "fsdp": "data_parallel_shard_degree",
    "tp": "tensor_parallel_degree",
    "pp": "pipeline_parallel_degree",
    "ep": "expert_parallel_degree",
    "cp": "context_parallel_degree",
}


@dataclass(frozen=True)
class Layout:
    model: str
    degrees: dict[str, int]
    flags: tuple[str, ...] = ()
    core: bool = False

    @property
    def name(self) -> str:
        extra = "-".join(flag for flag in self.flags if not flag.startswith("--"))
        return "-".join([self.model, *(f"{name}{n}" for name, n in self.degrees.items()), *([extra] if extra else [])])

    @property
    def data_parallel(self) -> int:
        return self.degrees.get("hsdp", 1) * self.degrees.get("fsdp", 1)

    @property
    def batch(self) -> int:
        """Every rank that reads rows of its own has one at least."""
        return max(4, self.data_parallel)

    @property
    def ranks(self) -> int:
        """Experts are spread over ranks that are there for another reason."""
        count = 1
        for name, degree in self.degrees.items():
            count *= 1 if name == "ep" else degree
        return count

    def arguments(self) -> list[str]:
        return [
            *(f"--parallelism.{_FLAGS[name]}={degree}" for name, degree in self.degrees.items()),
            *self.flags,
        ]


def _schedule(name: str) -> tuple[str, ...]:
    return ("--parallelism.pipeline_parallel_schedule", name)


def _way(name: str) -> tuple[str, ...]:
    return ("--npu.context_parallel", name)


LAYOUTS = (
    Layout("deepseek", {"fsdp": 2, "ep": 2}),
    Layout("deepseek", {"tp": 2}),  # cuts the experts' hidden dimension
    Layout("deepseek", {"tp": 2, "ep": 2}, core=True),
    Layout("deepseek", {"hsdp": 2, "fsdp": 1}),
    Layout("deepseek", {"hsdp": 2, "fsdp": 2, "ep": 2}),
    Layout("deepseek", {"fsdp": 4, "ep": 4}),
    Layout("deepseek", {"fsdp": 8, "ep": 8}),  # large expert parallelism with FSDP alone, as DeepSeek-V4's recipe
    Layout("deepseek", {"fsdp": 2, "tp": 2, "ep": 4}),
    Layout("deepseek", {"pp": 2, "fsdp": 1}, _schedule("1F1B")),
    Layout("deepseek", {"pp": 2, "fsdp": 2, "ep": 2}, _schedule("1F1B")),
    Layout("deepseek", {"pp": 2, "fsdp": 1}, _schedule("Interleaved1F1B")),
    Layout("deepseek", {"pp": 2, "fsdp": 1}, _schedule("ZBVZeroBubble")),
    Layout("deepseek", {"pp": 2, "fsdp": 1}, (*_schedule("ZBVZeroBubble"), "activation-checkpoint:full")),
    Layout("deepseek", {"pp": 2, "fsdp": 1}, _schedule("DualPipeV")),
    Layout("deepseek", {"pp": 2, "fsdp": 2, "tp": 2, "ep": 2}, _schedule("1F1B")),
    Layout("deepseek", {"pp": 2, "fsdp": 1, "cp": 2, "tp": 2, "ep": 4}, (*_schedule("1F1B"), *_way("ulysses"))),
    Layout("deepseek", {"pp": 2, "fsdp": 1, "cp": 2, "tp": 2, "ep": 4}, (*_schedule("1F1B"), *_way("ring"))),
    Layout("qwen_moe", {"fsdp": 2, "tp": 2}),
    Layout("qwen_moe", {"hsdp": 2, "fsdp": 2, "ep": 2}),
    Layout("gpt_oss", {"fsdp": 2, "ep": 2}),
    Layout("gpt_oss", {"tp": 2}),
    Layout("gpt_oss", {"fsdp": 2, "tp": 2}),
    Layout("llama", {"tp": 2}),
    Layout("llama", {"cp": 2}, _way("ulysses"), core=True),
    Layout("llama", {"cp": 2}, _way("all_gather")),
    Layout("llama", {"cp": 2}, _way("ring")),
    Layout("llama", {"cp": 4}, _way("ring")),
    Layout("llama", {"cp": 2, "tp": 2}, _way("ulysses")),
    Layout("deepseek", {"cp": 2, "ep": 2}, _way("ulysses")),
    Layout("deepseek", {"fsdp": 2, "cp": 2, "ep": 4}, _way("all_gather")),
    Layout("deepseek", {"fsdp": 2, "cp": 2, "ep": 4}, _way("ring")),
    Layout("gpt_oss", {"cp": 2}, _way("ulysses")),
    Layout("gpt_oss", {"cp": 2}, _way("all_gather")),
    Layout("llama", {"hsdp": 2, "fsdp": 2}),
    Layout("llama", {"fsdp": 2, "cp": 2}, _way("ulysses")),
    Layout("llama", {"pp": 2, "fsdp": 2, "tp": 2}, _schedule("Interleaved1F1B")),
)


@pytest.fixture(scope="session")
def baselines(data: Path, tmp_path_factory: pytest.TempPathFactory):
    """A model's layouts and its curves on one rank, for a step of so many rows, made when first asked for."""

    @functools.cache
    def of(model: str, batch: int) -> tuple[Layouts, Curves]:
        where = ("--module", "tests.torchtitan_npu.short", "--config", model)
        layouts = Layouts.make(tmp_path_factory.mktemp(model), data, where, batch)
        return layouts, layouts.train("one", 1, 1)

    return of


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "layout",
    [pytest.param(each, id=each.name, marks=[] if each.core else [pytest.mark.slow]) for each in LAYOUTS],
)
def test_a_layout_trains_as_one_rank(baselines, layout: Layout) -> None:
    layouts, one_rank = baselines(layout.model, layout.batch)
    run = layouts.train(layout.name, layout.ranks, layout.data_parallel, *layout.arguments())
    assert_trains_as(run, one_rank)
