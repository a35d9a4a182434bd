"""Fused norms, rotary embedding and gated units against formulas on the CPU, with gradients."""

import pytest
import torch
import torch.nn.functional as F
import torch_npu

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def tensors(dtype, *shapes):
    """Values that the dtype holds, in fp32, with gradients."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator).to(dtype).float().requires_grad_() for shape in shapes]


def close(actual, expected, dtype) -> None:
    scale = max(1.0, expected.abs().max().item()) if expected.numel() else 1.0
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(
        actual.detach().cpu().float(), expected.detach().float(), rtol=tolerance, atol=tolerance * scale
    )


def check(dtype, operator, formula, inputs, *, noncontiguous=False) -> None:
    """An operator of torch_npu against a formula, forward and backward."""
    expected = formula(*inputs)
    grad = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2)).to(dtype).float()
    gradients = torch.autograd.grad(expected, inputs, grad)
    moved = []
    for tensor in inputs:
        device = tensor.detach().to(dtype).npu()
        if noncontiguous and device.dim() > 1:
            device = device.transpose(0, 1).contiguous().transpose(0, 1)
        moved.append(device.requires_grad_())
    out = operator(*moved)
    close(out, expected, dtype)
    out.backward(grad.to(dtype).npu())
    for tensor, gradient in zip(moved, gradients, strict=True):
        close(tensor.grad, gradient, dtype)


def rms_norm(x, gamma, eps=1e-6):
    dims = list(range(x.dim() - gamma.dim(), x.dim()))
    return x * torch.rsqrt(x.square().mean(dims, keepdim=True) + eps) * gamma


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("noncontiguous", [False, True])
@pytest.mark.parametrize(
    "shape, gamma", [((3, 5, 32), (32,)), ((7, 16), (16,)), ((3, 5, 4, 8), (4, 8)), ((0, 8), (8,))]
)
def test_rms_norm(dtype, shape, gamma, noncontiguous):
    check(
        dtype, lambda x, g: torch_npu.npu_rms_norm(x, g, 1e-6)[0], rms_norm, tensors(dtype, shape, gamma),
        noncontiguous=noncontiguous,
    )  # fmt: skip


def test_rms_norm_statistic():
    x, gamma = tensors(torch.bfloat16, (3, 5, 32), (32,))
    rstd = torch_npu.npu_rms_norm(x.detach().bfloat16().npu(), gamma.detach().bfloat16().npu(), 1e-6)[1]
    assert rstd.dtype == torch.float32 and rstd.shape == (3, 5, 1)
    torch.testing.assert_close(rstd.cpu(), torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6).detach())


def test_rms_norm_refuses_a_gamma_that_does_not_fit():
    with pytest.raises(RuntimeError, match="161002"):
        torch_npu.npu_rms_norm(torch.randn(3, 8).npu(), torch.randn(4).npu())


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm(dtype):
    x1, x2, gamma = (t.detach() for t in tensors(dtype, (3, 5, 32), (3, 5, 32), (32,)))
    y, rstd, total = torch_npu.npu_add_rms_norm(*(t.to(dtype).npu() for t in (x1, x2, gamma)), 1e-6)
    close(total, x1 + x2, dtype)
    close(y, rms_norm(x1 + x2, gamma), dtype)
    torch.testing.assert_close(rstd.cpu(), torch.rsqrt((x1 + x2).square().mean(-1, keepdim=True) + 1e-6))


@pytest.mark.parametrize("dtype", DTYPES)
def test_deep_norm(dtype):
    inputs = tensors(dtype, (3, 5, 32), (3, 5, 32), (32,), (32,))

    def formula(x, gx, beta, gamma):
        return F.layer_norm(0.3 * x + gx, (32,), gamma, beta, 1e-6)

    check(dtype, lambda x, gx, b, g: torch_npu.npu_deep_norm(x, gx, b, g, 0.3, 1e-6)[2], formula, inputs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 5, 32), (0, 32)])
def test_layer_norm(dtype, shape):
    def formula(x, w, b):
        return F.layer_norm(x, (32,), w, b)

    check(dtype, formula, formula, tensors(dtype, shape, (32,), (32,)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(dtype, training):
    def formula(x, w, b):
        mean, variance = torch.full((6,), 0.1, device=x.device), torch.full((6,), 2.0, device=x.device)
        out = F.batch_norm(x, mean, variance, w, b, training, 0.1)
        if training:
            assert not mean.eq(0.1).any()
        return out

    check(dtype, formula, formula, tensors(dtype, (4, 6, 5, 5), (6,), (6,)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_group_norm(dtype):
    def formula(x, w, b):
        return F.group_norm(x, 3, w, b)

    check(dtype, formula, formula, tensors(dtype, (4, 6, 5, 5), (6,), (6,)))


def rotate(x, mode):
    if mode == "half":
        a, b = x.chunk(2, -1)
        return torch.cat((-b, a), -1)
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["half", "interleave"])
@pytest.mark.parametrize("table", [(1, 7, 1, 16), (2, 7, 1, 16), (2, 7, 3, 16)])
def test_rotary_mul(dtype, mode, table):
    inputs = tensors(dtype, (2, 7, 3, 16), table, table)
    check(
        dtype, lambda x, c, s: torch_npu.npu_rotary_mul(x, c, s, mode),
        lambda x, c, s: x * c + rotate(x, mode) * s, inputs,
    )  # fmt: skip


def test_rotary_mul_refuses_tables_that_do_not_fit():
    x, table = torch.randn(2, 7, 3, 16).npu(), torch.randn(1, 5, 1, 16).npu()
    with pytest.raises(RuntimeError, match="161002"):
        torch_npu.npu_rotary_mul(x, table, table)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [-1, 0, 1])
def test_swiglu(dtype, dim):
    def formula(x):
        a, b = x.chunk(2, dim)
        return F.silu(a) * b

    check(dtype, lambda x: torch_npu.npu_swiglu(x, dim), formula, tensors(dtype, (4, 6, 8)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_family(dtype):
    for function in (F.softmax, F.log_softmax):
        check(dtype, lambda x: function(x, -1), lambda x: function(x, -1), tensors(dtype, (3, 40)))  # noqa: B023
        check(dtype, lambda x: function(x, 0), lambda x: function(x, 0), tensors(dtype, (3, 40)))  # noqa: B023


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy(reduction, smoothing):
    target = torch.tensor([1, 3, -100, 0, 2])

    def formula(x):
        return F.cross_entropy(x, target.to(x.device), reduction=reduction, label_smoothing=smoothing)

    check(torch.float32, formula, formula, tensors(torch.float32, (5, 7)))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_fused_cross_entropy(reduction):
    target = torch.tensor([1, 3, -100, 0, 2])

    def fused(x):
        loss = torch_npu.npu_cross_entropy_loss(x, target.npu(), reduction=reduction)[0]
        return loss if reduction == "none" else loss.reshape(())

    check(
        torch.float32, fused, lambda x: F.cross_entropy(x, target, reduction=reduction), tensors(torch.float32, (5, 7))
    )
