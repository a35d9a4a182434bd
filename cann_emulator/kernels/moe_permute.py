"""Tokens brought into the order of their experts, and back.

`sortedIndices` holds, for every (token, choice) pair in the order of tokens, its row among the permuted tokens. Rows
from the number of permuted tokens on were dropped. With `dropAndPad` it holds the token of each row instead.
"""

import torch

from cann_emulator.kernels.precision import deliver, wide, wide_all
from cann_emulator.kernels.registry import kernel, refuse


def _no_padding(padded: bool) -> None:
    if padded:
        refuse(161002, "paddedMode must be false: it is not supported")


def _gather(rows: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """rows[indices], 0 where the index is of a dropped row."""
    indices = indices.long()
    kept = (indices >= 0) & (indices < rows.shape[0])
    if bool(kept.all()):
        return rows[indices]
    result = rows.new_zeros(indices.numel(), rows.shape[-1])
    result[kept] = rows[indices[kept]]
    return result


def _scatter(target: torch.Tensor, indices: torch.Tensor, rows: torch.Tensor) -> None:
    """target[indices] = rows, except for dropped rows; what nothing is written to becomes 0."""
    indices = indices.long()
    kept = (indices >= 0) & (indices < target.shape[0])
    target.zero_()
    target[indices[kept]] = rows[kept].to(target.dtype)


@kernel("aclnnMoeTokenPermute")
def token_permute(tokens, indices, count, padded, permuted, sorted_indices):
    _no_padding(padded)
    choices = indices.shape[1] if indices.dim() > 1 else 1
    order = torch.argsort(indices.reshape(-1), stable=True)
    permuted.copy_(tokens[order[: permuted.shape[0]] // choices])
    sorted_indices[order] = torch.arange(order.numel(), dtype=sorted_indices.dtype)


@kernel("aclnnMoeTokenPermuteGrad")
def token_permute_grad(grad, sorted_indices, choices, padded, out):
    _no_padding(padded)
    deliver(out, _gather(wide(grad), sorted_indices).view(-1, choices, grad.shape[-1]).sum(1))


@kernel("aclnnMoeTokenUnpermute")
def token_unpermute(permuted, sorted_indices, probs, padded, restore_shape, out):
    _no_padding(padded)
    choices = probs.shape[1] if probs is not None and probs.dim() > 1 else 1
    rows = _gather(wide(permuted), sorted_indices).view(-1, choices, permuted.shape[-1])
    deliver(out, (rows if probs is None else rows * wide(probs).reshape(-1, choices, 1)).sum(1))


@kernel("aclnnMoeTokenUnpermuteGrad")
def token_unpermute_grad(permuted, grad, sorted_indices, probs, padded, restore_shape, dpermuted, dprobs):
    _no_padding(padded)
    permuted, grad, probs = wide_all(permuted, grad, probs)
    choices = probs.shape[1] if probs is not None and probs.dim() > 1 else 1
    spread = grad.unsqueeze(1).expand(-1, choices, -1)
    if probs is None:
        _scatter(dpermuted, sorted_indices, spread.reshape(-1, grad.shape[-1]))
        return
    _scatter(dpermuted, sorted_indices, (spread * probs.reshape(-1, choices, 1)).reshape(-1, grad.shape[-1]))
    rows = _gather(permuted, sorted_indices).view(-1, choices, grad.shape[-1])
    deliver(dprobs, torch.linalg.vecdot(rows, spread))


def _pairs(routing_map: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(expert, token) of every permuted row: by expert, then by token."""
    experts, tokens = routing_map.bool().T.nonzero(as_tuple=True)
    return experts, tokens


def _by_capacity(routing_map: torch.Tensor, rows: int) -> torch.Tensor:
    """The token of every row, each expert having the same number of rows: chosen tokens first, then others."""
    experts = routing_map.shape[-1]
    order = torch.argsort(routing_map.to(torch.int8).T, dim=-1, descending=True, stable=True)
    return order[:, : rows // experts].reshape(-1)


@kernel("aclnnMoeTokenPermuteWithRoutingMap")
def token_permute_with_routing_map(
    tokens, routing_map, probs, count, drop_and_pad, permuted, permuted_probs, sorted_indices
):
    if drop_and_pad:
        rows = _by_capacity(routing_map, permuted.shape[0])
        experts = torch.arange(routing_map.shape[1]).repeat_interleave(permuted.shape[0] // routing_map.shape[1])
        sorted_indices.copy_(rows)
    else:
        experts, rows = _pairs(routing_map)
        if rows.numel() != permuted.shape[0]:
            refuse(161002, f"routingMap chooses {rows.numel()} rows, numOutTokens makes {permuted.shape[0]}")
        order = torch.argsort(rows, stable=True)
        sorted_indices.copy_(order)
    permuted.copy_(tokens[rows])
    if probs is not None and permuted_probs is not None:
        permuted_probs.copy_(probs[rows, experts])


@kernel("aclnnMoeTokenPermuteWithRoutingMapGrad")
def token_permute_with_routing_map_grad(
    grad, probs_grad, sorted_indices, routing_map, experts, tokens, drop_and_pad, dtokens, dprobs
):
    grad, probs_grad = wide_all(grad, probs_grad)
    if drop_and_pad:
        rows = sorted_indices.long()
        owners = torch.arange(experts).repeat_interleave(rows.numel() // experts)
    else:
        owners, rows = _pairs(routing_map)
    deliver(dtokens, grad.new_zeros(tokens, grad.shape[-1]).index_add_(0, rows, grad))
    if dprobs is not None and probs_grad is not None:
        result = probs_grad.new_zeros(tokens, experts)
        result[rows, owners] = probs_grad
        deliver(dprobs, result)


def _rows_of(
    indices: torch.Tensor, routing_map: torch.Tensor | None, drop_and_pad: bool, count: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(token, expert) of every permuted row; the expert is None where every expert has the same number of rows."""
    if drop_and_pad:
        return indices.long(), None
    if routing_map is not None:
        experts, tokens = _pairs(routing_map)
        return tokens, experts
    tokens = torch.empty(indices.numel(), dtype=torch.long)
    tokens[indices.long()] = torch.arange(indices.numel()) // (indices.numel() // count)
    return tokens, None


@kernel("aclnnMoeTokenUnpermuteWithRoutingMap")
def token_unpermute_with_routing_map(
    permuted, sorted_indices, routing_map, probs, drop_and_pad, restore_shape, out, out_index, token_of_row,
    permuted_probs,
):  # fmt: skip
    rows = wide(permuted)
    tokens, experts = _rows_of(sorted_indices, routing_map, drop_and_pad, restore_shape[0])
    out_index.copy_(torch.argsort(tokens, stable=True) if drop_and_pad else sorted_indices)
    token_of_row.copy_(tokens)
    if probs is not None:
        if experts is None:
            experts = torch.arange(probs.shape[1]).repeat_interleave(tokens.numel() // probs.shape[1])
        chosen = probs[tokens, experts]
        permuted_probs.copy_(chosen)
        rows = rows * wide(chosen).unsqueeze(-1)
    deliver(out, rows.new_zeros(restore_shape[0], rows.shape[-1]).index_add_(0, tokens, rows))


@kernel("aclnnMoeTokenUnpermuteWithRoutingMapGrad")
def token_unpermute_with_routing_map_grad(
    grad, out_index, token_of_row, routing_map, permuted, probs, drop_and_pad, restore_shape, dpermuted, dprobs
):
    grad, permuted, probs = wide_all(grad, permuted, probs)
    tokens, experts = _rows_of(token_of_row if drop_and_pad else out_index, routing_map, drop_and_pad, restore_shape[0])
    spread = grad[tokens]
    if probs is None:
        deliver(dpermuted, spread)
        return
    if experts is None:
        experts = torch.arange(probs.shape[1]).repeat_interleave(tokens.numel() // probs.shape[1])
    deliver(dpermuted, spread * probs[tokens, experts].unsqueeze(-1))
    if dprobs is not None:
        result = torch.zeros(probs.shape, dtype=torch.float32)
        result[tokens, experts] = torch.linalg.vecdot(permuted, spread)
        deliver(dprobs, result)
