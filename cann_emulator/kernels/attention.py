"""Fused attention for training: aclnnFlashAttentionScore, its VarLen forms, and their gradients.

All versions are one operator with more or fewer arguments, so a call is read by argument name. `inputLayout` says how
query, key and value lie: BNSD, BSND, BSH, SBH, or TND, where sequences of different lengths follow one another and
`actualSeqQLen`/`actualSeqKvLen` hold where each ends. A set bit of `attenMask` hides a key; without a mask every key is
seen, whatever `sparseMode` says.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from cann_emulator.kernels.attention_core import Problem, Visibility, backward, band, forward
from cann_emulator.kernels.dropout import unpack
from cann_emulator.kernels.precision import deliver
from cann_emulator.kernels.random import generator
from cann_emulator.kernels.registry import kernel, refuse, signatures

_FORWARD = (
    "aclnnFlashAttentionScore", "aclnnFlashAttentionScoreV2", "aclnnFlashAttentionScoreV3",
    "aclnnFlashAttentionScoreV4", "aclnnFlashAttentionVarLenScore", "aclnnFlashAttentionVarLenScoreV2",
    "aclnnFlashAttentionVarLenScoreV3", "aclnnFlashAttentionVarLenScoreV4", "aclnnFlashAttentionVarLenScoreV5",
)  # fmt: skip
_BACKWARD = (
    "aclnnFlashAttentionScoreGrad", "aclnnFlashAttentionScoreGradV2", "aclnnFlashAttentionScoreGradV3",
    "aclnnFlashAttentionScoreGradV4", "aclnnFlashAttentionUnpaddingScoreGrad",
    "aclnnFlashAttentionUnpaddingScoreGradV2", "aclnnFlashAttentionUnpaddingScoreGradV3",
    "aclnnFlashAttentionUnpaddingScoreGradV4", "aclnnFlashAttentionUnpaddingScoreGradV5",
)  # fmt: skip
# Names that differ between versions, and the one used here.
_SYNONYMS = {
    "keyIn": "key", "sinkIn": "sink", "keyInRope": "keyRope", "pseShift": "realShift", "softmaxIn": "softmaxOut",
    "attentionIn": "attentionOut", "dScaleQ": "dScale", "dScaleK": "dScale", "dScaleV": "dScale",
    "dScaleDy": "dScale", "dScaleO": "dScale", "softmaxInLayout": "softmaxOutLayout",
}  # fmt: skip
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_COMPRESSED = {2: (2048, 2048), 3: (2048, 2048), 4: (2048, 2048), 6: (3072, 2048)}
_ALIBI_ROWS = 1024


def _named(operator: str, args: tuple) -> dict:
    """The arguments by name, without the endings that mark an optional one or an output."""
    named: dict = {}
    for (name, _), value in zip(signatures()[operator]["args"], args, strict=True):
        short = name.removesuffix("Optional")
        short = _SYNONYMS.get(short, short)
        if short == "dScale" and value is not None:
            refuse(561000, f"{operator}: {name} is given; quantised attention is not implemented")
        empty = isinstance(value, torch.Tensor) and value.numel() == 0
        named[short] = None if empty and name.endswith("Optional") else value
    return named


def _view(tensor: torch.Tensor, order: str, heads: int) -> torch.Tensor:
    """A tensor of a layout as [B, N, S, D]."""
    if order in ("BSH", "SBH"):
        split = tensor.unflatten(-1, (heads, -1))
        return split.transpose(1, 2) if order == "BSH" else split.permute(1, 2, 0, 3)
    return tensor if order == "BNSD" else tensor.transpose(1, 2)


def _as_fp32(view: torch.Tensor) -> torch.Tensor:
    """A contiguous fp32 tensor, by one copy at most."""
    if view.dtype == torch.float32 and view.is_contiguous():
        return view
    return torch.empty(view.shape, dtype=torch.float32).copy_(view)


def _lengths(ends: list[int], tokens: int, name: str) -> list[tuple[int, int]]:
    """(begin, length) of each sequence from where each ends; zeros at the tail mark sequences that are not computed."""
    ends = list(ends)
    while ends and ends[-1] == 0 and len(ends) > 1:
        ends.pop()
    begins = [0, *ends[:-1]]
    if any(end < begin for begin, end in zip(begins, ends, strict=True)):
        refuse(161002, f"{name} is {ends}; it must not decrease (it holds where each sequence ends)")
    if ends and ends[-1] > tokens:
        refuse(161002, f"{name} ends at {ends[-1]}, but the tensor has {tokens} tokens")
    return [(begin, end - begin) for begin, end in zip(begins, ends, strict=True)]


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive sequences of equal length, or a whole batch.

    Attributes:
        queries: (begin, length, count) of the query sequences.
        keys: the same for the key sequences.
        first: number of the first sequence.
        offset: scores before this run, which is where its dropout bits begin.
    """

    queries: tuple[int, int, int]
    keys: tuple[int, int, int]
    first: int
    offset: int


class _Call:
    """One call, checked and read."""

    def __init__(self, operator: str, args: tuple) -> None:
        self.operator = operator
        self.args = _named(operator, args)
        self.order: str = self.args["inputLayout"] or ""
        self.heads: int = self.args["headNum"]
        self.mode: int = self.args["sparseMode"]
        self._check()
        self.q, self.k = self._with_rope("query"), self._with_rope("key")
        self.v = self.args["value"]

    def _with_rope(self, name: str) -> torch.Tensor:
        rope = self.args.get(f"{name}Rope")
        return self.args[name] if rope is None else torch.cat((self.args[name], rope), dim=-1)

    def _check(self) -> None:
        args, order = self.args, self.order
        query, key, value = args["query"], args["key"], args["value"]
        rank = {"BNSD": 4, "BSND": 4, "BSH": 3, "SBH": 3, "TND": 3}.get(order)
        if rank is None:
            refuse(161002, f"inputLayout is {order!r}; it is BNSD, BSND, BSH, SBH or TND")
        for name, tensor in (("query", query), ("key", key), ("value", value)):
            if tensor.dtype not in _DTYPES or tensor.dtype != query.dtype:
                refuse(
                    161002,
                    f"{name} has dtype {tensor.dtype}, query {query.dtype}; both must be the same one of float16, "
                    "bfloat16 and float32",
                )
            if tensor.dim() != rank:
                refuse(161002, f"{name} has {tensor.dim()} dimensions; layout {order} has {rank}")
        if not 0 < args["keepProb"] <= 1:
            refuse(161002, f"keepProb is {args['keepProb']}; it must be in (0, 1]")
        if args.get("paddingMask") is not None:
            refuse(161002, "paddingMaskOptional must be null: it is not supported")
        self._check_heads(query, key, value)
        if order == "TND" and (not args.get("actualSeqQLen") or not args.get("actualSeqKvLen")):
            refuse(161002, "layout TND needs actualSeqQLen and actualSeqKvLen")
        self._check_mask()

    def _check_heads(self, query, key, value) -> None:
        heads, order = self.heads, self.order
        if heads <= 0:
            refuse(161002, f"headNum is {heads}; it must be positive")
        if order in ("BSH", "SBH"):
            if query.shape[-1] % heads:
                refuse(161002, f"headNum is {heads}, which does not divide query's last dimension {query.shape[-1]}")
            size = query.shape[-1] // heads
            if size and key.shape[-1] % size:
                refuse(161002, f"key's last dimension {key.shape[-1]} is not a multiple of the head size {size}")
            shared = key.shape[-1] // size if size else heads
        else:
            axis = {"BNSD": 1, "BSND": 2, "TND": 1}[order]
            if query.shape[axis] != heads:
                refuse(161002, f"headNum is {heads}, but query of layout {order} has {query.shape[axis]} heads")
            if key.shape[-1] != query.shape[-1]:
                refuse(161002, f"key's head size {key.shape[-1]} differs from query's {query.shape[-1]}")
            if value.shape[axis] != key.shape[axis]:
                refuse(161002, f"value has {value.shape[axis]} heads, key {key.shape[axis]}")
            if value.shape[-1] > key.shape[-1]:
                refuse(161002, f"value's head size {value.shape[-1]} exceeds key's {key.shape[-1]}")
            shared = key.shape[axis]
        if shared == 0 or heads % shared:
            refuse(161002, f"query has {heads} heads, key {shared}; the former must be a multiple of the latter")
        self.key_heads = shared
        batch = {"BNSD": 0, "BSND": 0, "BSH": 0, "SBH": 1}.get(order)
        if batch is not None and not query.shape[batch] == key.shape[batch] == value.shape[batch]:
            refuse(161002, f"batch sizes differ: {query.shape[batch]}, {key.shape[batch]}, {value.shape[batch]}")
        length = {"BNSD": 2, "BSND": 1, "BSH": 1, "SBH": 0, "TND": 0}[order]
        if key.shape[length] != value.shape[length]:
            refuse(161002, f"key has length {key.shape[length]}, value {value.shape[length]}")

    def _check_mask(self) -> None:
        mask, mode = self.args.get("attenMask"), self.mode
        last = 8 if self.order == "TND" else 6
        if not 0 <= mode <= last or (self.order == "TND" and mode == 5):
            refuse(161002, f"sparseMode is {mode}; layout {self.order} allows 0 to {last}, TND not 5")
        if mask is None:
            return
        if mask.dtype not in (torch.bool, torch.uint8):
            refuse(161002, f"attenMask has dtype {mask.dtype}; it is bool or uint8")
        if mode in (7, 8):
            refuse(561000, f"sparseMode {mode} (sequences cut outside the operator) is not implemented")
        if mode in (5, 6) and not self.args.get("prefix"):
            refuse(161002, f"sparseMode {mode} needs prefix")
        wanted = _COMPRESSED.get(mode)
        if wanted is None:
            return
        if tuple(mask.shape[-2:]) != wanted:
            refuse(
                161002,
                f"attenMask has shape {list(mask.shape)}; sparseMode {mode} takes the compressed mask of "
                f"shape {list(wanted)}",
            )
        corner = mask[(0,) * (mask.dim() - 2)]
        if mode != 6 and (bool(corner[1, 0]) or not bool(corner[0, 1])):
            refuse(
                161002,
                f"attenMask of sparseMode {mode} must be 1 above the diagonal and 0 elsewhere "
                "(torch.triu(torch.ones(2048, 2048), 1)), 1 hiding a key",
            )

    # Runs of sequences

    def runs(self) -> Iterator[_Run]:
        if self.order != "TND":
            batch, length = {"BNSD": (0, 2), "BSND": (0, 1), "BSH": (0, 1), "SBH": (1, 0)}[self.order]
            count = self.q.shape[batch]
            if count:
                yield _Run((0, self.q.shape[length], count), (0, self.k.shape[length], count), 0, 0)
            return
        queries = _lengths(self.args["actualSeqQLen"], self.q.shape[0], "actualSeqQLen")
        keys = _lengths(self.args["actualSeqKvLen"], self.k.shape[0], "actualSeqKvLen")
        if len(self.args["actualSeqQLen"]) != len(self.args["actualSeqKvLen"]):
            refuse(161002, "actualSeqQLen and actualSeqKvLen name different numbers of sequences")
        pairs = list(zip(queries, keys, strict=False))
        start = offset = 0
        while start < len(pairs):
            (q_begin, q_length), (k_begin, k_length) = pairs[start]
            stop = start
            while stop < len(pairs) and (pairs[stop][0][1], pairs[stop][1][1]) == (q_length, k_length):
                stop += 1
            count = stop - start
            if q_length:
                yield _Run((q_begin, q_length, count), (k_begin, k_length, count), start, offset)
            offset += count * self.heads * q_length * k_length
            start = stop

    def view(self, tensor: torch.Tensor, part: tuple[int, int, int], heads: int) -> torch.Tensor:
        """The part of a tensor that belongs to a run, as [B, N, S, D]."""
        begin, length, count = part
        if self.order != "TND":
            return _view(tensor, self.order, heads)
        return tensor[begin : begin + length * count].unflatten(0, (count, length)).transpose(1, 2)

    def statistics(self, tensor: torch.Tensor, run: _Run) -> torch.Tensor:
        """The part of softmaxMax or softmaxSum that belongs to a run, as [B, N, S, 8].

        With TND each sequence's part lies as [N, S, 8], unless softmaxOutLayout is "same_as_input".
        """
        begin, length, count = run.queries
        if self.order != "TND":
            return tensor
        part = tensor[begin : begin + length * count]
        if (self.args.get("softmaxOutLayout") or "") == "same_as_input":
            return part.unflatten(0, (count, length)).transpose(1, 2)
        return part.view(count, self.heads, length, tensor.shape[-1])

    # What the softmax sees

    def problem(self, run: _Run) -> Problem:
        _, queries, count = run.queries
        keys = run.keys[1]
        return Problem(
            _as_fp32(self.view(self.q, run.queries, self.heads)),
            _as_fp32(self.view(self.k, run.keys, self.key_heads)),
            _as_fp32(self.view(self.v, run.keys, self.key_heads)),
            self.args["scaleValue"],
            self._visibility(run),
            self._bias(run),
            self._kept(run.offset, (count, self.heads, queries, keys)),
            self.args["keepProb"],
            self.args.get("sink"),
        )

    def _visibility(self, run: _Run) -> Visibility:
        mask, mode = self.args.get("attenMask"), self.mode
        _, queries, count = run.queries
        keys = run.keys[1]
        if mask is None:
            return Visibility()
        if mode in (2, 3, 4):
            return Visibility(*band(mode, queries, keys, self.args["preTokens"], self.args["nextTokens"]))
        if mode == 6:
            lengths = self.args["prefix"][run.first : run.first + count]
            prefix = torch.tensor(lengths, dtype=torch.int64).view(-1, 1, 1, 1)
            column, row = torch.arange(keys), torch.arange(queries).view(-1, 1)
            return Visibility(mask=(column > row + (keys - queries)) & (column >= prefix))
        shape = tuple(mask.shape)
        if self.order == "TND":
            if mask.dim() != 2 or shape[0] < queries or shape[1] < keys:
                refuse(
                    161002,
                    f"attenMask has shape {list(shape)}; TND takes one mask [max Sq, max Skv], here at least "
                    f"[{queries}, {keys}]",
                )
            mask = mask[:queries, :keys]
        elif shape[-2:] != (queries, keys) or (
            mask.dim() != 2 and not (mask.dim() == 4 and shape[0] in (1, count) and shape[1] in (1, self.heads))
        ):
            refuse(
                161002,
                f"attenMask has shape {list(shape)}; allowed are [B,N,S,S], [B,1,S,S], [1,1,S,S] and [S,S] with "
                f"S,S = {queries},{keys}",
            )
        limits = band(0, queries, keys, self.args["preTokens"], self.args["nextTokens"]) if mode == 0 else (None, None)
        return Visibility(*limits, mask if mask.dtype == torch.bool else mask.bool())

    def _kept(self, offset: int, shape: tuple[int, ...]) -> torch.Tensor | None:
        keep, mask = self.args["keepProb"], self.args.get("dropMask")
        if keep == 1:
            return None
        count = math.prod(shape)
        if mask is not None:
            return unpack(mask, offset + count)[offset:].view(shape)
        if "seed" not in self.args:
            refuse(161002, f"keepProb is {keep}, but dropMaskOptional is null")
        draws = generator(self.args["seed"], self.args["offset"]).random(offset + count, dtype="float32")
        return torch.from_numpy(draws[offset:] < keep).view(shape)

    # Position bias

    def _pse_type(self) -> int:
        return self.args.get("pseType", 1)

    def _bias(self, run: _Run) -> torch.Tensor | None:
        pse, kind = self.args.get("realShift"), self._pse_type()
        if pse is None:
            return None
        queries, keys = run.queries[1], run.keys[1]
        if kind in (2, 3):
            return self._slopes(pse, queries, keys, kind)
        if self.order == "TND":
            refuse(561000, "a position bias (realShift) with layout TND is not implemented")
        bias = pse.float()
        if pse.shape[-2] == _ALIBI_ROWS and queries > _ALIBI_ROWS:
            bias = self._expand_alibi(bias, queries, keys)
        fits = bias.dim() == 4 and bias.shape[1] == self.heads and bias.shape[0] in (1, run.queries[2])
        if not fits or bias.shape[2] not in (1, queries) or bias.shape[3] != keys:
            refuse(
                161002,
                f"realShift has shape {list(pse.shape)}; allowed are [B,N,S,S], [B,N,1,Skv], [1,N,S,S] and the last "
                f"{_ALIBI_ROWS} rows of an alibi bias",
            )
        return bias * self.args["scaleValue"] if kind == 1 else bias

    def _slopes(self, pse: torch.Tensor, queries: int, keys: int, kind: int) -> torch.Tensor:
        """Alibi made from a slope per head: -slope * |i - j|, or with its square root."""
        first = [(self.args.get(name) or [0])[0] for name in ("qStartIdx", "kvStartIdx")]
        distance = (torch.arange(queries).view(-1, 1) + first[0] - torch.arange(keys) - first[1]).abs().float()
        slopes = pse.float().reshape(-1, self.heads, 1, 1)
        return -slopes * (distance.sqrt() if kind == 3 else distance)

    @staticmethod
    def _expand_alibi(pse: torch.Tensor, queries: int, keys: int) -> torch.Tensor:
        """All rows of an alibi bias from its last ones: it depends on the distance alone."""
        lead = queries - _ALIBI_ROWS
        row = torch.arange(queries).view(-1, 1)
        column = (torch.arange(keys) + (lead - row).clamp(min=0)).clamp(max=keys - 1)
        return pse[:, :, (row - lead).clamp(min=0), column]


def _score(operator: str, *args) -> None:
    call = _Call(operator, args)
    out = call.args["attentionOutOut"]
    highest, total = call.args["softmaxMaxOut"], call.args["softmaxSumOut"]
    if call.order == "TND" and call.args["actualSeqQLen"][-1] != call.q.shape[0]:
        out.zero_()  # tokens that belong to no sequence
    for run in call.runs():
        result, top, mass = forward(call.problem(run))
        call.view(out, run.queries, call.heads).copy_(result)
        call.statistics(highest, run).copy_(top.unsqueeze(-1))
        call.statistics(total, run).copy_(mass.unsqueeze(-1))


def _score_grad(operator: str, *args) -> None:
    call = _Call(operator, args)
    named = call.args
    outputs = {name: named[name] for name in ("dqOut", "dkOut", "dvOut")}
    ropes = {name: named.get(name) for name in ("dqRopeOut", "dkRopeOut")}
    sink = torch.zeros(call.heads, dtype=torch.float32) if named.get("sink") is not None else None
    pse, dpse = named.get("realShift"), named.get("dpseOut")
    for tensor in (*outputs.values(), *ropes.values()):
        if tensor is not None and call.order == "TND":
            tensor.zero_()
    for run in call.runs():
        problem = call.problem(run)
        grads = backward(
            problem,
            _as_fp32(call.view(named["dy"], run.queries, call.heads)),
            _as_fp32(call.view(named["attentionOut"], run.queries, call.heads)),
            call.statistics(named["softmaxMax"], run)[..., 0],
            call.statistics(named["softmaxSum"], run)[..., 0],
        )
        if sink is not None and grads.sink is not None:
            sink += grads.sink
        for name, rope, grad, part, heads in (
            ("dqOut", "dqRopeOut", grads.q, run.queries, call.heads),
            ("dkOut", "dkRopeOut", grads.k, run.keys, call.key_heads),
            ("dvOut", None, grads.v, run.keys, call.key_heads),
        ):
            target = call.view(outputs[name], part, heads)
            target.copy_(grad[..., : target.shape[-1]])
            if rope and ropes[rope] is not None and grad.shape[-1] > target.shape[-1]:
                call.view(ropes[rope], part, heads).copy_(grad[..., target.shape[-1] :])
        if grads.bias is not None and dpse is not None and dpse.numel() and pse is not None:
            if call._pse_type() not in (0, 1) or grads.bias.shape != dpse.shape:
                continue  # slopes and compressed biases get no gradient
            deliver(dpse, grads.bias * named["scaleValue"] if call._pse_type() == 1 else grads.bias)
    deliver(named.get("dsinkOut"), sink)


for _name in _FORWARD:
    kernel(_name)(partial(_score, _name))
for _name in _BACKWARD:
    kernel(_name)(partial(_score_grad, _name))
