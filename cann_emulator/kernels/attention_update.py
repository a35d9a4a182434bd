"""Partial results of attention over parts of the keys, merged by their softmax statistics."""

import itertools

import torch

from cann_emulator.kernels.precision import deliver, wide
from cann_emulator.kernels.registry import kernel, refuse


def _by_token(statistic: torch.Tensor, layout: str, softmax_layout: str, ends) -> torch.Tensor:
    """The statistic of every row of the attention, shaped to broadcast over it."""
    if layout == "SBH":  # [B, N, S, 8] for attention [S, B, N, D]
        return statistic[..., 0].permute(2, 0, 1).unsqueeze(-1)
    if softmax_layout == "TND":
        return statistic[..., :1]
    parts, heads = [], statistic.shape[1]  # each sequence lies as [N, S, 8]
    for begin, end in itertools.pairwise(ends):
        parts.append(statistic[begin:end].reshape(heads, end - begin, -1).transpose(0, 1)[..., :1])
    return torch.cat(parts)


@kernel("aclnnRingAttentionUpdateV2")
def ring_attention_update(
    before, before_max, before_sum, current, current_max, current_sum, ends, layout, softmax_layout, out, out_max,
    out_sum,
):  # fmt: skip
    layout = layout or "SBH"
    if layout not in ("SBH", "TND"):
        refuse(161002, f"inputLayout is {layout!r}; it is SBH or TND")
    if layout == "TND" and ends is None:
        refuse(161002, "layout TND needs actualSeqQlen")
    if layout == "TND" and before.shape[-1] % 64:
        refuse(161002, f"prevAttnOut has a head size of {before.shape[-1]}; layout TND takes multiples of 64")
    highest = torch.maximum(before_max, current_max)
    before_mass, current_mass = (
        before_sum * torch.exp(before_max - highest),
        current_sum * torch.exp(current_max - highest),
    )
    total = before_mass + current_mass
    deliver(out_max, highest)
    deliver(out_sum, total)
    numbers = None if ends is None else ends.tolist()
    shares = [_by_token(mass / total, layout, softmax_layout or "", numbers) for mass in (before_mass, current_mass)]
    first, second = wide(before), wide(current)
    if layout == "SBH":
        heads = before_max.shape[1]
        first, second = (t.unflatten(-1, (heads, -1)) for t in (first, second))
    deliver(out, first * shares[0] + second * shares[1])


@kernel("aclnnAttentionUpdate")
def attention_update(lse, parts, update_type, out, lse_out):
    stacked = torch.stack([t.float() for t in lse])
    merged = torch.logsumexp(stacked, 0)
    weights = torch.exp(stacked - merged).unsqueeze(-1)
    deliver(out, sum(wide(part) * weight for part, weight in zip(parts, weights, strict=True)))
    if update_type == 1:
        deliver(lse_out, merged)
