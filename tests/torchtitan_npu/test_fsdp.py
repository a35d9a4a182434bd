"""FSDP on 2 and 4 ranks against 1 rank, from one seed checkpoint, in float32.

Upstream gives each rank a contiguous part of the dataset. So that step n has the same rows at every degree, there is
for each degree a file of documents that fill one row each, in the order that puts the rows of step n into step n.
"""

import json
import random
from pathlib import Path

import pytest

from tests.torchtitan_npu.runs import FP32, LLAMA, command

STEPS, GLOBAL_BATCH, LENGTH = 10, 4, 64
_WORDS = ("class", "return", "import", "value", "name", "object", "method", "module", "string", "expression")


def _rows(tokenizer, count: int) -> list[str]:
    """Texts of exactly LENGTH tokens: with a begin and an end token, LENGTH inputs and LENGTH labels."""
    rows = []
    generator = random.Random(7)
    while len(rows) < count:
        words = " ".join(generator.choice(_WORDS) for _ in range(LENGTH))
        text = tokenizer.decode(tokenizer.encode(words).ids[: LENGTH - 1])
        if len(tokenizer.encode(text).ids) == LENGTH - 1:
            rows.append(text)
    return rows


def _write(path: Path, rows: list[str], degree: int) -> None:
    """Row n * GLOBAL_BATCH + k of the run is the k-th row of step n, whatever the degree."""
    local = GLOBAL_BATCH // degree
    order = [
        step * GLOBAL_BATCH + rank * local + index
        for rank in range(degree)
        for step in range(STEPS)
        for index in range(local)
    ]
    path.write_text("".join(json.dumps({"text": rows[row]}) + "\n" for row in order), encoding="utf-8")


def _losses(data: Path, folder: Path, seed: Path, degree: int) -> list[float]:
    result = command(
        *("train", "--data", str(data), "--nproc", str(degree), *LLAMA, *FP32, "--dump_folder", str(folder)),
        *("--dataloader.dataset", "prepared", "--dataloader.dataset_path", str(data.parent / f"rows-{degree}.jsonl")),
        *("--training.seq_len", str(LENGTH), "--training.local_batch_size", str(GLOBAL_BATCH // degree)),
        *("--training.steps", str(STEPS), "--checkpoint.enable", "--checkpoint.initial_load_path", str(seed)),
        *("--checkpoint.interval", "1000", "--checkpoint.folder", "own"),
        cwd=data.parent,
    )
    assert result.returncode == 0, result.stderr[-3000:] + result.stdout[-3000:]
    return json.loads((folder / "summary.json").read_text(encoding="utf-8"))["losses"]


@pytest.fixture(scope="module")
def fixture(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    from tokenizers import Tokenizer

    folder = tmp_path_factory.mktemp("fsdp")
    (folder / "data").symlink_to(data)
    rows = _rows(Tokenizer.from_file(str(data / "tokenizer" / "tokenizer.json")), STEPS * GLOBAL_BATCH)
    for degree in (1, 2, 4):
        _write(folder / f"rows-{degree}.jsonl", rows, degree)
    result = command(
        *("train", "--data", str(data), *LLAMA, "--debug.seed", "1", "--dump_folder", str(folder / "seed")),
        *("--checkpoint.enable", "--checkpoint.create_seed_checkpoint", "--training.seq_len", str(LENGTH)),
        cwd=folder,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return folder / "data", folder / "seed" / "checkpoint" / "step-0"


@pytest.fixture(scope="module")
def one_rank(fixture: tuple[Path, Path]) -> list[float]:
    data, seed = fixture
    return _losses(data, data.parent / "ranks-1", seed, 1)


@pytest.mark.parametrize("degree", [2, 4])
def test_more_ranks_train_as_one(fixture: tuple[Path, Path], one_rank: list[float], degree: int) -> None:
    data, seed = fixture
    losses = _losses(data, data.parent / f"ranks-{degree}", seed, degree)
    assert len(losses) == len(one_rank) == STEPS
    assert one_rank[-1] < one_rank[0] - 0.5
    assert max(abs(a - b) for a, b in zip(losses, one_rank, strict=True)) <= 1e-3
