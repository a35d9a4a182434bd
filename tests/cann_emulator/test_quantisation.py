"""Quantisation, products of quantised matrices, fused products and merged attention, against formulas."""

import pytest
import torch
import torch.nn.functional as F
import torch_npu


def random(*shape, dtype=torch.float32, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def integers(*shape, seed=1):
    return torch.randint(-128, 128, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.int8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_dynamic_quant(dtype):
    x = random(5, 32, dtype=dtype)
    y, scale = torch_npu.npu_dynamic_quant(x.npu())
    expected = x.float().abs().amax(-1) / 127
    torch.testing.assert_close(scale.cpu(), expected)
    assert torch.equal(y.cpu(), torch.round(x.float() / expected.unsqueeze(-1)).to(torch.int8))


def test_dynamic_quant_of_groups_with_smoothing():
    x, smooth = random(6, 32, dtype=torch.float16), random(2, 32, dtype=torch.float16, seed=2).abs()
    groups = torch.tensor([2, 6], dtype=torch.int32)
    y, scale = torch_npu.npu_dynamic_quant(x.npu(), smooth_scales=smooth.npu(), group_index=groups.npu())
    values = x.float() * smooth.float().repeat_interleave(torch.tensor([2, 4]), 0)
    torch.testing.assert_close(y.cpu().float() * scale.cpu().unsqueeze(-1), values, atol=0.05, rtol=0.02)


def test_quantize_per_channel():
    x, scale = random(4, 3), torch.tensor([0.1, 0.2, 0.05])
    zero = torch.tensor([1, -2, 3], dtype=torch.int32)
    y = torch_npu.npu_quantize(x.npu(), scale.npu(), zero.npu(), torch.qint8, 1)
    expected = (torch.round(x / scale) + zero).clamp(-128, 127).to(torch.int8)
    assert torch.equal(y.cpu().view(torch.int8) if y.dtype != torch.int8 else y.cpu(), expected)


@pytest.mark.parametrize("out", [torch.bfloat16, torch.float16])
def test_quant_matmul(out):
    x1, x2 = integers(6, 32), integers(32, 16, seed=2)
    scale, per_token = torch.rand(16) * 0.01 + 1e-3, torch.rand(6) + 0.5
    if out == torch.float16:
        device = torch_npu.npu_trans_quant_param(scale.npu())
        y = torch_npu.npu_quant_matmul(x1.npu(), x2.npu(), device, output_dtype=out)
        scale = (scale.view(torch.int32) & -8192).view(torch.float32)  # 19 bits are kept
        expected = (x1.double() @ x2.double()) * scale
    else:
        y = torch_npu.npu_quant_matmul(
            x1.npu(), x2.npu(), scale.npu(), pertoken_scale=per_token.npu(), output_dtype=out
        )
        expected = (x1.double() @ x2.double()) * scale * per_token.unsqueeze(-1)
    torch.testing.assert_close(y.cpu().double(), expected, rtol=1e-2, atol=1e-2)


def test_weight_quant_matmul():
    x, weight = random(6, 32, dtype=torch.float16), integers(32, 16)
    scale, offset = random(16, dtype=torch.float16, seed=2) * 0.01, random(16, dtype=torch.float16, seed=3)
    y = torch_npu.npu_weight_quant_batchmatmul(x.npu(), weight.npu(), scale.npu(), antiquant_offset=offset.npu())
    expected = x.float() @ ((weight.float() + offset.float()) * scale.float())
    torch.testing.assert_close(y.cpu().float(), expected, rtol=2e-3, atol=2e-2)


def test_fake_quant():
    x = random(4, 8)
    for axis_form in (False, True):
        if axis_form:
            args = (torch.full((8,), 0.1), torch.zeros(8, dtype=torch.int32), 1, -10, 10)
            operator = torch.fake_quantize_per_channel_affine
        else:
            args = (torch.tensor([0.1]), torch.tensor([0], dtype=torch.int32), -10, 10)
            operator = torch.fake_quantize_per_tensor_affine
        moved = [a.npu() if isinstance(a, torch.Tensor) else a for a in args]
        torch.testing.assert_close(operator(x.npu(), *moved).cpu(), operator(x, *args))


@pytest.mark.parametrize("activation, function", [("relu", F.relu), ("gelu", F.gelu), ("silu", F.silu)])
def test_ffn(activation, function):
    x, w1, w2 = (random(*s, dtype=torch.float16) for s in ((6, 8), (8, 16), (16, 8)))
    y = torch_npu.npu_ffn(x.npu(), w1.npu(), w2.npu(), activation)
    expected = function(x.float() @ w1.float()) @ w2.float()
    torch.testing.assert_close(y.cpu().float(), expected, rtol=5e-3, atol=5e-2)


def attention(q, k, v):
    """(output, maximum, sum) over some of the keys."""
    scores = q @ k.transpose(-1, -2)
    top = scores.amax(-1, keepdim=True)
    weights = (scores - top).exp()
    total = weights.sum(-1, keepdim=True)
    return weights @ v / total, top.expand(*top.shape[:-1], 8), total.expand(*total.shape[:-1], 8)


def test_ring_attention_update_merges_two_parts():
    b, n, s, d = 2, 3, 5, 4
    q, k, v = (random(b, n, length, d, seed=i) for i, length in enumerate((s, 10, 10)))
    parts = [attention(q, k[:, :, i], v[:, :, i]) for i in (slice(0, 4), slice(4, 10))]
    moved = [
        t.contiguous().npu() for out, top, total in parts for t in (out.permute(2, 0, 1, 3).flatten(2), top, total)
    ]
    out, top, total = torch_npu.npu_ring_attention_update(*moved)
    whole = attention(q, k, v)
    torch.testing.assert_close(out.cpu(), whole[0].permute(2, 0, 1, 3).flatten(2))
    torch.testing.assert_close(top.cpu(), whole[1])
    torch.testing.assert_close(total.cpu(), whole[2])


@pytest.mark.parametrize(("width", "served"), [(64, True), (16, False)])
def test_ring_attention_update_of_packed_tokens_takes_head_sizes_of_64(width, served):
    out, statistic = torch.ones(3, 2, width).npu(), torch.ones(3, 2, 8).npu()
    arguments = {"actual_seq_qlen": torch.tensor([0, 3]).npu(), "input_layout": "TND", "input_softmax_layout": "TND"}
    if served:
        merged, _, _ = torch_npu.npu_ring_attention_update(*(out, statistic, statistic) * 2, **arguments)
        torch.testing.assert_close(merged, out)
        return
    with pytest.raises(RuntimeError, match="layout TND takes multiples of 64"):
        torch_npu.npu_ring_attention_update(*(out, statistic, statistic) * 2, **arguments)


def test_what_is_not_implemented_is_refused():
    x1, x2 = integers(6, 32), integers(32, 16)
    with pytest.raises(RuntimeError, match="561000"):
        torch_npu.npu_quant_matmul(
            x1.npu(), x2.npu(), torch.ones(16).npu(), offset=torch.ones(16).npu(), output_dtype=torch.int8
        )


def rms_norm(x, gamma, eps=1e-6):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * gamma


def test_add_rms_norm_quant():
    x1, x2, gamma = (random(*s, dtype=torch.float16, seed=i) for i, s in enumerate(((4, 32), (4, 32), (32,))))
    scale, zero = torch.full((32,), 0.05), torch.full((32,), 3, dtype=torch.int32)
    y, _, total = torch_npu.npu_add_rms_norm_quant(x1.npu(), x2.npu(), gamma.npu(), scale.npu(), zero.npu())
    whole = x1.float() + x2.float()
    torch.testing.assert_close(total.cpu(), whole.half())
    expected = torch.round(rms_norm(whole, gamma.float()) / 0.05 + 3).clamp(-128, 127)
    assert (y.cpu().float() - expected).abs().max() <= 1


def test_add_rms_norm_dynamic_quant():
    x1, x2, gamma = (random(*s, dtype=torch.float16, seed=i) for i, s in enumerate(((4, 32), (4, 32), (32,))))
    y, _, _, scale, _ = torch_npu.npu_add_rms_norm_dynamic_quant(x1.npu(), x2.npu(), gamma.npu())
    expected = rms_norm(x1.float() + x2.float(), gamma.float())
    torch.testing.assert_close(y.cpu().float() * scale.cpu().unsqueeze(-1), expected, atol=0.05, rtol=0)


def test_swiglu_quant():
    x = random(6, 32, dtype=torch.float16)
    y, scale = torch_npu.npu_swiglu_quant(x.npu(), quant_mode=1, activate_left=True)
    left, right = x.float().chunk(2, -1)
    expected = F.silu(left) * right
    torch.testing.assert_close(y.cpu().float() * scale.cpu().unsqueeze(-1), expected, atol=0.03, rtol=0)
