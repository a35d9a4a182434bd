"""Gradients of a step: how ranks add them up, and which parameters have none.

torch_npu's inference operators have no gradient, and torch only warns.
"""

from collections.abc import Iterable

from torch import nn
from torch.distributed.fsdp import FSDPModule

from torchtitan_npu.errors import UserError

_SHOWN = 4


def only_sum(model_parts: Iterable[nn.Module]) -> None:
    """Let FSDP add gradients up without a pass that multiplies or divides them by 1.

    Upstream scales the loss and gives FSDP the factor 1. Between ranks FSDP hands it to the collective as `PREMUL_SUM`,
    which HCCL does not have: torch_npu multiplies every rank's whole gradients first. Where a group is a single rank,
    as that of experts with as many expert ranks as ranks, FSDP divides by the factor unless there is none.
    """
    for part in model_parts:
        for module in part.modules():
            if not isinstance(module, FSDPModule):
                continue
            module.set_force_sum_reduction_for_comms(True)
            for group in module._get_fsdp_state()._fsdp_param_groups:
                mesh = group.mesh_info
                if getattr(mesh, "shard_mesh_size", 1) * getattr(mesh, "replicate_mesh_size", 1) == 1:
                    group.gradient_divide_factor = None


def check(model_parts: Iterable[nn.Module]) -> None:
    """Call between a backward pass and the next `zero_grad`.

    Raises:
        UserError: a parameter that requires a gradient has none.
    """
    names = [
        name
        for part in model_parts
        for name, parameter in part.named_parameters()
        if parameter.requires_grad and parameter.grad is None
    ]
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise UserError(
            f"{len(names)} trainable parameters got no gradient: {', '.join(names[:_SHOWN])}{more}; an operator in the"
            " forward pass has no backward (torch_npu's inference attention, for example; torch only warns of it)",
            "use the operator for training (npu_fusion_attention); for parameters that are unused on purpose"
            " --npu.no-require_gradients",
        )
