"""What is checked before anything is built: each check is one function that raises a UserError naming cause and fix."""

import math
import operator
import os
from pathlib import Path
from typing import Any

import torch
from torchtitan.components.loss import ChunkedLossWrapper
from torchtitan.distributed.activation_checkpoint import SelectiveAC
from torchtitan.hf_datasets.text_datasets import DATASETS, HuggingFaceTextDataLoader
from torchtitan.models.common.attention import FlexAttention
from torchtitan.models.gpt_oss.model import Attention as GptOssAttention

from torchtitan_npu import checkpoints, kernel_packages, layouts, overrides, unserved
from torchtitan_npu.data import corpus, dataset
from torchtitan_npu.data.tokenizer import vocabulary_size
from torchtitan_npu.errors import UserError


def check(config: Any) -> None:
    for rule in _RULES:
        rule(config)


def _world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def _kernels(config: Any) -> None:
    if problem := kernel_packages.problem(torch.npu.get_device_name()):
        raise UserError(*problem)


def _graphs(config: Any) -> None:
    if not config.training.disable_cuda_graphs:
        raise UserError(
            "training.disable_cuda_graphs is off: graph capture of a step is not served on NPU",
            "leave out --training.no-disable_cuda_graphs",
        )


def _attention(config: Any) -> None:
    """What the NPU attention cannot do is refused here rather than in the middle of a step."""
    if config.npu.converters == "none":
        return
    if config.parallelism.spmd_backend == "full_dtensor":
        raise UserError(
            "parallelism.spmd_backend full_dtensor is not served: NPU operators have no DTensor sharding rules",
            "--parallelism.spmd_backend spmd_types",
        )
    for fqn, layer, *_ in config.model_spec.model.traverse(GptOssAttention.Config):
        if config.parallelism.context_parallel_degree > 1 and config.npu.context_parallel == "ring":
            raise UserError(
                f"npu.context_parallel ring: {fqn} has attention sinks, which are not merged between ranks",
                "--npu.context_parallel auto",
            )
        if layer.sliding_window_size is not None and isinstance(layer.inner_attention, FlexAttention.Config):
            raise UserError(
                f"{fqn} has a sliding window, which flex attention holds in its mask: the NPU attention builds none",
                "the config with varlen attention, such as gpt_oss_debugmodel",
            )


def _multi_token_prediction(config: Any) -> None:
    parallelism = config.parallelism
    if not getattr(config.model_spec.model, "mtp_layers", None):
        return
    for name in ("pipeline_parallel_degree", "context_parallel_degree"):
        if getattr(parallelism, name) > 1:
            raise UserError(
                f"parallelism.{name} {getattr(parallelism, name)}: multi-token prediction runs without it, as upstream",
                f"--parallelism.{name} 1, or the config without multi-token prediction",
            )


_SPLIT_BACKWARD = ("ZBVZeroBubble", "DualPipeV", "InterleavedZeroBubble")


def _split_backward(config: Any) -> None:
    parallelism = config.parallelism
    if parallelism.pipeline_parallel_degree == 1 or not isinstance(config.activation_checkpoint, SelectiveAC.Config):
        return
    if parallelism.pipeline_parallel_schedule in _SPLIT_BACKWARD:
        raise UserError(
            f"parallelism.pipeline_parallel_schedule {parallelism.pipeline_parallel_schedule} goes backward through a"
            " stage twice, inputs first and weights later, which selective activation checkpointing refuses",
            "activation-checkpoint:none or activation-checkpoint:full as the last word of the command, or 1F1B",
        )


def _tokenizer(config: Any) -> None:
    folder = Path(config.hf_assets_path)
    if not folder.is_dir():
        raise UserError(
            f"tokenizer folder {folder} {'is a file' if folder.exists() else 'does not exist'}",
            "torchtitan-npu prepare makes one; or name a folder with --hf_assets_path",
        )
    if not (folder / "tokenizer.json").exists():
        return  # other formats are upstream's to read
    size = vocabulary_size(folder)
    vocabulary = getattr(config.model_spec.model, "vocab_size", None)
    if vocabulary is not None and size > vocabulary:
        raise UserError(
            f"the tokenizer in {folder} has {size} tokens, the model's vocabulary only {vocabulary}",
            f"torchtitan-npu prepare --vocab-size {vocabulary}, or choose a model with a larger vocabulary",
        )


def _datasets(config: Any) -> None:
    loaders = [("dataloader", config.dataloader)]
    if config.validator.enable:
        loaders.append(("validator.dataloader", config.validator.dataloader))
    for flag, loader in loaders:
        if not isinstance(loader, HuggingFaceTextDataLoader.Config):
            continue
        if loader.dataset not in DATASETS:
            raise UserError(f"{flag}.dataset {loader.dataset!r} is unknown", f"one of {', '.join(DATASETS)}")
        path = loader.dataset_path or DATASETS[loader.dataset].path
        local = loader.dataset_path is not None or path.startswith(("tests/", "."))
        if local and not Path(path).exists():
            raise UserError(
                f"dataset {loader.dataset!r} is not there: {path or '(no path)'} does not exist",
                f"torchtitan-npu prepare makes one; or name a path with --{flag}.dataset_path",
            )
        if loader.dataset == dataset.NAME:
            _prepared_file(Path(path))


def _prepared_file(path: Path) -> None:
    """The first record shows whether the file is of the kind that `prepare` writes."""
    fix = f"torchtitan-npu prepare {path} --output DIR makes such a file (with --field NAME), then train --data DIR"
    try:
        first = next(corpus.documents([str(path)], "text"), None)
    except UserError as error:
        raise UserError(error.cause, fix) from error
    if path.suffix != ".jsonl" or first is None:
        raise UserError(f"{path} is no dataset: " + ("it holds no text" if first is None else "not JSON lines"), fix)


def _compiler(config: Any) -> None:
    if not config.compile.enable:
        return
    known = torch._dynamo.list_backends(exclude_tags=())
    if config.compile.backend not in known:
        raise UserError(f"compile.backend {config.compile.backend!r} is unknown", f"one of {', '.join(known)}")


# What a number of the configuration must be at least; upstream takes any, and divides by some of them.
_SMALLEST = {
    "training.steps": 1,
    "training.local_batch_size": 1,
    "metrics.log_freq": 1,
    "validator.freq": 1,
    "lr_scheduler.warmup_steps": 0,
    "parallelism.data_parallel_replicate_degree": 1,
    "parallelism.tensor_parallel_degree": 1,
    "parallelism.context_parallel_degree": 1,
    "parallelism.pipeline_parallel_degree": 1,
    "parallelism.expert_parallel_degree": 1,
}


def _numbers(config: Any) -> None:
    for name, smallest in _SMALLEST.items():
        if (value := operator.attrgetter(name)(config)) < smallest:
            raise UserError(f"{name} {value} is too small", f"--{name} {smallest} at least")
    shard = config.parallelism.data_parallel_shard_degree
    if shard < 1 and shard != -1:
        raise UserError(
            f"parallelism.data_parallel_shard_degree {shard} is no number of ranks",
            "--parallelism.data_parallel_shard_degree -1 (all that the others leave), or 1 at least",
        )


_OPTIMIZERS = ("AdamW", "Adam")


def _optimizer(config: Any) -> None:
    for number, group in enumerate(config.optimizer.param_groups):
        flag = f"optimizer.param-groups.{number}"
        if group.optimizer_name not in _OPTIMIZERS:
            raise UserError(
                f"{flag}.optimizer-name {group.optimizer_name} is not served",
                f"--{flag}.optimizer-name {' or '.join(_OPTIMIZERS)}",
            )
        rate = group.optimizer_kwargs.get("lr", 0.0)
        if not 0 <= rate < float("inf"):
            flag = f"{flag}.optimizer-kwargs.lr"
            raise UserError(f"{flag} {rate} is no learning rate", f"--{flag} 3e-4, for example")


def _seed(config: Any) -> None:
    seed = config.debug.seed
    if seed is not None and not -(2**63) <= seed < 2**63:
        raise UserError(f"debug.seed {seed} does not fit into 64 bits", "--debug.seed 42, for example")


def _shapes(config: Any) -> None:
    parallelism, training = config.parallelism, config.training
    degrees = {name: getattr(parallelism, name) for name in ("data_parallel_replicate_degree", *_SHARING)}
    product = math.prod(degrees.values())
    shard = parallelism.data_parallel_shard_degree
    if _world_size() % product or (shard > 0 and product * shard != _world_size()):
        listed = ", ".join(f"{name} {degree}" for name, degree in degrees.items())
        raise UserError(
            f"{_world_size()} processes cannot be arranged as {listed}, data_parallel_shard_degree {shard}",
            "the product of the degrees must be the number of processes (--nproc times --nnodes)",
        )
    layouts.check_heads(config)
    layouts.check_experts(config, _world_size())
    layouts.check_pipeline(config)
    why = ": context and tensor parallelism share it out, and the loss takes it in chunks"
    _divides("training.seq_len", training.seq_len, _sequence_divisor(config), why)
    if training.global_batch_size > 0:
        rows = training.local_batch_size * _data_parallel(config)
        _divides("training.global_batch_size", training.global_batch_size, rows)


# Ranks along these share rows.
_SHARING = ("context_parallel_degree", "tensor_parallel_degree", "pipeline_parallel_degree")


def _data_parallel(config: Any) -> int:
    """Ranks that read rows of their own."""
    return _world_size() // math.prod(getattr(config.parallelism, name) for name in _SHARING)


def _sequence_divisor(config: Any) -> int:
    tensor = config.parallelism.tensor_parallel_degree if config.parallelism.enable_sequence_parallel else 1
    context = config.parallelism.context_parallel_degree
    tensor *= 2 * context if context > 1 and config.npu.context_parallel == "ring" else context
    chunks = config.loss.num_chunks if isinstance(config.loss, ChunkedLossWrapper.Config) else 1
    return max(tensor, chunks) if max(tensor, chunks) % min(tensor, chunks) == 0 else tensor * chunks


def _divides(name: str, value: int, divisor: int, why: str = "") -> None:
    if value <= 0 or value % divisor:
        below = max(value // divisor, 1) * divisor
        raise UserError(f"{name} {value} is not divisible by {divisor}{why}", f"--{name} {below}, for example")


def _checkpoint(config: Any) -> None:
    """A damaged checkpoint is found before training and nothing is written over it."""
    settings = config.checkpoint
    if settings.enable and settings.create_seed_checkpoint and _world_size() > 1:
        raise UserError(
            f"checkpoint.create_seed_checkpoint on {_world_size()} processes: each draws weights of its own shards",
            "--nproc 1 without parallel degrees; every layout then starts from what it writes",
        )
    folder = Path(config.dump_folder) / settings.folder
    if not settings.enable or not folder.is_dir() or settings.create_seed_checkpoint:
        return
    steps = sorted(
        (int(path.name.removeprefix("step-")), path)
        for path in folder.glob("step-*")
        if path.name.removeprefix("step-").isdigit() and (path / ".metadata").exists()
    )  # without it: a Hugging Face export, or a save that was cut off, which upstream passes over
    wanted = [path for step, path in steps if settings.load_step in (-1, step)]
    if not wanted:
        return
    path = wanted[-1]
    checkpoints.check_whole(path, f"remove {path}, or name an earlier step with --checkpoint.load_step")
    if "dataloader" not in settings.exclude_from_loading:
        checkpoints.check_ranks(path, _data_parallel(config))


def _output(config: Any) -> None:
    """Found out now, not when the first file is written after the model is built."""
    folder = Path(config.dump_folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        raise UserError(f"nothing can be written to {folder}", "name another folder with --dump_folder")


_RULES = (
    _numbers,
    _optimizer,
    _seed,
    _kernels,
    _graphs,
    unserved.check,
    overrides.check,
    _attention,
    _multi_token_prediction,
    _split_backward,
    _tokenizer,
    _datasets,
    _compiler,
    _shapes,
    _checkpoint,
    _output,
)
