"""Runs of one model in several parallel layouts from one seed checkpoint, with the same rows in every step.

Upstream gives each data-parallel rank a contiguous part of the dataset. So that step n has the same rows at every
degree, there is for each degree a file of documents that fill one row each, in the order that puts the rows of step n
into step n.
"""

import json
import random
from dataclasses import dataclass
from pathlib import Path

from tests.torchtitan_npu.runs import FP32, command

STEPS, LENGTH = 10, 64
DEGREES = (1, 2, 4, 8)
_SECONDS_OF_A_RUN = 900  # eight ranks on two cores
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


def _write(path: Path, rows: list[str], degree: int, batch: int) -> None:
    """Row n * batch + k of the run is the k-th row of step n, whatever the degree."""
    local = batch // degree
    order = [
        step * batch + rank * local + index for rank in range(degree) for step in range(STEPS) for index in range(local)
    ]
    path.write_text("".join(json.dumps({"text": rows[row]}) + "\n" for row in order), encoding="utf-8")


@dataclass(frozen=True)
class Layouts:
    """One model's seed checkpoint and the rows, in a folder."""

    folder: Path
    data: Path
    model: tuple[str, ...]
    batch: int
    """Rows of a step, on all ranks together."""

    @classmethod
    def make(cls, folder: Path, data: Path, model: tuple[str, ...], batch: int = 4) -> "Layouts":
        from tokenizers import Tokenizer

        rows = _rows(Tokenizer.from_file(str(data / "tokenizer" / "tokenizer.json")), STEPS * batch)
        for degree in DEGREES:
            if batch % degree == 0:
                _write(folder / f"rows-{degree}.jsonl", rows, degree, batch)
        made = cls(folder, data, model, batch)
        result = command(
            *("train", "--data", str(data), *model, "--debug.seed", "1", "--dump_folder", str(folder / "seed")),
            *("--checkpoint.enable", "--checkpoint.create_seed_checkpoint", "--training.seq_len", str(LENGTH)),
            cwd=Path.cwd(),
        )
        assert result.returncode == 0, result.stderr[-3000:]
        return made

    def train(self, name: str, ranks: int, data_parallel: int, *flags: str) -> "Curves":
        """Losses and gradient norms of all steps.

        Args:
            name: of the run's folder.
            ranks: processes.
            data_parallel: how many of them read rows of their own.
            flags: of the layout.
        """
        folder = self.folder / name
        rows = self.folder / f"rows-{data_parallel}.jsonl"
        result = command(
            *("train", "--data", str(self.data), "--nproc", str(ranks), *self.model, *FP32),
            *("--dataloader.dataset", "prepared", "--dataloader.dataset_path", str(rows)),
            *("--training.seq_len", str(LENGTH), "--training.local_batch_size", str(self.batch // data_parallel)),
            *("--training.steps", str(STEPS), "--dump_folder", str(folder), "--checkpoint.enable"),
            *("--checkpoint.initial_load_path", str(self.folder / "seed" / "checkpoint" / "step-0")),
            *("--checkpoint.interval", "1000", "--checkpoint.folder", "own", *flags),
            cwd=Path.cwd(),
            seconds=_SECONDS_OF_A_RUN,
        )
        assert result.returncode == 0, result.stderr[-3000:] + result.stdout[-3000:]
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        return Curves(summary["losses"], summary["gradient_norms"])


@dataclass(frozen=True)
class Curves:
    losses: list[float]
    gradient_norms: list[float]
    """Of the whole model, before clipping."""


def assert_trains_as(run: Curves, one_rank: Curves) -> None:
    """Losses within 1e-3; the norm that clips is that of all ranks' gradients, before rounding leads them apart."""
    assert len(run.losses) == len(one_rank.losses) == STEPS
    assert one_rank.losses[-1] < one_rank.losses[0] - 0.5
    losses = [abs(a - b) for a, b in zip(run.losses, one_rank.losses, strict=True)]
    norms = [abs(a / b - 1) for a, b in zip(run.gradient_norms, one_rank.gradient_norms, strict=True)]
    print(f"loss {max(losses):.1e}, norm {norms[0]:.1e} in the first step, {max(norms):.1e} at most")
    assert max(losses) <= 1e-3
    assert norms[0] <= 1e-5
