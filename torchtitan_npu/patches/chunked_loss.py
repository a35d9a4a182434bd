"""The chunked loss leaves the parameters of its FSDP group gathered until the decoder's backward."""

from collections.abc import Callable
from functools import wraps

import torch
from torch.distributed.fsdp import FSDPModule
from torchtitan.components.loss import ChunkedLossWrapper


def keep_gathered(original: Callable) -> Callable:
    """`ChunkedLossWrapper._gradient_backprop`, after gathering the group of `lm_head` again, of which `norm` is part.

    Schedules that split the backward (ZBVZeroBubble, DualPipeV) look for a stage's parameters before it begins. That
    of a scattered `norm` is not in the graph, so that it silently got no gradient.
    """

    @wraps(original)
    def gradient_backprop(
        self: ChunkedLossWrapper,
        hidden_states: torch.Tensor,
        accumulated_grad: torch.Tensor,
        total_loss: torch.Tensor,
        lm_head: torch.nn.Module,
        fsdp_enabled: bool,
    ) -> torch.Tensor:
        if isinstance(lm_head, FSDPModule):
            lm_head.unshard()
        return original(hidden_states, accumulated_grad, total_loss, lm_head, fsdp_enabled)

    return gradient_backprop
