"""Attention over rows spread over ranks, whose keys and values travel from rank to rank: ring attention.

Operators: torch_npu's `npu_fusion_attention` in TND layout for what a rank's queries see of one rank's keys, and
`npu_ring_attention_update`, which merges two such results by their softmax maxima and sums; on a SoC without it, Ascend
950, torch's own operators do. While a rank attends to the
keys it has, they are on their way to the next rank, so that no rank ever holds the keys of whole rows. In backward the
keys go round once more, and with them the sum of their gradients, which is home again after the last rank.

A row is cut into two chunks a rank: rank r of N has chunk r from the front and chunk r from the back, so that under a
causal mask all ranks have the same work (upstream's balancer "headtail"). In that order every rank's keys end before or
begin after another's queries: what is seen of them is, in each row, one span of the queries and one of the keys, those
of the document that goes over from one to the other, and all of their pairs.

Constraints: causal attention within documents; no window and no sinks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import ProcessGroup, _resolve_process_group

from torchtitan_npu import kernel_packages
from torchtitan_npu.converters import packed
from torchtitan_npu.converters.packed import Span, compressed_mask, last_offsets, tokens

_CAUSAL, _FULL = 3, 0  # sparse_mode of the operator


@dataclass(frozen=True)
class Block:
    """What the queries of a rank see of the keys of a rank: for each document, some queries and some keys."""

    queries: list[Span]
    """Among the rank's queries, rows one after another."""
    keys: list[Span]
    """Among the other rank's keys."""
    causal: bool
    """Whether a query sees the keys up to itself, as on the rank's own keys, or all."""

    @property
    def ends(self) -> tuple[list[int], list[int]]:
        """Where each document ends when the spans follow one another: among queries, among keys."""
        return _ends(self.queries), _ends(self.keys)


def _ends(spans: list[Span]) -> list[int]:
    ends, total = [], 0
    for begin, end in spans:
        total += end - begin
        ends.append(total)
    return ends


def chunks(rank: int, ranks: int, length: int) -> tuple[Span, Span]:
    """The two spans of a row of `length` tokens that a rank has, in the order of the row."""
    size = length // (2 * ranks)
    return (rank * size, (rank + 1) * size), (length - (rank + 1) * size, length - rank * size)


def _held_before(position: int, held: tuple[Span, Span]) -> int:
    """How many of the tokens held are before a position of the row."""
    return sum(min(max(position - begin, 0), end - begin) for begin, end in held)


def block(ends: list[int], rows: int, length: int, rank: int, other: int, ranks: int) -> Block:
    """What `rank` sees of the keys of `other`.

    Args:
        ends: where each document ends in the packed batch; no document goes over the end of a row.
        rows: rows of the batch.
        length: tokens of a row.
        rank: whose queries.
        other: whose keys.
        ranks: number of ranks.
    """
    queries, keys = [], []
    mine, theirs = chunks(rank, ranks, length), chunks(other, ranks, length)
    held = length // ranks
    # A rank before this one has keys before all its queries, and others after them; one behind it has keys before its
    # second chunk alone.
    first_query, last_key = (mine[0][0], theirs[0][1]) if other < rank else (mine[1][0], theirs[1][1])
    for begin, end in zip([0, *ends[:-1]], ends, strict=True):
        row, begin = divmod(begin, length)
        end -= row * length
        if rank != other and not (begin < last_key and first_query < end):
            continue
        start, stop = (begin, end) if rank == other else (first_query, last_key)
        seeing = row * held + _held_before(start, mine), row * held + _held_before(end, mine)
        seen = row * held + _held_before(begin, theirs), row * held + _held_before(stop, theirs)
        if seeing[0] < seeing[1]:
            queries.append(seeing)
            keys.append(seen)
    return Block(queries, keys, causal=rank == other)


@dataclass(frozen=True)
class Ring:
    """The ranks that share rows, in the order in which keys travel."""

    group: ProcessGroup
    rank: int
    ranks: int

    @classmethod
    def of(cls, name: str) -> "Ring":
        group = _resolve_process_group(name)
        return cls(group, group.rank(), group.size())

    def holder(self, step: int) -> int:
        """Whose keys this rank has after so many steps."""
        return (self.rank - step) % self.ranks

    def pass_on(self, x: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Send to the next rank; the result waits for what the rank before sends, of the same shape."""
        arriving = torch.empty_like(x)
        after, before = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, x, group=self.group, group_peer=after),
                dist.P2POp(dist.irecv, arriving, group=self.group, group_peer=before),
            ]
        )

        def arrived() -> torch.Tensor:
            for work in works:
                work.wait()
            return arriving

        return arrived


def _pattern(part: Block, device: torch.device) -> dict[str, Any]:
    query_ends, key_ends = part.ends
    mask = {"sparse_mode": _CAUSAL, "atten_mask": compressed_mask(device)} if part.causal else {"sparse_mode": _FULL}
    # A token's softmax statistics lie with it, so that those of spans can be taken out and put back.
    return {**mask, "actual_seq_qlen": query_ends, "actual_seq_kvlen": key_ends, "softmax_layout": "TND"}


Result = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Output [tokens, heads, width] in float32, row maxima and sums [tokens, heads, 8]."""


@cache
def _has_update() -> bool:
    """Whether the SoC has a kernel of `npu_ring_attention_update`."""
    return kernel_packages.family(torch.npu.get_device_name()) in ("ascend910b", "ascend910_93")


def _merge(before: Result, now: Result) -> Result:
    """Two results over different keys as one over both."""
    return _merge_fused(before, now) if _has_update() else _merge_composed(before, now)


def _merge_composed(before: Result, now: Result) -> Result:
    highest = torch.maximum(before[1], now[1])
    masses = [row_sum * (row_max - highest).exp() for _, row_max, row_sum in (before, now)]
    total = masses[0] + masses[1]
    shares = [(mass / total)[..., :1] for mass in masses]
    return before[0] * shares[0] + now[0] * shares[1], highest, total


def _merge_fused(before: Result, now: Result) -> Result:
    """The operator's TND layout wants widths of a multiple of 64; in its layout SBH, tokens of a batch of one, the
    statistics are [1, heads, tokens, 8]."""
    arguments = [
        x
        for output, *statistics in (before, now)
        for x in (output.flatten(1).unsqueeze(1), *(s.transpose(0, 1).unsqueeze(0).contiguous() for s in statistics))
    ]
    output, *statistics = torch.ops.npu.npu_ring_attention_update(*arguments, input_layout="SBH")
    row_max, row_sum = (s.squeeze(0).transpose(0, 1) for s in statistics)
    return output.view_as(before[0]), row_max, row_sum


@torch.library.custom_op("torchtitan_npu::ring_attention", mutates_args=())
def ring_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    offsets: torch.Tensor,
    scale: float,
    rows: int,
    group: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Causal attention of this rank's queries over the whole rows' documents.

    Args:
        query: [tokens, heads, width], the rank's chunks of each row.
        key: [tokens, key heads, width].
        value: [tokens, key heads, value width].
        offsets: where documents begin and end in the whole batch, [documents + 1].
        scale: of the scores.
        rows: rows of the batch.
        group: name of the process group of the ranks that share rows.

    Returns:
        Output [tokens, heads, value width], and the softmax's row maxima and sums, [tokens, heads, 8] in float32, for
        the gradient.
    """
    ring, ends = Ring.of(group), last_offsets.ends(offsets)
    length = query.shape[0] // rows * ring.ranks
    travelling = torch.cat((key, value), dim=-1)
    result: Result | None = None
    for step in range(ring.ranks):
        arrived = ring.pass_on(travelling) if step + 1 < ring.ranks else None
        part = block(ends, rows, length, ring.rank, ring.holder(step), ring.ranks)
        if part.queries:
            keys, values = tokens(travelling, part.keys).split([key.shape[-1], value.shape[-1]], dim=-1)
            output, *statistics = torch.ops.npu.npu_fusion_attention(
                tokens(query, part.queries),
                keys.contiguous(),
                values.contiguous(),
                query.shape[1],
                "TND",
                scale=scale,
                **_pattern(part, query.device),
            )[:3]
            now = output.float(), *statistics
            if result is None:  # the rank's own keys, of which every query sees some
                result = now
            else:
                merged = _merge(tuple(tokens(x, part.queries) for x in result), now)
                for whole, x in zip(result, merged, strict=True):
                    packed.put(whole, part.queries, x)
        if arrived is not None:
            travelling = arrived()
    assert result is not None
    return result[0].to(query.dtype), result[1], result[2]


@ring_attention.register_fake
def _(query, key, value, offsets, scale, rows, group):
    return packed.unfilled(query, value)


@torch.library.custom_op("torchtitan_npu::ring_attention_backward", mutates_args=())
def _ring_attention_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    row_max: torch.Tensor,
    row_sum: torch.Tensor,
    offsets: torch.Tensor,
    scale: float,
    rows: int,
    group: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of query, key and value. They are summed over ranks in float32."""
    ring, ends = Ring.of(group), last_offsets.ends(offsets)
    length = query.shape[0] // rows * ring.ranks
    travelling = torch.cat((key, value), dim=-1)
    of_query = torch.zeros_like(query, dtype=torch.float32)
    of_travelling = torch.zeros_like(travelling, dtype=torch.float32)
    sums_arrived: Callable[[], torch.Tensor] | None = None
    for step in range(ring.ranks):
        arrived = ring.pass_on(travelling) if step + 1 < ring.ranks else None
        part = block(ends, rows, length, ring.rank, ring.holder(step), ring.ranks)
        grads: list[torch.Tensor] = []
        if part.queries:
            keys, values = tokens(travelling, part.keys).split([key.shape[-1], value.shape[-1]], dim=-1)
            mine = (tokens(x, part.queries) for x in (query, grad, row_max, row_sum, output))
            queries, grad_of_part, part_max, part_sum, part_output = mine
            grads = torch.ops.npu.npu_fusion_attention_grad(
                queries,
                keys.contiguous(),
                values.contiguous(),
                grad_of_part,
                query.shape[1],
                "TND",
                softmax_max=part_max,
                softmax_sum=part_sum,
                attention_in=part_output,
                scale_value=scale,
                **_pattern(part, query.device),
            )
        if sums_arrived is not None:
            of_travelling = sums_arrived()
        if part.queries:
            packed.add(of_query, part.queries, grads[0])
            packed.add(of_travelling, part.keys, torch.cat(grads[1:3], dim=-1))
        sums_arrived = ring.pass_on(of_travelling)
        if arrived is not None:
            travelling = arrived()
    assert sums_arrived is not None
    of_key, of_value = sums_arrived().split([key.shape[-1], value.shape[-1]], dim=-1)
    return tuple(x.to(query.dtype).contiguous() for x in (of_query, of_key, of_value))


@_ring_attention_backward.register_fake
def _(grad, query, key, value, *rest):
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
    query, key, value, offsets, *ctx.settings = inputs
    ctx.save_for_backward(query, key, value, *output, offsets)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: torch.Tensor | None, *unused: torch.Tensor | None) -> tuple:
    if grad is None:
        # The other ranks would wait for this one: upstream's models use the output on all ranks or on none.
        return (None,) * 7
    *saved, offsets = ctx.saved_tensors
    return *_ring_attention_backward(grad.contiguous(), *saved, offsets, *ctx.settings), None, None, None, None


ring_attention.register_autograd(_backward, setup_context=_setup_context)
