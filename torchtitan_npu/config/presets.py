"""Which overrides a run activates: `--npu.converters npu|reference|none`."""

from typing import TYPE_CHECKING

from torchtitan_npu import converters
from torchtitan_npu.converters import context_parallel
from torchtitan_npu.errors import UserError

if TYPE_CHECKING:
    from torchtitan_npu.train import NPUTrainer


def apply(config: "NPUTrainer.Config") -> None:
    """Append the preset's override factories to those the user names; upstream refuses two for one node."""
    unknown = sorted(set(config.npu.reference_parts) - set(converters.PARTS))
    if unknown:
        raise UserError(
            f"npu.reference_parts: no part {', '.join(unknown)}", f"parts are {', '.join(converters.PARTS)}"
        )
    ranks_of_rows = _context_parallel(config)
    named = {entry if isinstance(entry, str) else entry[0] for entry in config.override.imports}
    for declared in converters.of_preset(config.npu.converters, config.npu.reference_parts):
        if declared.factory in named:
            continue
        settings = ranks_of_rows if declared.operator == "npu_fusion_attention" else None
        config.override.imports.append((declared.factory, settings) if settings else declared.factory)


def _context_parallel(config: "NPUTrainer.Config") -> dict[str, str] | None:
    """How ranks that share rows attend, from the heads that tensor parallelism leaves each."""
    ranks = config.parallelism.context_parallel_degree
    attention = getattr(config.model_spec.model, "first_attention", None)
    if ranks == 1 or attention is None:
        return None
    heads = attention.n_heads
    kv_heads = getattr(attention, "n_kv_heads", None) or heads
    tensor = config.parallelism.tensor_parallel_degree
    return {
        "context_parallel": context_parallel.choose(
            config.npu.context_parallel, ranks, max(heads // tensor, 1), max(kv_heads // tensor, 1)
        )
    }
