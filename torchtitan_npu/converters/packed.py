"""Documents packed into rows, as the attention operator wants them: ends as host integers, spans of tokens."""

import weakref
from collections.abc import Iterator
from functools import cache

import torch

Span = tuple[int, int]
"""Begin and end of some tokens in a packed batch."""

_MASK_SIDE = 2048  # the compressed mask's size, fixed by the operator for causal and band modes


class _LastOffsets:
    """Host copy of the offsets tensor seen last, found again by identity: one device read a step, not one a layer."""

    def __init__(self) -> None:
        self._tensor: weakref.ref[torch.Tensor] | None = None
        self._version = -1
        self._ends: list[int] = []

    def ends(self, offsets: torch.Tensor) -> list[int]:
        """Where each document ends. The first offset is always 0 and is not passed on."""
        seen = self._tensor() if self._tensor is not None else None
        version = offsets._version
        if seen is not offsets or self._version != version:
            self._ends = offsets.tolist()[1:]
            self._tensor, self._version = weakref.ref(offsets), version
        return self._ends


last_offsets = _LastOffsets()


@cache
def compressed_mask(device: torch.device) -> torch.Tensor:
    return torch.triu(torch.ones(_MASK_SIDE, _MASK_SIDE, dtype=torch.bool, device=device), diagonal=1)


def joined(spans: list[Span]) -> list[Span]:
    """The same tokens with spans that touch as one."""
    result: list[Span] = []
    for begin, end in spans:
        if result and result[-1][1] == begin:
            begin, _ = result.pop()
        result.append((begin, end))
    return result


def tokens(x: torch.Tensor, spans: list[Span] | None) -> torch.Tensor:
    """The tokens of these spans, one after another; all where None."""
    if spans is None:
        return x
    parts = [x[begin:end] for begin, end in joined(spans)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def add(whole: torch.Tensor, spans: list[Span], part: torch.Tensor) -> None:
    """Add to the tokens of these spans."""
    for place, piece in _pieces(whole, spans, part):
        place += piece


def put(whole: torch.Tensor, spans: list[Span], part: torch.Tensor) -> None:
    """Replace the tokens of these spans."""
    for place, piece in _pieces(whole, spans, part):
        place.copy_(piece)


def _pieces(whole: torch.Tensor, spans: list[Span], part: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The tokens of each span, in the whole and in the part that has nothing but these."""
    spans = joined(spans)
    for (begin, end), piece in zip(spans, part.split([end - begin for begin, end in spans]), strict=True):
        yield whole[begin:end], piece


def unfilled(query: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What attention gives, for tracing: output, and the softmax's row maxima and sums, float32 [tokens, heads, 8]."""
    statistics = query.new_empty((*query.shape[:2], 8), dtype=torch.float32)
    return query.new_empty((*query.shape[:2], value.shape[-1])), statistics, torch.empty_like(statistics)
