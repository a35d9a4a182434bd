"""Activations that are no single ATen operator: gated units, masked softmax, approximations."""

import torch
import torch.nn.functional as F

from cann_emulator.kernels.fused import find
from cann_emulator.kernels.precision import deliver, wide, wide_all
from cann_emulator.kernels.registry import kernel, refuse

_GELU = ("none", "tanh")


def _halves(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    if x.shape[dim] % 2:
        refuse(161002, f"dimension {dim} of x has size {x.shape[dim]}, which is odd")
    left, right = x.chunk(2, dim)
    return left, right


def _own(x: torch.Tensor) -> torch.Tensor:
    """A contiguous copy to compute in."""
    return torch.empty(x.shape, dtype=torch.float64 if x.dtype == torch.float64 else torch.float32).copy_(x)


@kernel("aclnnSwiGlu")
def swiglu(x, dim, out):
    left, right = _halves(x, dim)
    fused = find("swiglu", x, out) if dim % x.dim() == x.dim() - 1 else None
    if fused:
        fused(x, out)
        return
    deliver(out, F.silu(_own(left), inplace=True).mul_(right))


@kernel("aclnnSwiGluGrad")
def swiglu_grad(grad, x, dim, out):
    fused = find("swiglu_grad", x, grad, out) if dim % x.dim() == x.dim() - 1 else None
    if fused and grad.dtype == x.dtype:
        fused(grad, x, out)
        return
    left, right = (_own(half) for half in _halves(x, dim))
    grad = wide(grad)
    left_out, right_out = out.chunk(2, dim)
    deliver(left_out, torch.ops.aten.silu_backward(right.mul_(grad), left))
    deliver(right_out, F.silu(left, inplace=True).mul_(grad))


@kernel("aclnnClippedSwiglu")
def clipped_swiglu(x, group_index, dim, alpha, limit, bias, interleaved, out):
    values = wide(x)
    dim %= x.dim()
    split = dim  # dimensions from `dim` on are one axis that is cut in two
    lead = values.shape[:split].numel()
    flat = values.reshape(lead, -1)
    used = lead if group_index is None else int(group_index.sum())
    flat = flat[:used]
    left, right = (flat[:, ::2], flat[:, 1::2]) if interleaved else flat.chunk(2, -1)
    left, right = left.clamp(max=limit), right.clamp(-limit, limit)
    result = left * torch.sigmoid(alpha * left) * (right + bias)
    out.reshape(lead, -1)[:used].copy_(result) if out.is_contiguous() else deliver(out, result)


def _geglu_parts(x, dim, approximate, activate_left):
    left, right = _halves(wide(x), dim)
    return (left, right) if activate_left else (right, left)


@kernel("aclnnGeGluV3")
def geglu(x, dim, approximate, activate_left, out, gelu):
    active, other = _geglu_parts(x, dim, approximate, activate_left)
    activated = F.gelu(active, approximate=_GELU[approximate])
    deliver(gelu, activated)
    deliver(out, activated * other)


@kernel("aclnnGeGluV3Backward")
def geglu_backward(grad, x, gelu, dim, approximate, activate_left, dx):
    active, other = _geglu_parts(x, dim, approximate, activate_left)
    grad = wide(grad)
    left, right = dx.chunk(2, dim)
    active_out, other_out = (left, right) if activate_left else (right, left)
    deliver(active_out, torch.ops.aten.gelu_backward(grad * other, active, approximate=_GELU[approximate]))
    deliver(other_out, grad * wide(gelu))


@kernel("aclnnGeluV2")
def gelu_v2(x, approximate, y):
    deliver(y, F.gelu(x, approximate=_GELU[approximate]))


@kernel("aclnnGeluMul")
def gelu_mul(x, approximate, out):
    left, right = _halves(wide(x), -1)
    deliver(out, F.gelu(left, approximate=approximate or "none").mul_(right))


@kernel("aclnnFastGelu")
def fast_gelu(x, out):
    values = wide(x)
    deliver(out, values * torch.sigmoid(1.702 * values))


@kernel("aclnnFastGeluBackward")
def fast_gelu_backward(grad, x, dx):
    grad, values = wide_all(grad, x)
    gate = torch.sigmoid(1.702 * values)
    deliver(dx, grad * gate * (1 + 1.702 * values * (1 - gate)))


@kernel("aclnnSoftshrinkBackward")
def softshrink_backward(grad, x, lambd, dx):
    deliver(dx, torch.ops.aten.softshrink_backward(grad, x, lambd))


@kernel("aclnnLogSigmoidForward")
def log_sigmoid_forward(x, out, buffer):  # the buffer is empty on this device, as on a GPU
    deliver(out, F.logsigmoid(wide(x)))


@kernel("aclnnLogSigmoidBackward")
def log_sigmoid_backward(grad, x, buffer, dx):
    grad, values = wide_all(grad, x)
    deliver(dx, grad * torch.sigmoid(-values))


@kernel("aclnnPrelu")
def prelu(x, weight, out):
    deliver(out, F.prelu(wide(x), wide(weight).reshape(-1)))


@kernel("aclnnPreluBackward")
def prelu_backward(grad, x, weight, dx, dweight):
    grad, values, weight = wide_all(grad, x, weight)
    per_channel = weight.numel() > 1
    slope = weight.reshape([1, -1] + [1] * (values.dim() - 2)) if per_channel and values.dim() > 1 else weight
    deliver(dx, torch.where(values > 0, grad, grad * slope))
    product = torch.where(values > 0, torch.zeros((), dtype=grad.dtype), grad * values)
    channel = 1 if values.dim() > 1 else 0
    others = [d for d in range(values.dim()) if d != channel] if per_channel else list(range(values.dim()))
    deliver(dweight, product.sum(others) if others else product)


@kernel("aclnnSoftmaxBackward")
def softmax_backward(grad, output, dim, out):
    grad, output = wide_all(grad, output)
    deliver(out, torch.ops.aten._softmax_backward_data(grad, output.to(grad.dtype), dim, grad.dtype))


@kernel("aclnnLogSoftmaxBackward")
def log_softmax_backward(grad, output, dim, out):
    grad, output = wide_all(grad, output)
    deliver(out, torch.ops.aten._log_softmax_backward_data(grad, output.to(grad.dtype), dim, grad.dtype))


def _masked_scores(x: torch.Tensor, mask: torch.Tensor | None, scale: float, upper: bool) -> torch.Tensor:
    scores = wide(x) * scale
    if upper:
        mask = torch.ones(x.shape[-2:], dtype=torch.bool).triu_(1)
    # The operator adds -10000 where the mask is set: a row that is masked throughout stays finite.
    return scores if mask is None else scores.masked_fill_(mask.bool(), -10000.0)


@kernel("aclnnScaledMaskedSoftmax")
def scaled_masked_softmax(x, mask, scale, fixed_triu_mask, y):
    deliver(y, torch.softmax(_masked_scores(x, mask, scale, fixed_triu_mask), dim=-1))


@kernel("aclnnScaledMaskedSoftmaxBackward")
def scaled_masked_softmax_backward(grad, y, mask, scale, fixed_triu_mask, out):
    grad, y = wide_all(grad, y)
    result = torch.ops.aten._softmax_backward_data(grad, y, -1, grad.dtype) * scale
    if fixed_triu_mask:
        mask = torch.ones(y.shape[-2:], dtype=torch.bool).triu_(1)
    deliver(out, result if mask is None else result.masked_fill_(mask.bool(), 0.0))


def _rrelu(x, noise, lower, upper, training, seed, offset, out):
    from cann_emulator.kernels.random import uniform

    if training:
        slope = torch.where(x <= 0, uniform(x, seed, offset, lower, upper), torch.ones((), dtype=x.dtype))
        noise.copy_(slope)
        out.copy_(x * slope)
    else:
        deliver(out, F.leaky_relu(wide(x), (lower + upper) / 2))


@kernel("aclnnRReluWithNoise")
def rrelu_with_noise(x, noise, lower, upper, training, seed, offset, out):
    _rrelu(x, noise, lower, upper, training, seed, offset, out)


@kernel("aclnnInplaceRReluWithNoise")
def inplace_rrelu_with_noise(x, noise, lower, upper, training, seed, offset):
    _rrelu(x, noise, lower, upper, training, seed, offset, x)
