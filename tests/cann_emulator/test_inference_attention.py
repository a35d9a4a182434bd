"""Attention for inference against plain attention: masks of any length, lengths, pages, and what is refused."""

import pytest
import torch
import torch_npu

B, N, NKV, D = 2, 4, 2, 16
DTYPE = torch.float16
TOLERANCE = 4e-3


def values(*shapes):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator).to(DTYPE) for shape in shapes]


def reference(q, k, v, scale, hidden=None):
    q, k, v = q.float(), k.float().repeat_interleave(q.shape[1] // k.shape[1], 1), v.float()
    v = v.repeat_interleave(q.shape[1] // v.shape[1], 1)
    scores = q @ k.transpose(-1, -2) * scale
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def close(actual, expected):
    torch.testing.assert_close(actual.cpu().float(), expected.float(), rtol=TOLERANCE, atol=TOLERANCE)


def test_a_mask_counts_past_512_keys():
    """One query, 4096 keys, all but the first 600 hidden."""
    q, k, v = values((1, N, 1, D), (1, N, 4096, D), (1, N, 4096, D))
    mask = torch.ones(1, 1, 1, 4096, dtype=torch.bool)
    mask[..., :600] = False
    out = torch_npu.npu_fused_infer_attention_score(
        q.npu(), k.npu(), v.npu(), num_heads=N, input_layout="BNSD", scale=0.25, atten_mask=mask.npu()
    )[0]
    close(out, reference(q, k, v, 0.25, mask)[0])


def test_softmax_is_applied_without_a_mask_in_packed_layout():
    q, k, v = values((30, N, D), (30, N, D), (30, N, D))
    out, lse = torch_npu.npu_fused_infer_attention_score(
        q.npu(), k.npu(), v.npu(), num_heads=N, input_layout="TND", scale=1.0, sparse_mode=0,
        actual_seq_lengths=[10, 30], actual_seq_lengths_kv=[10, 30], softmax_lse_flag=True,
    )  # fmt: skip
    for begin, end in ((0, 10), (10, 30)):
        parts = [t[begin:end].transpose(0, 1).unsqueeze(0) for t in (q, k, v)]
        expected, expected_lse = reference(*parts, 1.0)
        close(out[begin:end], expected[0].transpose(0, 1))
        close(lse[begin:end, :, 0], expected_lse[0].T)


@pytest.mark.parametrize("mode, bounds", [(2, (None, 0)), (3, (None, 20)), (4, (13, 23))])
def test_compressed_masks(mode, bounds):
    q, k, v = values((B, N, 40, D), (B, NKV, 60, D), (B, NKV, 60, D))
    distance = torch.arange(60) - torch.arange(40).view(-1, 1)
    hidden = distance > bounds[1]
    if bounds[0] is not None:
        hidden |= distance < bounds[0]
    mask = torch.ones(2048, 2048, dtype=torch.bool).triu_(1)
    out = torch_npu.npu_fused_infer_attention_score(
        q.npu(), k.npu(), v.npu(), num_heads=N, num_key_value_heads=NKV, input_layout="BNSD", scale=0.25,
        atten_mask=mask.npu(), sparse_mode=mode, pre_tokens=7, next_tokens=3,
    )[0]  # fmt: skip
    close(out, reference(q, k, v, 0.25, hidden)[0])


@pytest.mark.parametrize("layout", ["BSH", "BSND", "BNSD", "BNSD_BSND"])
def test_layouts_and_lengths(layout):
    q, k, v = values((B, N, 12, D), (B, N, 20, D), (B, N, 20, D))
    lay = {
        "BSH": lambda t: t.transpose(1, 2).flatten(2),
        "BSND": lambda t: t.transpose(1, 2),
        "BNSD": lambda t: t,
    }
    first, _, last = layout.partition("_")
    out = torch_npu.npu_fused_infer_attention_score(
        *(lay[first](t).contiguous().npu() for t in (q, k, v)), num_heads=N, input_layout=layout, scale=0.25,
        actual_seq_lengths=[12, 5], actual_seq_lengths_kv=[20, 7],
    )[0]  # fmt: skip
    expected = torch.zeros(q.shape)
    for i, (queries, keys) in enumerate(((12, 20), (5, 7))):
        part = reference(q[i : i + 1, :, :queries], k[i : i + 1, :, :keys], v[i : i + 1, :, :keys], 0.25)[0]
        expected[i, :, :queries] = part[0]
    close(out, lay[last or first](expected))


def test_pages():
    size, pages = 16, torch.tensor([[3, 1], [0, 2]], dtype=torch.int32)
    q, k, v = values((B, 1, N * D), (4, size, NKV * D), (4, size, NKV * D))
    lengths = [20, 9]
    out = torch_npu.npu_fused_infer_attention_score(
        q.npu(), k.npu(), v.npu(), num_heads=N, num_key_value_heads=NKV, input_layout="BSH", scale=0.25,
        block_table=pages.npu(), block_size=size, actual_seq_lengths_kv=lengths,
    )[0]  # fmt: skip
    for i, length in enumerate(lengths):
        rows = [t[pages[i].long()].flatten(0, 1)[:length].unflatten(-1, (NKV, D)).transpose(0, 1)[None] for t in (k, v)]
        query = q[i].unflatten(-1, (N, D)).transpose(0, 1)[None]
        close(out[i], reference(query, *rows, 0.25)[0][0].transpose(0, 1).flatten(1))


def test_prompt_and_incremental():
    q, k, v = values((B, N, 12, D), (B, N, 12, D), (B, N, 12, D))
    mask = torch.ones(2048, 2048, dtype=torch.bool).triu_(1)
    prompt = torch_npu.npu_prompt_flash_attention(
        q.npu(), k.npu(), v.npu(), num_heads=N, input_layout="BNSD", scale_value=0.25, atten_mask=mask.npu(),
        sparse_mode=2,
    )  # fmt: skip
    expected = reference(q, k, v, 0.25, torch.ones(12, 12, dtype=torch.bool).triu(1))[0]
    close(prompt, expected)
    last = torch_npu.npu_incre_flash_attention(
        q[:, :, -1:].contiguous().npu(), k.npu(), v.npu(), num_heads=N, input_layout="BNSD", scale_value=0.25
    )
    close(last, expected[:, :, -1:])


def test_it_has_no_gradient():
    """torch_npu registers none, which the device cannot know: for training there is npu_fusion_attention."""
    q = torch.randn(1, N, 8, D, dtype=DTYPE, device="npu", requires_grad=True)
    out = torch_npu.npu_fused_infer_attention_score(q, q, q, num_heads=N, input_layout="BNSD", scale=1.0)[0]
    out.sum().backward()
    assert q.grad is None


@pytest.mark.parametrize(
    "options, message",
    [
        ({"sparse_mode": 3}, "needs attenMask"),
        ({"num_heads": N + 1}, "numHeads"),
        ({"actual_seq_lengths_kv": [9]}, "actualSeqLengthsKv"),
        ({"antiquant_scale": torch.ones(2, 8)}, "antiquantScale"),
    ],
)
def test_refusals(options, message):
    q = torch.randn(1, N, 8, D, dtype=DTYPE, device="npu")
    options = {"num_heads": N, "input_layout": "BNSD", "scale": 1.0} | {
        k: v.npu() if isinstance(v, torch.Tensor) else v for k, v in options.items()
    }
    with pytest.raises(RuntimeError) as failure:
        torch_npu.npu_fused_infer_attention_score(q, q, q, **options)
    assert message in str(failure.value)
