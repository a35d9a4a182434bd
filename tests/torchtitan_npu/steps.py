"""A step over given rows from a seed checkpoint. Run as a program it is one rank, and writes what came of it."""

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torchtitan.components.loss import IGNORE_INDEX

LENGTH = 32


def rows(valid: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Tokens and labels of a row each, of which the last `valid` labels count."""
    generator = torch.Generator().manual_seed(1)
    made = []
    for count in valid:
        tokens, labels = torch.randint(0, 2048, (2, 1, LENGTH), generator=generator)
        labels[:, : LENGTH - count] = IGNORE_INDEX
        made.append((tokens, labels))
    return made


def take(trainer: Any, chosen: list[tuple[torch.Tensor, torch.Tensor]], size: int) -> None:
    """A step over these rows, `size` of them in a batch."""

    def batches() -> Iterator[tuple[dict[str, Any], torch.Tensor]]:
        for begin in range(0, len(chosen), size):
            tokens, labels = (torch.cat(part) for part in zip(*chosen[begin : begin + size], strict=True))
            trainer.metrics_processor.data_loading_times.append(0.0)  # as upstream's own iterator does
            yield {"input": tokens, "positions": torch.arange(LENGTH).expand(size, -1)}, labels

    trainer.step += 1
    trainer.train_step(batches())


def digests(trainer: Any) -> dict[str, str]:
    """Of every whole parameter on this rank."""
    found = {}
    for part in trainer.model_parts:
        for name, parameter in part.named_parameters():
            whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
            found[name] = hashlib.sha256(whole.detach().float().cpu().numpy().tobytes()).hexdigest()
    return found


def result(trainer: Any) -> dict[str, float]:
    history = trainer.metrics_processor.history
    return {"loss": history.losses[1], "norm": history.gradient_norms[1]}


def main() -> None:
    from torchtitan_npu import entry

    data, valid, *flags = sys.argv[1:]
    entry._prepare_process()
    trainer = entry._configure(data, flags).build()
    trainer.checkpointer.load(step=-1)
    loaded = digests(trainer)
    counts = [int(count) for count in valid.split(",")]
    mesh = trainer.parallel_dims.get_optional_mesh("batch")
    share = len(counts) // (1 if mesh is None else mesh.size())
    first = 0 if mesh is None else mesh.get_local_rank() * share
    pipeline = trainer.parallel_dims.pp_enabled
    take(trainer, rows(counts)[first : first + share], 1 if pipeline else share)
    placements = [
        str(p.placements) for part in trainer.model_parts for p in part.parameters() if isinstance(p, DTensor)
    ]
    said = json.dumps({"loaded": loaded, "placements": placements, **result(trainer)})
    (Path(trainer.config.dump_folder) / f"rank{os.environ['RANK']}.json").write_text(said, encoding="utf-8")
    trainer.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
