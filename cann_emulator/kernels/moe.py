"""Mixture of experts: gating, and routing of tokens to experts and back."""

import torch

from cann_emulator.kernels.precision import deliver, wide, wide_all
from cann_emulator.kernels.registry import kernel, refuse


def _top(values: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k largest, of equals the first."""
    found, indices = torch.sort(values, dim=-1, descending=True, stable=True)
    return found[..., :k], indices[..., :k]


def _row_numbers(shape: torch.Size) -> torch.Tensor:
    """Numbers of (row, choice) pairs, counted by choice first."""
    rows, choices = shape[:-1].numel(), shape[-1]
    return torch.arange(rows * choices).view(choices, rows).T.reshape(shape)


@kernel("aclnnMoeGatingTopKSoftmax")
def gating_top_k_softmax(x, finished, k, y, expert, row):
    values, indices = _top(torch.softmax(wide(x), -1), k)
    if finished is not None:  # a finished row is sent to an expert that does not exist
        indices = indices.masked_fill(finished.unsqueeze(-1), x.shape[-1])
    deliver(y, values)
    deliver(expert, indices)
    deliver(row, _row_numbers(indices.shape))


@kernel("aclnnMoeGatingTopKSoftmaxV2")
def gating_top_k_softmax_v2(x, finished, k, renorm, want_softmax, y, expert, softmax_out):
    probabilities = torch.softmax(wide(x), -1)
    values, indices = _top(wide(x) if renorm == 1 else probabilities, k)
    if finished is not None:
        indices = indices.masked_fill(finished.unsqueeze(-1), x.shape[-1])
    deliver(y, torch.softmax(values, -1) if renorm == 1 else values)
    deliver(expert, indices)
    if want_softmax and renorm == 0:
        deliver(softmax_out, probabilities)


def _gate(x: torch.Tensor, norm_type: int) -> torch.Tensor:
    if norm_type not in (0, 1):
        refuse(161002, f"normType is {norm_type}; it is 0 (softmax) or 1 (sigmoid)")
    return torch.sigmoid(x) if norm_type else torch.softmax(x, -1)


@kernel("aclnnMoeGatingTopK")
def gating_top_k(
    x, bias, k, k_group, groups, group_mode, renorm, norm_type, out_flag, scaling, eps, y, expert, normed
):  # fmt: skip
    x, bias = wide_all(x, bias)
    gates = _gate(x, norm_type)
    choice = gates if bias is None else gates + bias
    if groups > 1:
        by_group = choice.unflatten(-1, (groups, -1))
        score = by_group.amax(-1) if group_mode == 0 else by_group.topk(min(2, by_group.shape[-1]), -1).values.sum(-1)
        kept = torch.zeros_like(score, dtype=torch.bool).scatter_(-1, _top(score, k_group)[1], True)
        choice = by_group.masked_fill(~kept.unsqueeze(-1), float("-inf")).flatten(-2)
    indices = _top(choice, k)[1]
    values = gates.gather(-1, indices)
    if norm_type == 1 or renorm == 1:
        values = values / (values.sum(-1, keepdim=True) + eps)
    deliver(y, values * scaling)
    deliver(expert, indices)
    if out_flag:
        deliver(normed, gates)


@kernel("aclnnMoeGatingTopKBackward")
def gating_top_k_backward(normed, grad, expert, renorm, norm_type, scaling, eps, out):
    normed, grad = wide_all(normed, grad)
    indices = expert.long()
    values = normed.gather(-1, indices)
    slope = grad * scaling
    if norm_type == 1 or renorm == 1:
        total = values.sum(-1, keepdim=True) + eps
        slope = slope / total - (slope * values).sum(-1, keepdim=True) / total.square()
    spread = torch.zeros_like(normed).scatter_(-1, indices, slope)
    if norm_type == 1:
        deliver(out, spread * normed * (1 - normed))
    else:
        deliver(out, normed * (spread - (spread * normed).sum(-1, keepdim=True)))


@kernel("aclnnMoeInitRouting")
def init_routing(x, row, expert, active, expanded_x, expanded_row, expanded_expert):
    flat = expert.reshape(-1)
    order = torch.argsort(flat, stable=True)
    source = row.reshape(-1).long()[order]
    expanded_row[source] = torch.arange(order.numel(), dtype=expanded_row.dtype)
    expanded_expert.copy_(flat[order])
    expanded_x.copy_(x[source[: expanded_x.shape[0]] % x.shape[0]])


def _count(experts: torch.Tensor, number: int) -> torch.Tensor:
    return torch.bincount(experts.long(), minlength=number)[:number]


def _into_capacity(x, expert, experts: int, capacity: int, expanded_x, expanded_row) -> None:
    """Every expert gets `capacity` rows: what exceeds them is dropped (-1), what is missing is 0."""
    flat = expert.reshape(-1).long()
    choices = expert.shape[1]
    order = torch.argsort(flat, stable=True)
    starts = torch.cumsum(_count(flat, experts), 0) - _count(flat, experts)
    place = torch.arange(order.numel()) - starts[flat[order]]
    kept = place < capacity
    slots = torch.where(kept, flat[order] * capacity + place, -1)
    expanded_row[order] = slots.to(expanded_row.dtype)
    rows = expanded_x.view(experts * capacity, -1)
    rows.zero_()
    rows[slots[kept]] = x[order[kept] // choices]


@kernel("aclnnMoeInitRoutingV2")
def init_routing_v2(
    x, expert, active, capacity, experts, drop_pad, tokens_flag, before_flag, expanded_x, expanded_row, tokens,
    tokens_before,
):  # fmt: skip
    flat = expert.reshape(-1)
    if drop_pad:
        _into_capacity(x, expert, experts, capacity, expanded_x, expanded_row)
        if before_flag:
            deliver(tokens_before, _count(flat, experts))
        return
    order = torch.argsort(flat, stable=True)
    expanded_row[order] = torch.arange(order.numel(), dtype=expanded_row.dtype)
    expanded_x.copy_(x[order[: expanded_x.shape[0]] // expert.shape[1]])
    if tokens_flag and tokens is not None:
        counts = _count(flat, experts)
        deliver(tokens, torch.cumsum(counts, 0) if tokens_flag == 1 else counts)


@kernel("aclnnMoeInitRoutingV3")
def init_routing_v3(
    x, expert, scale, offset, active, capacity, experts, drop_pad, tokens_type, tokens_flag, quant_mode, active_range,
    row_type, expanded_x, expanded_row, tokens, expanded_scale,
):  # fmt: skip
    if quant_mode not in (-1, 1):
        refuse(561000, f"quantMode {quant_mode} is not implemented; -1 (none) and 1 (dynamic int8) are")
    if drop_pad:
        refuse(561000, "dropPadMode 1 is not implemented in this version of the operator")
    flat = expert.reshape(-1).long()
    first, last = active_range or (0, experts)
    inside = (flat >= first) & (flat < last)
    order = torch.argsort(torch.where(inside, flat, experts), stable=True)
    used = int(inside.sum())
    source = order[:used]
    if row_type == 0:
        expanded_row.fill_(-1)
        expanded_row[source] = torch.arange(used, dtype=expanded_row.dtype)
    else:
        expanded_row.fill_(-1)
        expanded_row[:used] = source.to(expanded_row.dtype)
    rows = source[: expanded_x.shape[0]] // expert.shape[1]
    values = x[rows]
    if quant_mode == 1:
        wide_values = wide(values)
        if scale is not None:
            wide_values = wide_values * scale[(flat[source[: rows.numel()]] - first) if scale.shape[0] > 1 else 0]
        factor = wide_values.abs().amax(-1) / 127
        values = torch.round(wide_values / factor.unsqueeze(-1)).clamp(-128, 127)
        deliver(expanded_scale.view(-1)[: rows.numel()], factor)
    elif scale is not None and expanded_scale is not None:
        expanded_scale.view(-1)[: rows.numel()].copy_(scale[rows])
    expanded_x[: rows.numel()].copy_(values)
    if tokens_flag and tokens is not None:
        counts = _count(flat[inside] - first, last - first)
        if tokens_type == 2:
            present = counts.nonzero().view(-1)
            tokens.zero_()
            tokens[: present.numel(), 0] = present + first
            tokens[: present.numel(), 1] = counts[present]
        else:
            deliver(tokens, torch.cumsum(counts, 0) if tokens_type == 0 else counts)


def _finalize(expanded, row, x1, x2, bias, scales, expert, by_row: bool, out) -> None:
    expanded, x1, x2, bias, scales = wide_all(expanded, x1, x2, bias, scales)
    choices = 1 if scales is None else scales.shape[1]
    rows = out.shape[0]
    places = row.long().view(rows, choices) if by_row else row.long().view(choices, rows).T
    source = expanded.reshape(-1, expanded.shape[-1])
    values = source[places.clamp(min=0)] * (places >= 0).unsqueeze(-1)
    if bias is not None:
        values = values + bias[expert.long()]
    if scales is not None:
        values = values * scales.unsqueeze(-1)
    result = values.sum(1)
    for skip in (x1, x2):
        result = result if skip is None else result + skip
    deliver(out, result)


@kernel("aclnnMoeFinalizeRouting")
def finalize_routing(expanded, x1, x2, bias, scales, row, expert, out):
    _finalize(expanded, row, x1, x2, bias, scales, expert, False, out)


@kernel("aclnnMoeFinalizeRoutingV2")
def finalize_routing_v2(expanded, row, x1, x2, bias, scales, expert, drop_pad, out):
    _finalize(expanded, row, x1, x2, bias, scales, expert, drop_pad in (2, 3), out)


@kernel("aclnnMoeFinalizeRoutingV4")
def finalize_routing_v4(
    expanded, row, x1, x2, bias, scales, expert, x, a1, a2, v, drop_pad, zero_range, copy_range, constant_range, k, out
):
    if any(extra is not None for extra in (x, a1, a2, v)):
        refuse(561000, "zero, copy and constant experts are not implemented")
    _finalize(expanded, row, x1, x2, bias, scales, expert, drop_pad in (2, 3), out)


@kernel("aclnnMoeComputeExpertTokens")
def compute_expert_tokens(sorted_experts, experts, out):
    numbers = torch.arange(experts, dtype=sorted_experts.dtype)
    deliver(out, torch.searchsorted(sorted_experts.contiguous(), numbers, right=True))


@kernel("aclnnMoeReRouting")
def re_routing(tokens, counts, scales, count_type, index_type, permuted, permuted_scales, index, expert_tokens):
    ranks, experts = counts.shape
    flat = counts.reshape(-1).long()
    order = torch.arange(ranks * experts).view(ranks, experts).T.reshape(-1)
    starts = torch.cumsum(flat, 0) - flat
    lengths = flat[order]
    total = int(lengths.sum())
    begin = (torch.cumsum(lengths, 0) - lengths).repeat_interleave(lengths)
    source = starts[order].repeat_interleave(lengths) + torch.arange(total) - begin
    permuted.copy_(tokens[source])
    if scales is not None:
        permuted_scales.copy_(scales[source])
    deliver(index, source)
    totals = counts.sum(0)
    deliver(expert_tokens, torch.cumsum(totals, 0) if count_type == 0 else totals)
