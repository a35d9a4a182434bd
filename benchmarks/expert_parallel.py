"""A training step on 8 ranks, as many expert ranks and FSDP alone, as DeepSeek-V4's recipe: seconds, no rank starving.

`python benchmarks/expert_parallel.py`; the result is added to outputs/converters.json. The ranks share this machine's
cores: none is starved when all get about the same processor time.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import EMULATOR, HERE

RANKS, WARM_UP, MEASURED = 8, 2, 3
MODEL = ("--module", "deepseek_v3", "--config", "deepseek_v3_debugmodel", "--debug.seed", "42")
LAYOUT = ("--parallelism.data_parallel_shard_degree", f"{RANKS}", "--parallelism.expert_parallel_degree", f"{RANKS}")
SIZE = ("--training.seq_len", "256", "--training.local_batch_size", "1", "--training.steps", f"{WARM_UP + MEASURED}")
MOST_SECONDS, LEAST_SHARE = 60, 0.8


def rank(folder: Path) -> dict[str, Any]:
    """Trains, and returns the seconds of this rank's measured steps and its processor time in them."""
    from torchtitan_npu import entry

    entry._prepare_process()
    trainer = entry._configure(
        str(folder / "data"), [*MODEL, *LAYOUT, *SIZE, "--dump_folder", str(folder), "--metrics.log_freq", "1000"]
    ).build()
    import torch

    batches = trainer.batch_generator(trainer.dataloader)
    seconds, processor = [], 0.0
    for trainer.step in range(1, WARM_UP + MEASURED + 1):
        begin, used = time.perf_counter(), time.process_time()
        trainer.train_step(batches)
        torch.npu.synchronize()
        if trainer.step > WARM_UP:
            seconds.append(time.perf_counter() - begin)
            processor += time.process_time() - used
    trainer.close()
    torch.distributed.destroy_process_group()
    return {"seconds": seconds, "processor": processor / MEASURED}


def launch(folder: Path) -> list[dict[str, Any]]:
    from torchtitan_npu.data import prepare

    prepare.run(files=[], output=str(folder / "data"), tokenizer=None, vocab_size=2048, field="text", held_out=0.05,
                say=lambda line: None)  # fmt: skip
    done = subprocess.run(
        [*EMULATOR, sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", f"{RANKS}", "--rdzv-backend",
         "c10d", "--rdzv-endpoint", "localhost:0", __file__, "--rank-of", str(folder)],
        stdout=subprocess.PIPE, text=True, check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TASK_QUEUE_ENABLE": "0", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"seconds"')]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a training step of 8 expert-parallel ranks.")
    parser.add_argument("--output", type=Path, default=HERE.parent / "outputs" / "converters.json", metavar="FILE")
    parser.add_argument("--rank-of", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        sys.stdout.write(json.dumps(rank(options.rank_of)) + "\n")  # one write: the ranks share the output
        return
    with tempfile.TemporaryDirectory() as folder:
        ranks = launch(Path(folder))
    assert len(ranks) == RANKS
    processor = [each["processor"] for each in ranks]
    result = {
        "step_seconds": statistics.median(max(step) for step in zip(*(each["seconds"] for each in ranks), strict=True)),
        "least_share": min(processor) / statistics.mean(processor),
    }
    results = json.loads(options.output.read_text()) if options.output.exists() else {}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({**results, "expert_parallel": result}, indent=2) + "\n")
    print(f"{RANKS} ranks, {RANKS} expert ranks: {result['step_seconds']:.1f} s a step (at most {MOST_SECONDS})")
    print(f"least processor time of a rank: {result['least_share']:.2f} of the mean (at least {LEAST_SHARE})")


if __name__ == "__main__":
    main()
