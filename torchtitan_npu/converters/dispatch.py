"""Tokens brought to their experts and back, on `npu_moe_token_permute` and `npu_moe_token_unpermute`.

Replaces: `LocalTokenDispatcher.Config` and `AllToAllTokenDispatcher.Config`. Operators: torch_npu's
`npu_moe_token_permute` and `npu_moe_token_unpermute` with their gradients; the second applies the routing scores in
float32 and sums over a token's experts. Constraints: at most 512 experts a token. Saves: sorting, indexing, two casts,
the product with the scores, the zeros and the scatter-add, and theirs in backward.

With expert parallelism the tokens of other ranks arrive sorted by rank, then expert; a second permutation sorts them by
expert. The host reads one tensor a layer: how many tokens go to and come from each rank. The exchange of these counts
runs while the tokens are permuted, and the layer's shared experts run while the tokens travel (see `patches.moe`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed._functional_collectives import all_to_all_single
from torchtitan.config.override import derive, override
from torchtitan.distributed.spmd_types import maybe_set_sparse_mesh
from torchtitan.models.common.token_dispatcher import AllToAllTokenDispatcher, LocalTokenDispatcher


@torch.library.custom_op("torchtitan_npu::permute", mutates_args=())
def permute(tokens: torch.Tensor, experts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [T, D] in the order of their experts [T, K] or [T]: rows [T * K, D], and each (token, choice)'s row."""
    return torch.ops.npu.npu_moe_token_permute(tokens, experts)


@permute.register_fake
def _(tokens, experts):
    return tokens.new_empty((experts.numel(), tokens.shape[1])), experts.new_empty(experts.numel(), dtype=torch.int32)


@torch.library.custom_op("torchtitan_npu::permute_backward", mutates_args=())
def _permute_backward(grad: torch.Tensor, places: torch.Tensor, choices: int) -> torch.Tensor:
    count = places.shape[0] // choices
    return torch.ops.npu.npu_moe_token_permute_grad_v2(grad.contiguous(), places, count, grad.dtype, choices)


@_permute_backward.register_fake
def _(grad, places, choices):
    return grad.new_empty((places.shape[0] // choices, grad.shape[1]))


def _permute_context(ctx: Any, inputs: tuple, output: tuple) -> None:
    _, experts = inputs
    _, places = output
    ctx.choices = experts.shape[1] if experts.dim() > 1 else 1
    ctx.mark_non_differentiable(places)
    ctx.save_for_backward(places)


def _permute_gradients(ctx: Any, grad: torch.Tensor, _: None) -> tuple:
    (places,) = ctx.saved_tensors
    return _permute_backward(grad, places, ctx.choices), None


permute.register_autograd(_permute_gradients, setup_context=_permute_context)


@torch.library.custom_op("torchtitan_npu::unpermute", mutates_args=())
def unpermute(rows: torch.Tensor, places: torch.Tensor, scores: torch.Tensor | None) -> torch.Tensor:
    """The sum over K of each token's rows, times its scores [T, K]; without scores each token has one row."""
    return torch.ops.npu.npu_moe_token_unpermute(rows, places, scores)


@unpermute.register_fake
def _(rows, places, scores):
    choices = 1 if scores is None else scores.shape[1]
    return rows.new_empty((places.shape[0] // choices, rows.shape[1]))


@torch.library.custom_op("torchtitan_npu::unpermute_backward", mutates_args=())
def _unpermute_backward(
    grad: torch.Tensor, rows: torch.Tensor, places: torch.Tensor, scores: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of rows and scores; the second is empty without scores."""
    of_rows, of_scores = torch.ops.npu.npu_moe_token_unpermute_grad(rows, grad.contiguous(), places, scores)
    return of_rows, rows.new_empty(0) if scores is None else of_scores


@_unpermute_backward.register_fake
def _(grad, rows, places, scores):
    return torch.empty_like(rows), rows.new_empty(0) if scores is None else torch.empty_like(scores)


def _unpermute_context(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
    rows, places, scores = inputs
    # Without scores the gradient needs only the number of rows, which is that of places.
    ctx.save_for_backward(None if scores is None else rows, places, scores)


def _unpermute_gradients(ctx: Any, grad: torch.Tensor) -> tuple:
    rows, places, scores = ctx.saved_tensors
    if rows is None:
        rows = grad.new_empty((places.shape[0], grad.shape[1]))
    of_rows, of_scores = _unpermute_backward(grad, rows, places, scores)
    return of_rows, None, None if scores is None else of_scores


unpermute.register_autograd(_unpermute_gradients, setup_context=_unpermute_context)


@torch.library.custom_op("torchtitan_npu::counts_on_host", mutates_args=())
def counts_on_host(sending: torch.Tensor, arriving: torch.Tensor) -> torch.Tensor:
    """Rows to and from each rank, [2, ranks] on the host, from counts [ranks, experts]: the layer's one wait."""
    return torch.stack((sending, arriving)).sum(-1).cpu()


@counts_on_host.register_fake
def _(sending, arriving):
    return torch.empty((2, sending.shape[0]), dtype=sending.dtype, device="cpu")


@torch.library.custom_op("torchtitan_npu::experts_of_rows", mutates_args=())
def experts_of_rows(arriving: torch.Tensor, rows: int) -> torch.Tensor:
    """The expert [rows] of each row that arrived, sorted by rank, then expert, from counts [ranks, experts].

    Nothing is launched for a rank without rows: torch_npu's `repeat_interleave` would make the host wait.
    """
    if rows == 0:
        return arriving.new_empty(0)
    ranks, experts = arriving.shape
    local = torch.arange(experts, device=arriving.device).repeat(ranks)
    return local.repeat_interleave(arriving.flatten(), output_size=rows)


@experts_of_rows.register_fake
def _(arriving, rows):
    return arriving.new_empty(rows)


@dataclass(frozen=True, kw_only=True)
class Dispatched:
    """What bringing the tokens back needs."""

    places: torch.Tensor
    """Row of each (token, choice) among the rank's own permuted rows, [T * K]."""
    scores: torch.Tensor
    """Routing scores, [T, K]."""
    by_expert: torch.Tensor | None = None
    """Row, among those sorted by expert, of each row that arrived; None without expert parallelism."""
    sent: list[int] | None = None
    """Rows sent to each rank."""
    received: list[int] | None = None
    """Rows received from each rank."""


class NPULocalDispatcher(LocalTokenDispatcher):
    """The rank's own part: without expert parallelism it is all."""

    @dataclass(kw_only=True, slots=True)
    class Config(LocalTokenDispatcher.Config):
        pass

    def dispatch(
        self,
        x_TD: torch.Tensor,
        topk_scores_TK: torch.Tensor,
        topk_expert_ids_TK: torch.Tensor,
        num_local_tokens_per_expert_E: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, Any]:
        rows, places = permute(x_TD, topk_expert_ids_TK)
        return rows, num_local_tokens_per_expert_E, Dispatched(places=places, scores=topk_scores_TK)

    def combine(self, routed_output_RD: torch.Tensor, metadata: Any, x_TD: torch.Tensor) -> torch.Tensor:
        return unpermute(routed_output_RD, metadata.places, metadata.scores)


class NPUAllToAllDispatcher(AllToAllTokenDispatcher):
    """Rows to the ranks that own their experts, and back. Also an `AllToAllTokenDispatcher`, which upstream checks."""

    @dataclass(kw_only=True, slots=True)
    class Config(AllToAllTokenDispatcher.Config):
        pass

    meanwhile: Callable[[], None] | None = None
    """Called once while the next dispatched rows travel: work that does not need them."""

    def dispatch(
        self,
        x_TD: torch.Tensor,
        topk_scores_TK: torch.Tensor,
        topk_expert_ids_TK: torch.Tensor,
        num_local_tokens_per_expert_E: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, Any]:
        if self.ep_mesh is None:
            return NPULocalDispatcher.dispatch(
                self, x_TD, topk_scores_TK, topk_expert_ids_TK, num_local_tokens_per_expert_E
            )
        ranks = self.ep_mesh.size()
        with maybe_set_sparse_mesh(), torch.no_grad():
            sending = num_local_tokens_per_expert_E.view(ranks, -1)
            arriving = all_to_all_single(sending, None, None, self.ep_mesh)
        rows, places = permute(x_TD, topk_expert_ids_TK)
        with maybe_set_sparse_mesh():
            sent, received = counts_on_host(sending, arriving).tolist()
            rows = all_to_all_single(rows, received, sent, self.ep_mesh)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        with maybe_set_sparse_mesh():
            rows, by_expert = permute(rows, experts_of_rows(arriving, sum(received)))
        done = Dispatched(places=places, scores=topk_scores_TK, by_expert=by_expert, sent=sent, received=received)
        return rows, arriving.sum(0), done

    def combine(self, routed_output_RD: torch.Tensor, metadata: Any, x_TD: torch.Tensor) -> torch.Tensor:
        rows = routed_output_RD
        if metadata.by_expert is not None:
            with maybe_set_sparse_mesh():
                rows = unpermute(rows, metadata.by_expert, None)
                rows = all_to_all_single(rows, metadata.sent, metadata.received, self.ep_mesh)
        return unpermute(rows, metadata.places, metadata.scores)


@override(target=LocalTokenDispatcher.Config, description="npu_moe_token_permute, unpermute", exact=True)
def local_dispatch(config: LocalTokenDispatcher.Config) -> NPULocalDispatcher.Config:
    return derive(config, NPULocalDispatcher.Config)


@override(target=AllToAllTokenDispatcher.Config, description="npu_moe_token_permute, unpermute", exact=True)
def all_to_all_dispatch(config: AllToAllTokenDispatcher.Config) -> NPUAllToAllDispatcher.Config:
    return derive(config, NPUAllToAllDispatcher.Config)
