"""Keys and values that travel from rank to rank: who sees what, and values and gradients against whole rows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torchtitan_npu.converters import ring_attention

LENGTH, ROWS = 24, 2
ENDS = [7, 24, 25, 44, 48]  # documents of two rows


def positions(rank: int, ranks: int) -> list[int]:
    """Of the tokens that a rank has, in the packed batch."""
    spans = ring_attention.chunks(rank, ranks, LENGTH)
    return [row * LENGTH + token for row in range(ROWS) for begin, end in spans for token in range(begin, end)]


def seen(rank: int, other: int, ranks: int) -> torch.Tensor:
    """Which of the other rank's keys each query of the rank sees in the block that is computed for them."""
    part = ring_attention.block(ENDS, ROWS, LENGTH, rank, other, ranks)
    result = torch.zeros(len(positions(rank, ranks)), len(positions(other, ranks)), dtype=torch.int)
    for (first, last), (begin, end) in zip(part.queries, part.keys, strict=True):
        pairs = torch.ones(last - first, end - begin, dtype=torch.int)
        result[first:last, begin:end] += pairs.tril() if part.causal else pairs
    return result


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_blocks_of_all_ranks_make_up_causal_attention_within_documents(ranks: int) -> None:
    token = torch.arange(ROWS * LENGTH)
    document = torch.bucketize(token, torch.tensor(ENDS), right=True)
    whole = ((document[:, None] == document) & (token[:, None] >= token)).int()
    for rank in range(ranks):
        for other in range(ranks):
            wanted = whole[positions(rank, ranks)][:, positions(other, ranks)]
            assert torch.equal(seen(rank, other, ranks), wanted)


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_rank_has_the_same_work(ranks: int) -> None:
    """Query-key pairs of whole rows, which contiguous chunks would share out as 1 to 2 * ranks - 1."""

    def pairs(rank: int) -> int:
        blocks = [ring_attention.block([LENGTH], 1, LENGTH, rank, other, ranks) for other in range(ranks)]
        sizes = [((last - first), (end - begin), part.causal) for part in blocks
                 for (first, last), (begin, end) in zip(part.queries, part.keys, strict=True)]  # fmt: skip
        return sum(n * (n + 1) // 2 if causal else n * m for n, m, causal in sizes)

    assert {pairs(rank) for rank in range(ranks)} == {LENGTH * (LENGTH + 1) // 2 // ranks}


def test_merging_with_and_without_the_operator_gives_the_same() -> None:
    torch.manual_seed(0)
    output, statistic = (5, 3, 16), (5, 3, 1)
    parts = [
        (
            torch.randn(output).npu(),
            torch.randn(statistic).expand(5, 3, 8).npu(),
            torch.rand(5, 3, 1).expand(5, 3, 8).npu(),
        )
        for _ in range(2)
    ]
    torch.testing.assert_close(ring_attention._merge_fused(*parts), ring_attention._merge_composed(*parts))


@pytest.mark.parametrize(
    ("ranks", "mode"),
    [
        (2, "eager"),
        pytest.param(2, "compiled", marks=pytest.mark.slow),
        pytest.param(3, "eager", marks=pytest.mark.slow),
        pytest.param(4, "eager", marks=pytest.mark.slow),
    ],
)
def test_ranks_attend_as_whole_rows_forward_and_backward(ranks: int, mode: str) -> None:
    """In float32 and bfloat16; every rank compares its part with float32 attention on one device."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--rdzv-backend", "c10d",
         "--rdzv-endpoint", "localhost:0", "tests/torchtitan_npu/ring_ranks.py", mode],
        capture_output=True, text=True, timeout=200, cwd=Path.cwd(),
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(Path.cwd()),
             os.environ.get("PYTHONPATH", "")])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
