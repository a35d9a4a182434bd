"""npu_fusion_attention against plain attention on the CPU: layouts, masks, dtypes, gradients, refusals."""

import pytest
import torch
import torch_npu

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
LAYOUTS = ["BNSD", "BSND", "BSH", "SBH", "TND"]
B, N, NKV, S, D = 2, 4, 2, 70, 16


def compressed_mask() -> torch.Tensor:
    return torch.ones(2048, 2048, dtype=torch.bool).triu_(1).npu()


def reference(q, k, v, scale, hidden=None, bias=None, kept=None, keep=1.0, sink=None):
    """Plain attention on [B, N, S, D] in fp32."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q @ k.transpose(-1, -2) * scale
    if bias is not None:
        scores = scores + bias
    if hidden is not None:
        scores = scores.masked_fill(hidden, -1e30)
    if sink is not None:
        column = sink.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        weights = torch.cat((scores, column), -1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    if kept is not None:
        weights = weights * kept / keep
    return weights @ v


def inputs(dtype, *shapes):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator).to(dtype).float().requires_grad_() for shape in shapes]


def lay(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """[B, N, S, D] in a layout."""
    by_token = tensor.transpose(1, 2)
    return {
        "BNSD": tensor,
        "BSND": by_token,
        "BSH": by_token.flatten(2),
        "SBH": by_token.flatten(2).transpose(0, 1),
        "TND": by_token.flatten(0, 1),
    }[layout]


def on_npu(tensor: torch.Tensor, layout: str, dtype: torch.dtype) -> torch.Tensor:
    return lay(tensor.detach(), layout).to(dtype).contiguous().npu().requires_grad_()


def ends(layout: str, *lengths: int) -> dict:
    if layout != "TND":
        return {}
    names = ("actual_seq_qlen", "actual_seq_kvlen")
    return {name: [length * (i + 1) for i in range(B)] for name, length in zip(names, lengths, strict=True)}


def close(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    expected = expected.detach()
    scale = max(1.0, expected.abs().max().item())
    torch.testing.assert_close(
        actual.detach().cpu().float(), expected.float(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * scale
    )


def check(layout, dtype, lengths, heads, sizes, hidden=None, **options) -> None:
    (sq, sk), (n, nkv), (d, dv) = lengths, heads, sizes
    q, k, v = inputs(dtype, (B, n, sq, d), (B, nkv, sk, d), (B, nkv, sk, dv))
    expected = reference(q, k, v, 0.25, hidden)
    grad = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2)).to(dtype).float()
    gradients = torch.autograd.grad(expected, (q, k, v), grad)
    tensors = [on_npu(t, layout, dtype) for t in (q, k, v)]
    out = torch_npu.npu_fusion_attention(*tensors, n, layout, scale=0.25, **options, **ends(layout, sq, sk))[0]
    out.backward(on_npu(grad, layout, dtype))
    close(out, lay(expected, layout), dtype)
    for tensor, gradient in zip(tensors, gradients, strict=True):
        close(tensor.grad, lay(gradient, layout), dtype)


def visible(sq: int, sk: int, first, last) -> torch.Tensor:
    """The mask (True hides) of keys j with first <= j - i <= last."""
    distance = torch.arange(sk) - torch.arange(sq).view(-1, 1)
    hidden = torch.zeros(sq, sk, dtype=torch.bool)
    if first is not None:
        hidden |= distance < first
    if last is not None:
        hidden |= distance > last
    return hidden


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_causal(layout, dtype):
    check(layout, dtype, (S, S), (N, NKV), (D, D), visible(S, S, None, 0), atten_mask=compressed_mask(), sparse_mode=3)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_mask_everything_is_seen_in_every_mode(layout):
    check(layout, torch.float32, (30, 50), (N, 1), (D, D), sparse_mode=3)


@pytest.mark.parametrize("layout", ["BNSD", "BSND", "TND"])
def test_value_heads_may_be_smaller(layout):
    hidden = visible(S, S, None, 0)
    check(layout, torch.bfloat16, (S, S), (N, N), (24, 8), hidden, atten_mask=compressed_mask(), sparse_mode=2)


@pytest.mark.parametrize("layout", ["BNSD", "TND"])
@pytest.mark.parametrize(
    "mode, lengths, bounds",
    [
        (2, (40, 60), (None, 0)),
        (3, (40, 60), (None, 20)),
        (4, (40, 60), (20 - 7, 20 + 3)),
        (4, (200, 200), (-33, 5)),
    ],
)
def test_compressed_modes(layout, mode, lengths, bounds):
    tokens = {"pre_tockens": 7, "next_tockens": 3} if lengths[0] == 40 else {"pre_tockens": 33, "next_tockens": 5}
    hidden = visible(*lengths, *bounds)
    check(
        layout, torch.float32, lengths, (N, NKV), (D, D), hidden,
        atten_mask=compressed_mask(), sparse_mode=mode, **(tokens if mode == 4 else {}),
    )  # fmt: skip


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("shape", [(S, S), (1, 1, S, S), (B, 1, S, S), (B, N, S, S)])
@pytest.mark.parametrize("kind", [torch.bool, torch.uint8])
def test_full_masks(mode, shape, kind):
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(3)) > 0.7
    mask[..., 0] = False
    check("BNSD", torch.float32, (S, S), (N, NKV), (D, D), mask, atten_mask=mask.to(kind).npu(), sparse_mode=mode)


def test_prefix_compressed():
    prefix = [5, 50]
    hidden = torch.stack([visible(S, S, None, 0) & (torch.arange(S) >= p) for p in prefix]).unsqueeze(1)
    mask = torch.ones(3072, 2048, dtype=torch.bool).npu()
    check("BNSD", torch.float32, (S, S), (N, NKV), (D, D), hidden, atten_mask=mask, sparse_mode=6, prefix=prefix)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sequences_of_different_lengths(dtype):
    lengths = [3, 40, 40, 0, 17]
    ends_ = torch.tensor(lengths).cumsum(0).tolist()
    total = sum(lengths)
    q, k, v = inputs(dtype, (total, N, D), (total, NKV, D), (total, NKV, D))
    parts = []
    for begin, end in zip([0, *ends_], ends_, strict=False):
        if end > begin:
            piece = [t[begin:end].transpose(0, 1).unsqueeze(0) for t in (q, k, v)]
            parts.append(reference(*piece, 0.25, visible(end - begin, end - begin, None, 0))[0].transpose(0, 1))
    expected = torch.cat(parts)
    grad = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2)).to(dtype).float()
    gradients = torch.autograd.grad(expected, (q, k, v), grad)
    tensors = [t.detach().to(dtype).npu().requires_grad_() for t in (q, k, v)]
    out = torch_npu.npu_fusion_attention(
        *tensors, N, "TND", scale=0.25, atten_mask=compressed_mask(), sparse_mode=3, actual_seq_qlen=ends_,
        actual_seq_kvlen=ends_,
    )[0]  # fmt: skip
    out.backward(grad.to(dtype).npu())
    close(out, expected, dtype)
    for tensor, gradient in zip(tensors, gradients, strict=True):
        close(tensor.grad, gradient, dtype)


def test_tokens_after_the_last_sequence_have_no_influence():
    q, k, v = (t.detach() for t in inputs(torch.float32, (20, N, D), (20, NKV, D), (20, NKV, D)))
    poisoned = [t.clone() for t in (q, k, v)]
    for tensor in poisoned:
        tensor[15:] = float("nan")
    options = {"scale": 0.25, "actual_seq_qlen": [5, 15], "actual_seq_kvlen": [5, 15]}
    clean, tail = (
        torch_npu.npu_fusion_attention(*(t.npu() for t in tensors), N, "TND", **options)[0][:15].cpu()
        for tensors in ((q, k, v), poisoned)
    )
    torch.testing.assert_close(clean, tail, rtol=0, atol=0)
    assert clean.isfinite().all()


def statistics(q, k, hidden):
    scores = (q @ k.transpose(-1, -2) * 0.25).masked_fill(hidden, float("-inf"))
    highest = scores.amax(-1)
    return highest, (scores - highest.unsqueeze(-1)).exp().sum(-1)


def test_softmax_statistics_lie_as_on_the_device():
    q, k, v = (t.detach() for t in inputs(torch.float32, (B, N, S, D), (B, N, S, D), (B, N, S, D)))
    highest, total = statistics(q, k, visible(S, S, None, 0))
    options = {"scale": 0.25, "atten_mask": compressed_mask(), "sparse_mode": 3}
    result = torch_npu.npu_fusion_attention(q.npu(), k.npu(), v.npu(), N, "BNSD", **options)
    for actual, expected in zip(result[1:3], (highest, total), strict=True):
        assert actual.shape == (B, N, S, 8) and actual.dtype == torch.float32
        torch.testing.assert_close(actual.cpu(), expected.unsqueeze(-1).expand(-1, -1, -1, 8))
    tokens = [lay(t, "TND").contiguous().npu() for t in (q, k, v)]
    by_sequence = torch_npu.npu_fusion_attention(*tokens, N, "TND", **options, **ends("TND", S, S))[1]
    assert by_sequence.shape == (B * S, N, 8)  # but each sequence lies as [N, S, 8]
    torch.testing.assert_close(by_sequence.cpu().view(B, N, S, 8)[..., 0], highest)
    by_token = torch_npu.npu_fusion_attention(*tokens, N, "TND", **options, **ends("TND", S, S), softmax_layout="TND")[
        1
    ]
    torch.testing.assert_close(by_token.cpu()[..., 0], lay(highest.unsqueeze(-1), "TND")[..., 0])


def test_dropout_drops_and_rescales_and_its_gradient_agrees():
    torch.npu.manual_seed(5)
    keep = 0.75
    eye = torch.eye(S).expand(B, N, S, S)
    q, k = inputs(torch.float32, (B, N, S, S), (B, N, S, S))
    tensors = [t.detach().npu().requires_grad_() for t in (q, k, eye)]
    out = torch_npu.npu_fusion_attention(*tensors, N, "BNSD", scale=0.1, keep_prob=keep)[0]
    kept = (out != 0).cpu()  # the value is the identity, so the output is the matrix of weights
    assert abs(kept.float().mean().item() - keep) < 0.02
    value = eye.clone().requires_grad_()
    expected = reference(q, k, value, 0.1, None, None, kept, keep)
    close(out, expected, torch.float32)
    grad = torch.randn(expected.shape)
    gradients = torch.autograd.grad(expected, (q, k, value), grad)
    out.backward(grad.npu())
    for tensor, gradient in zip(tensors, gradients, strict=True):
        close(tensor.grad, gradient, torch.float32)


def test_position_bias_is_added_before_scaling():
    q, k, v, bias = inputs(torch.float32, (B, N, S, D), (B, N, S, D), (B, N, S, D), (1, N, S, S))
    expected = reference(q, k, v, 0.25, None, bias * 0.25)
    out = torch_npu.npu_fusion_attention(
        *(t.detach().npu() for t in (q, k, v)), N, "BNSD", bias.detach().npu(), scale=0.25
    )[0]
    close(out, expected, torch.float32)


def test_row_that_sees_nothing_is_zero():
    q, k, v = (t.detach().npu() for t in inputs(torch.float32, (B, N, S, D), (B, N, S, D), (B, N, S, D)))
    mask = torch.zeros(S, S, dtype=torch.bool)
    mask[3] = True
    out = torch_npu.npu_fusion_attention(q, k, v, N, "BNSD", atten_mask=mask.npu(), scale=0.25)[0].cpu()
    assert out[:, :, 3].eq(0).all() and out.isfinite().all()


def test_zero_size():
    q = torch.randn(0, N, S, D).npu()
    assert torch_npu.npu_fusion_attention(q, q, q, N, "BNSD", scale=1.0)[0].shape == (0, N, S, D)


def call(shape=(B, N, S, D), heads=N, layout="BNSD", key=None, **options):
    query = torch.randn(shape).npu()
    key = query if key is None else key
    return torch_npu.npu_fusion_attention(query, key, key, heads, layout, scale=1.0, **options)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"heads": N + 1}, "headNum is 5"),
        ({"key": torch.randn(B, 3, S, D).npu()}, "multiple"),
        ({"key": torch.randn(B, N, S, D).npu().half()}, "dtype"),
        ({"atten_mask": torch.zeros(S, S + 1, dtype=torch.bool).npu()}, "attenMask has shape"),
        ({"atten_mask": torch.zeros(S, S).npu()}, "bool or uint8"),
        ({"atten_mask": torch.zeros(S, S, dtype=torch.bool).npu(), "sparse_mode": 3}, "compressed mask"),
        ({"atten_mask": torch.zeros(2048, 2048, dtype=torch.bool).npu(), "sparse_mode": 3}, "above the diagonal"),
        ({"atten_mask": torch.ones(3072, 2048, dtype=torch.bool).npu(), "sparse_mode": 6}, "prefix"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(RuntimeError, match="161002") as failure:
        call(**options)
    assert message in str(failure.value)


def test_sequence_ends_must_not_decrease():
    with pytest.raises(RuntimeError, match="must not decrease"):
        call((30, N, D), layout="TND", actual_seq_qlen=[10, 5, 30], actual_seq_kvlen=[10, 5, 30])
