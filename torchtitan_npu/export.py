"""`torchtitan-npu export`: a trained checkpoint as a complete Hugging Face folder, made on the CPU.

Weights go through upstream's own state-dict adapter; the description of the model (config.json) is written from the
same upstream configuration that the model was built from.
"""

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torchtitan.config import ConfigManager
from torchtitan.models.common.attention import GQAttention

from torchtitan_npu import checkpoints, launch
from torchtitan_npu.data import tokenizer as tokenizers_
from torchtitan_npu.errors import UserError

# Architecture and model_type of transformers, by the name of upstream's model.
_FAMILIES = {"llama3": ("LlamaForCausalLM", "llama"), "qwen3": ("Qwen3ForCausalLM", "qwen3")}


def run(
    *,
    module: str,
    config: str,
    checkpoint: str,
    tokenizer: str,
    dtype: str,
    output: str,
    say: Callable[[str], None],
) -> None:
    launch.check_config_name(["--module", module, "--config", config])
    loaded, _ = ConfigManager()._load_config(["--module", module, "--config", config])
    spec = loaded.model_spec
    if spec.name not in _FAMILIES:
        raise UserError(f"export knows {', '.join(_FAMILIES)}, not {spec.name}")
    source, target = Path(checkpoint), Path(output)
    if target.exists():
        raise UserError(f"{target} exists already", "name a new folder with --output")

    description = model_config(spec.name, spec.model)
    special = _special_tokens(Path(tokenizer))
    weights = read_checkpoint(spec.model, source)
    weights = spec.state_dict_adapter(spec.model, None).to_hf(weights)
    weights = {name: value.to(getattr(torch, dtype)).contiguous() for name, value in weights.items()}

    from safetensors.torch import save_file

    unfinished = target.with_name(f".{target.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        save_file(weights, unfinished / "model.safetensors", metadata={"format": "pt"})
        tokenizers_.copy(Path(tokenizer), unfinished)
        _write(unfinished / "config.json", {**description, "dtype": dtype, **special})
        _write(unfinished / "generation_config.json", {"_from_model_config": True, **special})
        unfinished.rename(target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    say(f"export: wrote {target} ({len(weights)} tensors, {dtype})")


def read_checkpoint(model_config: Any, folder: Path) -> dict[str, torch.Tensor]:
    """The model's tensors from a distributed checkpoint, whatever number of ranks wrote it."""
    from torch.distributed.checkpoint import CheckpointException, load

    if not (folder / ".metadata").exists():
        raise UserError(f"{folder} is not a checkpoint", "name a folder step-N that training wrote")
    checkpoints.check_whole(folder, "name another step")
    with torch.device("meta"):
        wanted = model_config.build().state_dict()
    state = {name: torch.empty(value.shape, dtype=value.dtype) for name, value in wanted.items()}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # one process is what is meant
            load(state, checkpoint_id=str(folder), no_dist=True)
    except (CheckpointException, RuntimeError, OSError) as error:
        raise checkpoints.unusable(error, folder, "name the config it was trained with") from error
    return state


def model_config(family: str, config: Any) -> dict[str, Any]:
    """config.json of transformers for a dense decoder."""
    layer = config.layers[0]
    attention = layer.attention
    if type(attention) is not GQAttention.Config or layer.feed_forward is None:
        raise UserError("export serves dense models with grouped-query attention")
    architecture, model_type = _FAMILIES[family]
    rope = attention.rope
    description = {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "intermediate_size": layer.feed_forward.w1.out_features,
        "num_hidden_layers": len(config.layers),
        "num_attention_heads": attention.n_heads,
        "num_key_value_heads": attention.n_kv_heads or attention.n_heads,
        "head_dim": attention.head_dim or config.dim // attention.n_heads,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm.eps,
        "max_position_embeddings": rope.max_seq_len,
        "rope_theta": rope.theta,
        "rope_scaling": _rope_scaling(rope),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": config.enable_weight_tying,
        "use_cache": True,
    }
    return description


def _rope_scaling(rope: Any) -> dict[str, Any] | None:
    if rope.scaling == "none":
        return None
    if rope.scaling != "llama":
        raise UserError(f"export has no Hugging Face form for rope scaling {rope.scaling!r}")
    return {
        "rope_type": "llama3",
        "factor": rope.scaling_factor,
        "low_freq_factor": rope.low_freq_factor,
        "high_freq_factor": rope.high_freq_factor,
        "original_max_position_embeddings": rope.original_max_position_embeddings,
    }


def _special_tokens(source: Path) -> dict[str, int]:
    """The ids of a tokenizer's begin and end tokens.

    Raises:
        UserError: there is no tokenizer, or it cannot be read.
    """
    if not (source / "tokenizer.json").exists():
        raise UserError(f"no tokenizer in {source}", "name its folder with --tokenizer")
    tokenizer = tokenizers_.read(source)
    settings_file = source / "tokenizer_config.json"
    try:
        settings = json.loads(settings_file.read_text(encoding="utf-8")) if settings_file.exists() else {}
    except ValueError as error:
        raise UserError(f"{settings_file} cannot be read: {error}", "name another folder with --tokenizer") from error
    ids = {}
    for name in ("bos_token", "eos_token"):
        token = settings.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        if text is not None and (number := tokenizer.token_to_id(text)) is not None:
            ids[f"{name}_id"] = number
    return ids


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
