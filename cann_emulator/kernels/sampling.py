"""Filtering of logits before the next token is drawn."""

import torch
from torch import Tensor

from cann_emulator.kernels.precision import deliver, wide
from cann_emulator.kernels.registry import kernel


@kernel("aclnnApplyTopKTopP")
def apply_top_k_top_p(logits: Tensor, p: Tensor | None, k: Tensor | None, out: Tensor) -> None:
    """Keeps the `k` greatest, of those the likeliest whose probabilities exceed `p`; all else becomes -inf."""
    values, places = wide(logits).sort(dim=-1, stable=True)
    if k is not None:
        least = values.gather(-1, (values.shape[-1] - k.long()).unsqueeze(-1))
        values = values.masked_fill(values < least, -torch.inf)
    if p is not None:
        unlikely = values.softmax(-1).cumsum(-1) <= 1 - wide(p).unsqueeze(-1)
        unlikely[..., -1] = False
        values = values.masked_fill(unlikely, -torch.inf)
    deliver(out, torch.empty_like(values).scatter_(-1, places, values))
