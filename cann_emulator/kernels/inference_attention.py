"""Fused attention for inference: PromptFlashAttention, IncreFlashAttention and FusedInferAttentionScore.

The versions are one operator with more or fewer arguments, so a call is read by argument name. What is implemented is
right for every mask and length; quantisation, shared prefixes and left padding are refused, never ignored.
"""

from dataclasses import dataclass
from functools import partial

import torch

from cann_emulator.kernels.attention_core import HIDDEN_MAX, Problem, Visibility, band, forward
from cann_emulator.kernels.registry import kernel, refuse, signatures

_OPERATORS = (
    "aclnnPromptFlashAttentionV3", "aclnnIncreFlashAttentionV4", "aclnnFusedInferAttentionScoreV2",
    "aclnnFusedInferAttentionScoreV3", "aclnnFusedInferAttentionScoreV4", "aclnnFusedInferAttentionScoreV5",
)  # fmt: skip
_SYNONYMS = {"pseShift": "pse", "blocktable": "blockTable"}
# Tensors that are not implemented: given, they would change the result.
_REFUSED = (
    "deqScale1", "quantScale1", "deqScale2", "quantScale2", "quantOffset2", "dequantScale1", "dequantScale2",
    "antiquantScale", "antiquantOffset", "queryPaddingSize", "kvPaddingSize", "keyAntiquantScale",
    "keyAntiquantOffset", "valueAntiquantScale", "valueAntiquantOffset", "keySharedPrefix", "valueSharedPrefix",
    "keyRopeAntiquantScale", "dequantScaleQuery",
)  # fmt: skip
# How a layout's tensor becomes [B, N, S, D]. TND and NTD have all sequences in one dimension: a batch of one.
_VIEWS = {
    "BNSD": lambda x, heads: x,
    "BSND": lambda x, heads: x.transpose(1, 2),
    "BSH": lambda x, heads: x.unflatten(-1, (heads, -1)).transpose(1, 2),
    "NBSD": lambda x, heads: x.transpose(0, 1),
    "TND": lambda x, heads: x.transpose(0, 1).unsqueeze(0),
    "NTD": lambda x, heads: x.unsqueeze(0),
    "NSD": lambda x, heads: x.unsqueeze(0),
}
_PACKED = ("TND", "NTD")


def _named(operator: str, args: tuple) -> dict:
    named = {}
    for (name, _), value in zip(signatures()[operator]["args"], args, strict=True):
        short = name.removesuffix("Optional")
        short = _SYNONYMS.get(short, short)
        if isinstance(value, torch.Tensor) and value.numel() == 0 and short not in ("attentionOut", "softmaxLse"):
            value = value if short in ("query", "key", "value") else None
        if short in _REFUSED and value is not None:
            refuse(561000, f"{operator}: {name} is given; this part of the operator is not implemented")
        named[short] = value
    return named


def _lengths(given: list[int] | None, count: int, whole: int, packed: bool, name: str) -> list[tuple[int, int]]:
    """(begin, length) of every sequence."""
    if packed:
        if not given:
            refuse(161002, f"layouts TND and NTD need {name}")
        begins = [0, *given[:-1]]
        if any(end < begin for begin, end in zip(begins, given, strict=True)) or given[-1] > whole:
            refuse(
                161002, f"{name} is {given}; it holds where each sequence ends and must not decrease or exceed {whole}"
            )
        return [(begin, end - begin) for begin, end in zip(begins, given, strict=True)]
    lengths = [whole] * count if not given else list(given) * count if len(given) == 1 else list(given[:count])
    if len(lengths) != count or any(not 0 <= length <= whole for length in lengths):
        refuse(161002, f"{name} is {given}; it holds a length up to {whole} for each of {count} sequences")
    return [(0, length) for length in lengths]


@dataclass(frozen=True, slots=True)
class _Keys:
    """Keys or values of all sequences."""

    tensors: list[torch.Tensor]
    layout: str
    heads: int
    pages: torch.Tensor | None

    def of(self, index: int, begin: int, length: int) -> torch.Tensor:
        """Those of one sequence, as [1, N, S, D]."""
        if self.pages is not None:
            cache = self.tensors[0]
            blocks = cache[self.pages[index].clamp(min=0).long()]
            if cache.dim() == 3:  # [pages, page size, heads * size]
                rows = blocks.flatten(0, 1).unflatten(-1, (self.heads, -1)).transpose(0, 1)
            elif cache.dim() == 4 and cache.shape[1] == self.heads:  # [pages, heads, page size, size]
                rows = blocks.transpose(0, 1).flatten(1, 2)
            else:
                refuse(161002, f"paged keys have shape {list(cache.shape)}; with {self.heads} heads they are "
                               "[pages, page size, heads * size] or [pages, heads, page size, size]")  # fmt: skip
            return rows[:, :length].unsqueeze(0)
        if len(self.tensors) > 1:
            return _VIEWS[self.layout](self.tensors[index], self.heads)[:, :, :length]
        whole = _VIEWS[self.layout](self.tensors[0], self.heads)
        if self.layout in _PACKED:
            return whole[:, :, begin : begin + length]
        return whole[index : index + 1, :, :length]

    def longest(self) -> int:
        if self.pages is not None:
            size = self.tensors[0].shape[1] if self.tensors[0].dim() == 3 else self.tensors[0].shape[2]
            return size * self.pages.shape[1]
        return max(_VIEWS[self.layout](tensor, self.heads).shape[2] for tensor in self.tensors)


def _full_mask(mask: torch.Tensor, index: int, queries: int, keys: int, begin: int = 0) -> torch.Tensor:
    """One sequence's part of an uncompressed mask, as [1, N or 1, queries or 1, keys]."""
    if mask.dim() == 2:
        by_batch = queries == 1 and mask.shape[0] != 1
        part = mask[index : index + 1] if by_batch else mask
        part = part.view(1, 1, *part.shape)
    elif mask.dim() == 3:
        part = mask[index if mask.shape[0] > 1 else 0].view(1, 1, *mask.shape[1:])
    else:
        part = mask[index : index + 1] if mask.shape[0] > 1 else mask
    rows = part.shape[-2]
    if (rows != 1 and rows < queries) or part.shape[-1] < keys or (rows == 1 and queries > 1):
        refuse(161002, f"attenMask has shape {list(mask.shape)}; sequence {index} needs {queries} x {keys}")
    return part[..., : min(rows, queries), :keys].bool()


def _visibility(args: dict, index: int, queries: int, keys: int) -> Visibility:
    mask, mode = args.get("attenMask"), args.get("sparseMode", 0)
    if mask is None:
        if mode in (1, 2, 3, 4):
            refuse(161002, f"sparseMode {mode} needs attenMask")
        return Visibility()
    if mask.dtype not in (torch.bool, torch.int8, torch.uint8):
        refuse(161002, f"attenMask has dtype {mask.dtype}; it is bool, int8 or uint8")
    if mode in (2, 3, 4):
        if tuple(mask.shape[-2:]) != (2048, 2048):
            refuse(161002, f"attenMask has shape {list(mask.shape)}; sparseMode {mode} takes [2048, 2048]")
        return Visibility(*band(mode, queries, keys, args["preTokens"], args["nextTokens"]))
    limits: tuple[int | None, int | None] = (None, None)
    if mode == 0 and "preTokens" in args:
        limits = band(0, queries, keys, args["preTokens"], args["nextTokens"])
    return Visibility(*limits, _full_mask(mask, index, queries, keys))


def _check(args: dict, query: torch.Tensor, keys: _Keys, values: _Keys, heads: int) -> None:
    if query.dtype not in (torch.float16, torch.bfloat16):
        refuse(161002, f"query has dtype {query.dtype}; it is float16 or bfloat16")
    for name, part in (("key", keys), ("value", values)):
        if any(tensor.dtype != query.dtype for tensor in part.tensors):
            refuse(561000, f"{name} has dtype {part.tensors[0].dtype}, query {query.dtype}: quantised keys and values "
                           "are not implemented")  # fmt: skip
    if heads <= 0 or keys.heads <= 0 or heads % keys.heads:
        refuse(161002, f"numHeads is {heads}, numKeyValueHeads {keys.heads}; the former is a multiple of the latter")
    if args.get("sparseMode", 0) not in (0, 1, 2, 3, 4):
        refuse(161002, f"sparseMode is {args['sparseMode']}; it is 0 to 4")


def _attend(operator: str, *arguments) -> None:
    args = _named(operator, arguments)
    layout, _, out_layout = (args["inputLayout"] or "").partition("_")
    out_layout = out_layout or layout
    if layout not in _VIEWS or out_layout not in _VIEWS:
        refuse(161002, f"inputLayout is {args['inputLayout']!r}; its parts are among {', '.join(_VIEWS)}")
    heads = args["numHeads"]
    key_heads = args.get("numKeyValueHeads") or heads
    listed = [x if isinstance(x, list) else [x] for x in (args["key"], args["value"])]
    keys, values = (_Keys(tensors, layout, key_heads, args.get("blockTable")) for tensors in listed)
    query = args["query"]
    _check(args, query, keys, values, heads)
    packed = layout in _PACKED
    view = _VIEWS[layout](query, heads)
    if view.shape[1] != heads:
        refuse(161002, f"numHeads is {heads}, but query of layout {layout} has {view.shape[1]} heads")
    given = args.get("actualSeqLengths")
    given_keys = args.get("actualSeqLengthsKv", None if operator != "aclnnIncreFlashAttentionV4" else given)
    if operator == "aclnnIncreFlashAttentionV4":
        given = None
    count = len(given or []) if packed else view.shape[0]
    query_parts = _lengths(given, count, view.shape[2], packed, "actualSeqLengths")
    key_parts = _lengths(given_keys, count, keys.longest(), packed and keys.pages is None, "actualSeqLengthsKv")
    out = _VIEWS[out_layout](args["attentionOut"], heads)
    out.zero_()
    wanted = args.get("softmaxLse") if args.get("softmaxLseFlag") else None
    ropes = [args.get("queryRope"), args.get("keyRope")]
    for index, ((q_begin, q_length), (k_begin, k_length)) in enumerate(zip(query_parts, key_parts, strict=True)):
        if not q_length:
            continue
        batch = 0 if packed else index
        rows = (slice(batch, batch + 1), slice(None), slice(q_begin, q_begin + q_length))
        q, k = view[rows], keys.of(index, k_begin, k_length)
        if ropes[0] is not None and ropes[1] is not None:
            rope_keys = _Keys([ropes[1]], layout, key_heads, args.get("blockTable"))
            q = torch.cat((q, _VIEWS[layout](ropes[0], heads)[rows]), -1)
            k = torch.cat((k, rope_keys.of(index, k_begin, k_length)), -1)
        bias = args.get("pse")
        if bias is not None:
            bias = bias[index : index + 1] if bias.shape[0] > 1 else bias
            bias = bias[..., :q_length, :k_length].float()
        sink = args.get("learnableSink")
        problem = Problem(
            q.float(),
            k.float(),
            values.of(index, k_begin, k_length).float(),
            args["scaleValue"],
            _visibility(args, index, q_length, k_length),
            bias,
            sink=None if sink is None else sink.float(),
        )
        result, highest, total = forward(problem)
        out[rows].copy_(result)
        if wanted is not None:
            lse = torch.where(highest == HIDDEN_MAX, float("inf"), torch.log(total) + highest)
            target = wanted.transpose(0, 1).unsqueeze(0) if packed else wanted
            target[rows].copy_(lse.unsqueeze(-1))


for _name in _OPERATORS:
    kernel(_name)(partial(_attend, _name))
