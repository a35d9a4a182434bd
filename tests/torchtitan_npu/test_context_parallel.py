"""Rows spread over ranks: which documents a chunk sees, and attention of all chunks against that of whole rows."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torchtitan.models.common.attention import create_varlen_metadata_for_document

from tests.torchtitan_npu.runs import LLAMA, SMALL
from tests.torchtitan_npu.test_converters import documents, to_npu
from torchtitan_npu import entry
from torchtitan_npu.converters import attention, context_parallel, reference
from torchtitan_npu.errors import UserError

STARTS = ([0, 7], [0, 1, 20])  # documents of two rows of 24 tokens; the last of each goes over a chunk's border


def test_segments_of_a_chunk() -> None:
    """Two rows of 8 in chunks of 4: the second chunk keeps the keys of a document from its begin."""
    ends = [3, 8, 16]
    first = context_parallel.segments(ends, rows=2, length=8, chunk=4, rank=0)
    assert (first.query_ends, first.key_ends, first.keys) == ([3, 4, 8], [3, 4, 8], [(0, 4), (8, 12)])
    second = context_parallel.segments(ends, rows=2, length=8, chunk=4, rank=1)
    assert (second.query_ends, second.key_ends, second.keys) == ([4, 8], [5, 13], [(3, 8), (8, 16)])


@pytest.mark.parametrize("kind", [attention.NPUAttention, reference.ReferenceAttention], ids=["npu", "reference"])
@pytest.mark.parametrize("window", [(-1, 0), (5, 0)], ids=["causal", "band"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_chunks_attend_as_whole_rows(kind, window: tuple[int, int], ranks: int) -> None:
    torch.manual_seed(0)
    metadata = to_npu(create_varlen_metadata_for_document(documents(*STARTS, length=24)))
    inputs = [torch.randn(2, 24, heads, 16).npu().requires_grad_() for heads in (4, 2, 2)]
    twins = [x.detach().clone().requires_grad_() for x in inputs]
    whole = kind.Config(window_size=window).build()(*inputs, attention_masks=metadata)
    chunks = []
    for rank in range(ranks):
        module = kind.Config(window_size=window).build()
        module.context = SimpleNamespace(way="all_gather", rank=rank, ranks=ranks)
        chunks.append(module(twins[0].chunk(ranks, 1)[rank], *twins[1:], attention_masks=metadata))
    cut = torch.cat(chunks, dim=1)
    torch.testing.assert_close(cut, whole)
    grad = torch.randn_like(whole)
    whole.backward(grad)
    cut.backward(grad)
    for a, e in zip(twins, inputs, strict=True):
        torch.testing.assert_close(a.grad, e.grad)


@pytest.mark.parametrize(
    ("way", "ranks", "heads", "kv_heads", "chosen"),
    [
        ("auto", 2, 16, 8, "ulysses"),
        ("auto", 8, 16, 2, "ulysses"),  # a key/value head for four ranks
        ("auto", 3, 16, 16, "all_gather"),
        ("auto", 4, 12, 3, "all_gather"),
        ("all_gather", 2, 16, 16, "all_gather"),
        ("ulysses", 2, 16, 16, "ulysses"),
    ],
)
def test_the_way_is_one_that_the_heads_allow(way: str, ranks: int, heads: int, kv_heads: int, chosen: str) -> None:
    assert context_parallel.choose(way, ranks, heads, kv_heads) == chosen


def test_ulysses_that_the_heads_do_not_allow_is_refused() -> None:
    with pytest.raises(UserError, match="3 ranks cannot share 16 query and 8 key/value heads"):
        context_parallel.choose("ulysses", 3, 16, 8)


GPT_OSS = ("--module", "gpt_oss", "--config", "gpt_oss_debugmodel")
CP = "--parallelism.context_parallel_degree"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((*GPT_OSS, "--npu.context_parallel", "ring"), "has attention sinks, which are not merged between ranks"),
        ((*LLAMA, "--training.seq_len", "72", "--npu.context_parallel", "ring"), "seq_len 72 is not divisible by 16"),
        ((*LLAMA, "--parallelism.context_parallel_load_balancer", "ptrr"), "reorders block masks, which the NPU"),
    ],
)
def test_what_a_way_does_not_serve_is_refused_before_the_start(
    data: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], message: str
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    entry._prepare_process()
    with pytest.raises(UserError, match=message):
        entry._configure(str(data), [*SMALL, *flags, CP, "8", "--training.local_batch_size", "1"])


def test_a_window_is_refused_where_keys_go_round() -> None:
    module = attention.NPUAttention.Config(window_size=(5, 0), context_parallel="ring").build()
    mesh = SimpleNamespace(size=lambda: 2)
    with pytest.raises(UserError, match=r"window \(5, 0\): keys that go round the ranks are attended to causally"):
        module.parallelize(SimpleNamespace(get_optional_mesh=lambda name: mesh))


@pytest.mark.parametrize(
    ("flags", "balancer"),
    [(("--npu.context_parallel", "ring"), "headtail"), (("--npu.context_parallel", "all_gather"), None), ((), None),
     (("--npu.context_parallel", "ring", "--npu.converters", "reference"), None)],
)  # fmt: skip
def test_rows_are_cut_as_the_way_needs(
    data: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], balancer: str | None
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    entry._prepare_process()
    config = entry._configure(str(data), [*LLAMA, *SMALL, CP, "2", *flags])
    assert config.parallelism.context_parallel_load_balancer == balancer
