"""Places where upstream offers no hook and is changed at run time, declared as data.

`entry.py` applies them before anything is built. An empty table is the goal: every entry names its reason and the
condition under which it goes.
"""

import importlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Patch:
    name: str
    target: str
    """The upstream attribute that is replaced."""
    replacement: str
    """The function in this package that stands in for it; it takes the original as its first argument."""
    reason: str
    delete_when: str


_OFFSETS_UNCUT = "torchtitan_npu.patches.context_parallel.keep_offsets"
_WHY_UNCUT = "upstream cuts masks with the rows and knows no document offsets; the NPU attention takes them whole"
_UPSTREAM_CUTS = "upstream's context parallelism takes VarlenMetadata"

PATCHES: tuple[Patch, ...] = (
    Patch(
        name="mixture-of-experts layer",
        target="torchtitan.models.common.moe.MoE.forward",
        replacement="torchtitan_npu.patches.moe.overlap_shared_experts",
        reason="upstream computes shared experts after the routed ones; an override of the layer would exclude those of"
        " its parts",
        delete_when="upstream computes shared experts while tokens travel",
    ),
    Patch(
        name="chunked loss",
        target="torchtitan.components.loss.ChunkedLossWrapper._gradient_backprop",
        replacement="torchtitan_npu.patches.chunked_loss.keep_gathered",
        reason="upstream scatters the last norm with lm_head, and schedules that split the backward lose its gradient",
        delete_when="norm.weight of upstream's chunked loss has a gradient under ZBVZeroBubble",
    ),
    Patch(
        name="random numbers on the host",
        target="torch.distributed.tensor._random.OffsetBasedRNGTracker._distribute_region",
        replacement="torchtitan_npu.patches.host_random.draw_on_host",
        reason="with training.enable_cpu_offload trunc_normal_ of a parameter never ends: every draw is the same",
        delete_when="torch.nn.init.trunc_normal_ of a DTensor on the host ends, and its shards differ",
    ),
    Patch(
        name="context parallelism of packed rows, training",
        target="torchtitan.trainer.prepare_context_parallel_input",
        replacement=_OFFSETS_UNCUT,
        reason=_WHY_UNCUT,
        delete_when=_UPSTREAM_CUTS,
    ),
    Patch(
        name="context parallelism of packed rows, validation",
        target="torchtitan.components.validate.prepare_context_parallel_input",
        replacement=_OFFSETS_UNCUT,
        reason=_WHY_UNCUT,
        delete_when=_UPSTREAM_CUTS,
    ),
    *(
        Patch(
            name=f"context parallelism of packed rows, {model}",
            target=f"torchtitan.models.{model}.model.{owner}.Config.update_from_config",
            replacement="torchtitan_npu.patches.context_parallel.allow_packed_rows",
            reason="the model refuses configs of VarlenAttention before they are replaced by the NPU attention",
            delete_when=_UPSTREAM_CUTS,
        )
        for model, owner in (("llama3", "Llama3Model"), ("qwen3", "Qwen3Model"))
    ),
)


def apply_all() -> None:
    for patch in PATCHES:
        owner, attribute = resolve(patch.target)
        original = getattr(owner, attribute)
        if hasattr(original, "__npu_patch__"):
            continue
        module, _, function = patch.replacement.rpartition(".")
        replacement = getattr(importlib.import_module(module), function)(original)
        replacement.__npu_patch__ = patch.name
        setattr(owner, attribute, replacement)


def resolve(path: str) -> tuple[object, str]:
    """The object that holds a dotted attribute path, and the last name of the path."""
    parts = path.split(".")
    for end in range(len(parts) - 1, 0, -1):
        try:
            owner: object = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for name in parts[end:-1]:
            owner = getattr(owner, name)
        return owner, parts[-1]
    raise ModuleNotFoundError(path)
