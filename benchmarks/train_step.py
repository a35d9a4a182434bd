"""A training step (bf16, batch 2 x 256) through torch_npu: seconds, launches and bytes.

Run it under CANN: `cann-emulator run -- python benchmarks/train_step.py --converters npu`. Prints one JSON object.
Without activation checkpointing unless `--checkpointing` is given.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

BATCH, LENGTH = 2, 256


def build_trainer(folder: Path, flags: list[str], model: str, checkpointing: bool):
    """A trainer of one rank on the default corpus; `model` is module:config."""
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="0")
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    from torchtitan_npu import entry
    from torchtitan_npu.data import prepare

    data = folder / "data"
    prepare.run(
        files=[], output=str(data), tokenizer=None, vocab_size=2048, field="text", held_out=0.05, say=lambda line: None
    )
    entry._prepare_process()
    config = entry._configure(
        str(data),
        [
            *("--module", model.split(":")[0], "--config", model.split(":")[1], "--debug.seed", "42"),
            *("--training.seq_len", str(LENGTH), "--training.local_batch_size", str(BATCH)),
            *("--dump_folder", str(folder), "--metrics.log_freq", "1000", *flags),
        ],
    )
    if not checkpointing:
        config.activation_checkpoint = None  # the CPU reference computes nothing twice either
    return config.build()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--converters", choices=("npu", "reference", "none"), default="npu")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--model", default="llama3:llama3_debugmodel_varlen_attn", metavar="MODULE:CONFIG")
    parser.add_argument("--checkpointing", action="store_true", help="activation checkpointing as the config has it")
    options, rest = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        trainer = build_trainer(
            Path(folder),
            ["--npu.converters", options.converters, "--training.steps", str(options.steps), *rest],
            options.model,
            options.checkpointing,
        )
        import torch

        from torchtitan_npu import launches

        batches = trainer.batch_generator(trainer.dataloader)
        seconds, before, bytes_before = [], None, 0
        for trainer.step in range(1, options.steps + 1):
            if trainer.step == options.steps:
                before, bytes_before = launches.by_operator(), launches.bytes_moved() or 0
            begin = time.perf_counter()
            trainer.train_step(batches)
            torch.npu.synchronize()
            seconds.append(time.perf_counter() - begin)
        result: dict = {"step_seconds": statistics.median(seconds[2:] or seconds)}
        if before is not None:
            after = launches.by_operator() or {}
            counted = {name: n - before.get(name, 0) for name, n in after.items() if n > before.get(name, 0)}
            result["bytes"] = (launches.bytes_moved() or 0) - bytes_before
            result["launches"] = {"total": sum(counted.values()), **counted}
        trainer.close()
        torch.distributed.destroy_process_group()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
