"""A sequence spread over ranks, for attention: which tokens a rank has, and the exchanges that bring the others.

Each rank holds one contiguous chunk of every row (`ring`: two). Three ways to attend over whole rows:

- `all_gather`: a rank keeps its queries and gets the keys and values of all ranks. Any number of heads.
- `ulysses`: ranks trade tokens for heads, each attends over whole rows with its share of the heads, and they trade
  back. Sends less, and every rank has the same work; the ranks must divide the query heads, and the key/value heads,
  unless these divide the ranks: then each is given to several ranks.
- `ring`: keys and values travel from rank to rank. Any number of heads, no rank holds whole rows, every rank has the
  same work; causal without window or sinks. See `ring_attention`.

Documents of a packed row stay apart in all.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch.distributed._functional_collectives import all_to_all_single
from torch.distributed.device_mesh import DeviceMesh
from torchtitan.protocols.sharding import LocalMapConfig, ShardingConfig

from torchtitan_npu.errors import UserError

Way = Literal["ulysses", "all_gather", "ring"]


@dataclass(frozen=True)
class Context:
    """The ranks that share rows, and how they attend."""

    mesh: DeviceMesh
    way: Way

    @property
    def ranks(self) -> int:
        return self.mesh.size()

    @property
    def rank(self) -> int:
        return self.mesh.get_local_rank()

    @property
    def group_name(self) -> str:
        return self.mesh.get_group().group_name


def divides(ranks: int, heads: int, kv_heads: int) -> bool:
    """Whether heads can be shared out: query heads evenly, key/value heads evenly or each to several ranks."""
    return heads % ranks == 0 and (kv_heads % ranks == 0 or ranks % kv_heads == 0)


def choose(way: Way | Literal["auto"], ranks: int, heads: int, kv_heads: int) -> Way:
    """The way that is asked for, or for `auto` Ulysses where the heads allow it.

    Raises:
        UserError: Ulysses is asked for, and the ranks do not divide the heads.
    """
    if way == "ulysses" and not divides(ranks, heads, kv_heads):
        raise UserError(
            f"npu.context_parallel ulysses: {ranks} ranks cannot share {heads} query and {kv_heads} key/value heads",
            "--npu.context_parallel all_gather or ring, or a context_parallel_degree that divides the heads",
        )
    if way == "auto":
        return "ulysses" if divides(ranks, heads, kv_heads) else "all_gather"
    return way


def without_gathering(sharding: ShardingConfig) -> ShardingConfig:
    """The inner attention's sharding with keys and values left where they are, as queries; upstream gathers them."""
    assert sharding.in_src_shardings is not None
    own = dict(sharding.in_src_shardings)
    return replace(sharding, in_dst_shardings=own, local_map=LocalMapConfig(in_grad_placements=tuple(own.values())))


def tokens_for_heads(x: torch.Tensor, context: Context) -> torch.Tensor:
    """[batch, chunk, heads, width] of this rank to [batch, row, heads / ranks, width]."""
    ranks = context.ranks
    batch, chunk, heads, width = x.shape
    if heads < ranks:  # a key/value head for several ranks
        x = x.repeat_interleave(ranks // heads, dim=2)
        heads = ranks
    x = x.view(batch, chunk, ranks, heads // ranks, width).permute(2, 0, 1, 3, 4).contiguous()
    x = all_to_all_single(x, None, None, context.mesh)
    return x.permute(1, 0, 2, 3, 4).reshape(batch, ranks * chunk, heads // ranks, width)


def heads_for_tokens(x: torch.Tensor, context: Context) -> torch.Tensor:
    """[batch, row, heads / ranks, width] to [batch, chunk, heads, width]: the way back."""
    ranks = context.ranks
    batch, row, heads, width = x.shape
    x = x.view(batch, ranks, row // ranks, heads, width).transpose(0, 1).contiguous()
    x = all_to_all_single(x, None, None, context.mesh)
    return x.permute(1, 2, 0, 3, 4).reshape(batch, row // ranks, ranks * heads, width)


def share_of_heads(x: torch.Tensor, context: Context) -> torch.Tensor:
    """This rank's part of one number a head."""
    return x.chunk(context.ranks)[context.rank]


@dataclass(frozen=True)
class Segments:
    """The documents, or parts of them, that a rank's chunk of every row has queries of."""

    query_ends: list[int]
    """Where each ends among the rank's queries, rows one after another."""
    key_ends: list[int]
    """Where each ends among the keys that are kept."""
    keys: list[tuple[int, int]]
    """For each row, which of the packed keys are kept: from the first document's begin to the chunk's end."""


def segments(ends: list[int], rows: int, length: int, chunk: int, rank: int) -> Segments:
    """
    Args:
        ends: where each document ends in the packed batch; no document goes over the end of a row.
        rows: rows of the batch.
        length: tokens of a row.
        chunk: tokens of a row on each rank.
        rank: whose chunk.
    """
    query_ends, key_ends, keys = [], [], []
    queries = kept = 0
    begins = [0, *ends[:-1]]
    for row in range(rows):
        first, last = row * length + rank * chunk, row * length + (rank + 1) * chunk
        mine = [(begin, end) for begin, end in zip(begins, ends, strict=True) if begin < last and end > first]
        for begin, end in mine:
            queries += min(end, last) - max(begin, first)
            kept += min(end, last) - begin
            query_ends.append(queries)
            key_ends.append(kept)
        keys.append((mine[0][0], last))
    return Segments(query_ends, key_ends, keys)
