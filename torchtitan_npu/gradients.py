"""Parameters that a step does not train. torch_npu's inference operators have no gradient, and torch only warns."""

from collections.abc import Iterable

from torch import nn

from torchtitan_npu.errors import UserError

_SHOWN = 4


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
