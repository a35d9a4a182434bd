"""The arithmetic of attention, forward and backward, on [batch, heads, length, head size] in fp32.

Query heads come in groups that share a key/value head, so nothing is expanded. Queries are processed in blocks: a block
of scores stays in the cache, and keys that no query of the block sees are not computed.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

_UNBOUNDED = 2147483647
_BLOCK_SCORES = 1 << 18  # scores a block may hold
_LEAST_ROWS = 32
# What the operator stores as maximum and sum of a row that sees no key.
HIDDEN_MAX = torch.finfo(torch.float32).min
HIDDEN_SUM = torch.finfo(torch.float32).max


@dataclass(frozen=True, slots=True)
class Visibility:
    """Which keys a query sees: query i sees key j if first <= j - i <= last and no mask hides it.

    Attributes:
        first: lower bound of j - i, or None.
        last: upper bound of j - i, or None.
        mask: bool, True hides, broadcastable to [batch, heads, queries, keys]; or None.
    """

    first: int | None = None
    last: int | None = None
    mask: torch.Tensor | None = None

    def keys(self, rows: range, count: int) -> range:
        """The keys that any query of `rows` may see."""
        begin = 0 if self.first is None else rows.start + self.first
        end = count if self.last is None else rows.stop + self.last
        begin = min(max(begin, 0), count)
        return range(begin, max(min(end, count), begin))

    def hide(self, scores: torch.Tensor, rows: range, keys: range) -> None:
        """Sets the scores [B, N, rows, keys] of hidden keys to -inf."""
        if self.last is not None:  # only keys after what the first row sees
            begin = max(rows.start + self.last + 1, keys.start)
            if begin < keys.stop:
                ones = torch.ones(len(rows), keys.stop - begin, dtype=torch.bool)
                hidden = ones.triu_(rows.start + self.last + 1 - begin)
                scores[..., begin - keys.start :].masked_fill_(hidden, -math.inf)
        if self.first is not None:  # only keys before what the last row sees
            end = min(rows.stop - 1 + self.first, keys.stop)
            if end > keys.start:
                ones = torch.ones(len(rows), end - keys.start, dtype=torch.bool)
                hidden = ones.tril_(rows.start + self.first - 1 - keys.start)
                scores[..., : end - keys.start].masked_fill_(hidden, -math.inf)
        if self.mask is not None:
            scores.masked_fill_(_part(self.mask, rows, keys), -math.inf)


@dataclass(frozen=True, slots=True)
class Problem:
    """One attention over sequences of equal length.

    Attributes:
        q: queries [B, N, Sq, D].
        k: keys [B, Nkv, Sk, D].
        v: values [B, Nkv, Sk, Dv].
        scale: factor of the scores.
        sees: which keys a query sees.
        bias: added to the scaled scores, broadcastable to [B, N, Sq, Sk], or None.
        kept: bool [B, N, Sq, Sk], False drops the probability, or None.
        keep_probability: share of probabilities that are kept.
        sink: a further score of each head [N], with no value behind it, or None.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scale: float
    sees: Visibility
    bias: torch.Tensor | None = None
    kept: torch.Tensor | None = None
    keep_probability: float = 1.0
    sink: torch.Tensor | None = None

    @property
    def groups(self) -> int:
        """Query heads per key/value head."""
        return self.q.shape[1] // self.k.shape[1]

    def blocks(self) -> Iterator[tuple[range, range]]:
        """(queries, keys) block by block."""
        batch, heads, length, _ = self.q.shape
        rows = max(_LEAST_ROWS, _BLOCK_SCORES // max(batch * heads * self.k.shape[2], 1))
        if self.sees.first is None and self.sees.last is None:
            rows = max(rows, min(length, _BLOCK_SCORES * 8 // max(batch * heads * self.k.shape[2], 1)))
        for start in range(0, length, rows):
            block = range(start, min(start + rows, length))
            yield block, self.sees.keys(block, self.k.shape[2])


def _part(tensor: torch.Tensor | None, rows: range, keys: range) -> torch.Tensor | None:
    if tensor is None:
        return None
    row = slice(None) if tensor.shape[-2] == 1 else slice(rows.start, rows.stop)
    key = slice(None) if tensor.shape[-1] == 1 else slice(keys.start, keys.stop)
    return tensor[..., row, key]


def _by_group(x: torch.Tensor, groups: int, rows: range) -> torch.Tensor:
    """Rows of [B, N, S, D] as [B * Nkv, groups * rows, D]."""
    part = x[:, :, rows.start : rows.stop]
    return part.reshape(part.shape[0] * part.shape[1] // groups, groups * len(rows), part.shape[3])


def _flat(x: torch.Tensor, keys: range) -> torch.Tensor:
    part = x[:, :, keys.start : keys.stop]
    return part.reshape(-1, len(keys), part.shape[3])


def _scores(p: Problem, rows: range, keys: range, hide: bool = True) -> torch.Tensor:
    """Scores [B, N, rows, keys]; -inf where a key is hidden, unless that is left to the caller."""
    queries = _by_group(p.q, p.groups, rows) * p.scale
    flat = torch.bmm(queries, _flat(p.k, keys).transpose(1, 2))
    scores = flat.view(p.q.shape[0], p.q.shape[1], len(rows), len(keys))
    bias = _part(p.bias, rows, keys)
    if bias is not None:
        scores.add_(bias)
    if hide:
        p.sees.hide(scores, rows, keys)
    return scores


def _dropped(p: Problem, probabilities: torch.Tensor, rows: range, keys: range) -> torch.Tensor:
    """What is left of probabilities (or their gradients) after dropout."""
    if p.kept is None:
        return probabilities
    return probabilities.mul(_part(p.kept, rows, keys)).mul_(1 / p.keep_probability)


def _exponentials(p: Problem, rows: range, keys: range) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(exp(score - maximum), maximum, sum) of a block of rows."""
    fused = getattr(torch.ops.cann_emulator, "softmax", None)
    if fused and p.sink is None and p.sees.first is None and p.sees.mask is None:
        scores = _scores(p, rows, keys, hide=False)
        top, mass = (torch.empty(*scores.shape[:3], 1, dtype=torch.float32) for _ in range(2))
        last = len(keys) if p.sees.last is None else rows.start + p.sees.last - keys.start
        fused(scores, last, top, mass)
        unseen = p.sees.last is not None and last < 0
    else:
        scores = _scores(p, rows, keys)
        top = scores.amax(-1, keepdim=True) if keys else scores.new_full((*scores.shape[:3], 1), -math.inf)
        if p.sink is not None:
            top = torch.maximum(top, p.sink.view(1, -1, 1, 1))
        scores.sub_(top.masked_fill(top == -math.inf, 0.0)).exp_()
        mass = scores.sum(-1, keepdim=True)
        if p.sink is not None:
            mass += torch.exp(p.sink.view(1, -1, 1, 1) - top)
        unseen = True
    if unseen:
        hidden = top == -math.inf
        top.masked_fill_(hidden, HIDDEN_MAX)
        mass.masked_fill_(hidden, HIDDEN_SUM)
    return scores, top, mass


def forward(p: Problem) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(output [B, N, Sq, Dv], maximum [B, N, Sq], sum [B, N, Sq]) of the softmax over scores."""
    batch, heads, length, _ = p.q.shape
    out = torch.zeros(batch, heads, length, p.v.shape[3], dtype=torch.float32)
    highest = torch.full((batch, heads, length), HIDDEN_MAX, dtype=torch.float32)
    total = torch.full((batch, heads, length), HIDDEN_SUM, dtype=torch.float32)
    for rows, keys in p.blocks():
        if not keys and p.sink is None:
            continue
        exponentials, top, mass = _exponentials(p, rows, keys)
        weights = _by_group(_dropped(p, exponentials, rows, keys), p.groups, range(len(rows)))
        block = torch.bmm(weights, _flat(p.v, keys)).view(batch, heads, len(rows), -1)
        where = slice(rows.start, rows.stop)
        torch.div(block, mass, out=out[:, :, where])
        highest[:, :, where] = top.squeeze(-1)
        total[:, :, where] = mass.squeeze(-1)
    return out, highest, total


@dataclass(slots=True)
class Gradients:
    """Gradients of a `Problem`; `bias` and `sink` are None where the problem has none."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    bias: torch.Tensor | None = None
    sink: torch.Tensor | None = None


def backward(
    p: Problem, grad: torch.Tensor, out: torch.Tensor, highest: torch.Tensor, total: torch.Tensor
) -> Gradients:
    """Gradients from those of the output and from what `forward` returned."""
    if _is_plain(p):
        return _plain_backward(p, grad, out, highest, total)
    grads = Gradients(
        torch.zeros_like(p.q, memory_format=torch.contiguous_format),
        torch.zeros(p.k.shape[0] * p.k.shape[1], *p.k.shape[2:], dtype=torch.float32),
        torch.zeros(p.v.shape[0] * p.v.shape[1], *p.v.shape[2:], dtype=torch.float32),
    )
    overlap = torch.linalg.vecdot(grad, out).unsqueeze(-1)
    if p.sink is not None:
        share = torch.exp(p.sink.view(1, -1, 1) - highest) / total
        grads.sink = -(share.unsqueeze(-1) * overlap).sum((0, 2, 3))
    if p.bias is not None:
        grads.bias = torch.zeros(p.bias.shape, dtype=torch.float32)
    for rows, keys in p.blocks():
        if not keys:
            continue
        where = slice(rows.start, rows.stop)
        top, mass = highest[:, :, where].unsqueeze(-1), total[:, :, where].unsqueeze(-1)
        probabilities = _scores(p, rows, keys).sub_(top).exp_().div_(mass)
        grad_rows, queries = _by_group(grad, p.groups, rows), _by_group(p.q, p.groups, rows)
        keys_part, values_part = _flat(p.k, keys), _flat(p.v, keys)
        kept = _by_group(_dropped(p, probabilities, rows, keys), p.groups, range(len(rows)))
        grads.v[:, keys.start : keys.stop].baddbmm_(kept.transpose(1, 2), grad_rows)
        slope = torch.bmm(grad_rows, values_part.transpose(1, 2)).view(probabilities.shape)
        slope = _dropped(p, slope, rows, keys).sub_(overlap[:, :, where]).mul_(probabilities)
        target = _part(grads.bias, rows, keys)
        if target is not None:
            target += slope.sum_to_size(target.shape)
        flat = _by_group(slope.mul_(p.scale), p.groups, range(len(rows)))
        grads.q[:, :, where] = torch.bmm(flat, keys_part).view(*p.q.shape[:2], len(rows), -1)
        grads.k[:, keys.start : keys.stop].baddbmm_(flat.transpose(1, 2), queries)
    grads.k, grads.v = grads.k.view(p.k.shape), grads.v.view(p.v.shape)
    return grads


def _is_plain(p: Problem) -> bool:
    """Whether ATen's own fused gradient computes the same: no mask, or a causal one over equal
    lengths, and values as long as keys."""
    causal = p.sees.last == 0 and p.q.shape[2] == p.k.shape[2]
    visible = p.sees.first is None and p.sees.mask is None and (p.sees.last is None or causal)
    same_size = p.q.shape[3] == p.v.shape[3]
    extras = any(extra is not None for extra in (p.bias, p.kept, p.sink))
    return visible and same_size and not extras and p.q.numel() > 0 and p.k.numel() > 0


def _plain_backward(
    p: Problem, grad: torch.Tensor, out: torch.Tensor, highest: torch.Tensor, total: torch.Tensor
) -> Gradients:
    k, v = (x.repeat_interleave(p.groups, 1) if p.groups > 1 else x for x in (p.k, p.v))
    q, k_grad, v_grad = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, p.q, k, v, out, torch.log(total).add_(highest), 0.0, p.sees.last is not None, scale=p.scale
    )
    if p.groups > 1:
        k_grad, v_grad = (x.unflatten(1, (-1, p.groups)).sum(2) for x in (k_grad, v_grad))
    return Gradients(q, k_grad, v_grad)


def band(mode: int, queries: int, keys: int, before: int, after: int) -> tuple[int | None, int | None]:
    """(first, last) of `Visibility` for a sparse mode: 0 default, 2 left-up causal, 3 right-down causal, 4 band."""
    if mode == 2:
        return None, 0
    shift = 0 if mode == 0 else keys - queries  # the origin: first or last query and key coincide
    if mode == 3:
        return None, shift
    first = None if before >= _UNBOUNDED else shift - before
    last = None if after >= _UNBOUNDED else shift + after
    return first, last
