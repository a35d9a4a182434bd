"""Which overrides a run activates: `--npu.converters npu|reference|none`."""

from typing import TYPE_CHECKING

from torchtitan_npu import converters
from torchtitan_npu.converters import context_parallel
from torchtitan_npu.converters.context_parallel import Way
from torchtitan_npu.errors import UserError

if TYPE_CHECKING:
    from torchtitan_npu.train import NPUTrainer

_FUSED = "npu_fusion_attention"  # the operator of those attentions that know several ways to share rows


def apply(config: "NPUTrainer.Config") -> None:
    """Append the preset's override factories to those the user names; upstream refuses two for one node."""
    unknown = sorted(set(config.npu.reference_parts) - set(converters.PARTS))
    if unknown:
        raise UserError(
            f"npu.reference_parts: no part {', '.join(unknown)}", f"parts are {', '.join(converters.PARTS)}"
        )
    way = _context_parallel(config)
    active = converters.of_preset(config.npu.converters, config.npu.reference_parts)
    if way is not None:
        _balance(config, way if any(declared.operator == _FUSED for declared in active) else "all_gather")
    named = {entry if isinstance(entry, str) else entry[0] for entry in config.override.imports}
    for declared in active:
        if declared.factory in named:
            continue
        settings = {"context_parallel": way} if way is not None and declared.operator == _FUSED else None
        config.override.imports.append((declared.factory, settings) if settings else declared.factory)


def _context_parallel(config: "NPUTrainer.Config") -> Way | None:
    """How ranks that share rows attend, from the heads that tensor parallelism leaves each."""
    ranks = config.parallelism.context_parallel_degree
    attention = getattr(config.model_spec.model, "first_attention", None)
    if ranks == 1 or attention is None or config.npu.converters == "none":
        return None
    heads = attention.n_heads
    kv_heads = getattr(attention, "n_kv_heads", None) or heads
    tensor = config.parallelism.tensor_parallel_degree
    return context_parallel.choose(
        config.npu.context_parallel, ranks, max(heads // tensor, 1), max(kv_heads // tensor, 1)
    )


def _balance(config: "NPUTrainer.Config", way: Way) -> None:
    """How upstream cuts rows: for the ring from the front and from the back, else in one chunk a rank."""
    parallelism = config.parallelism
    if parallelism.context_parallel_load_balancer == "ptrr":
        raise UserError(
            "parallelism.context_parallel_load_balancer ptrr reorders block masks, which the NPU attention has none of",
            "leave it out: rows are cut as --npu.context_parallel needs",
        )
    parallelism.context_parallel_load_balancer = "headtail" if way == "ring" else None
