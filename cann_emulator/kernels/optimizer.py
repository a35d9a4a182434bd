"""Optimizer steps, fused over one tensor or a list. State is updated in place; halves step in fp32."""

from collections.abc import Iterable, Sequence

import torch

from cann_emulator.kernels.precision import wide
from cann_emulator.kernels.registry import kernel, refuse

# Elements stepped at a time: fp32 copies of a whole embedding would need much memory, and miss the cache.
_BLOCK = 1 << 18


def _adamw(var, m, v, v_max, grad, step, lr, beta1, beta2, weight_decay, eps, amsgrad, maximize) -> None:
    """One AdamW step; `step` counts this one."""
    tensors = [var, grad, m, v] + ([v_max] if amsgrad else [])
    if amsgrad and v_max is None:
        refuse(161002, "amsgrad is set, but maxGradNorm is missing")
    if all(t.dtype == torch.float32 for t in tensors):
        steps = torch.tensor(step, dtype=torch.float32)
        torch._fused_adamw_(
            [var], [grad], [m], [v], [v_max] if amsgrad else [], [steps], lr=lr, beta1=beta1, beta2=beta2,
            weight_decay=weight_decay, eps=eps, amsgrad=amsgrad, maximize=maximize,
        )  # fmt: skip
        return
    for var, grad, m, v, *rest in _blocks(tensors):
        gradient = wide(grad).neg() if maximize else wide(grad)
        first = torch.lerp(wide(m), gradient.to(wide(m).dtype), 1 - beta1)
        second = wide(v).mul(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        m.copy_(first)
        v.copy_(second)
        for v_max in rest:
            second = torch.maximum(wide(v_max), second)
            v_max.copy_(second)
        denominator = second.sqrt().div_((1 - beta2**step) ** 0.5).add_(eps)
        var.copy_((wide(var) * (1 - lr * weight_decay)).addcdiv_(first, denominator, value=-lr / (1 - beta1**step)))


def _blocks(tensors: list[torch.Tensor]) -> Iterable[Sequence[torch.Tensor]]:
    """The tensors in flat pieces, or whole where one is not contiguous."""
    if not all(tensor.is_contiguous() for tensor in tensors):
        return [tensors]
    return zip(*(tensor.view(-1).split(_BLOCK) for tensor in tensors), strict=True)


@kernel("aclnnApplyAdamWV2")
def apply_adamw_v2(var, m, v, v_max, grad, step, lr, beta1, beta2, weight_decay, eps, amsgrad, maximize):
    # The operator is given the step before this one.
    _adamw(var, m, v, v_max, grad, step.item() + 1, lr, beta1, beta2, weight_decay, eps, amsgrad, maximize)


@kernel("aclnnApplyAdamW")
def apply_adamw(var, m, v, beta1_power, beta2_power, lr, weight_decay, beta1, beta2, eps, grad, v_max, amsgrad,
                maximize):  # fmt: skip
    # beta1_power and beta2_power are those of the step before this one.
    beta1_power, beta2_power, lr, weight_decay, beta1, beta2, eps = (
        t.item() for t in (beta1_power, beta2_power, lr, weight_decay, beta1, beta2, eps)
    )
    gradient = wide(grad).neg() if maximize else wide(grad)
    first = torch.lerp(wide(m), gradient, 1 - beta1)
    second = wide(v).mul(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    m.copy_(first)
    v.copy_(second)
    if amsgrad:
        if v_max is None:
            refuse(161002, "amsgrad is set, but maxGradNormOptional is missing")
        second = torch.maximum(wide(v_max), second)
        v_max.copy_(second)
    denominator = second.sqrt().div_((1 - beta2_power * beta2) ** 0.5).add_(eps)
    decayed = wide(var) * (1 - lr * weight_decay)
    var.copy_(decayed.addcdiv_(first, denominator, value=-lr / (1 - beta1_power * beta1)))


@kernel("aclnnApplyAdam")
def apply_adam(var, m, v, beta1_power, beta2_power, lr, beta1, beta2, eps, grad, use_locking, use_nesterov):
    beta1_power, beta2_power, lr, beta1, beta2, eps = (
        t.item() for t in (beta1_power, beta2_power, lr, beta1, beta2, eps)
    )
    gradient = wide(grad)
    first = torch.lerp(wide(m), gradient, 1 - beta1)
    second = wide(v).mul(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    m.copy_(first)
    v.copy_(second)
    update = torch.lerp(gradient, first, beta1) if use_nesterov else first
    rate = lr * (1 - beta2_power) ** 0.5 / (1 - beta1_power)
    var.copy_(wide(var).addcdiv(update, second.sqrt().add_(eps), value=-rate))


@kernel("aclnnFusedAdam")
def fused_adam(params, grads, m, v, v_max, steps, grad_scale, found_inf, lr, beta1, beta2, weight_decay, eps, amsgrad,
               maximize):  # fmt: skip
    if found_inf is not None and found_inf.item():
        return
    for i, (var, grad, step) in enumerate(zip(params, grads, steps, strict=True)):
        if grad_scale is not None:
            grad.div_(grad_scale.item())
        gradient = wide(grad).neg() if maximize else wide(grad)
        if weight_decay:
            gradient = gradient.add(wide(var), alpha=weight_decay)
        _adamw(
            var, m[i], v[i], v_max[i] if amsgrad else None, gradient, step.item(), lr, beta1, beta2, 0.0, eps, amsgrad,
            False,
        )  # fmt: skip


@kernel("aclnnFusedSgd")
def fused_sgd(params, grads, buffers, grad_scale, weight_decay, momentum, lr, dampening, nesterov, maximize, first):
    scale = 1.0 if grad_scale is None else grad_scale.item()
    for i, (var, grad) in enumerate(zip(params, grads, strict=True)):
        if scale != 1.0:
            grad.div_(scale)
        gradient = wide(grad).neg() if maximize else wide(grad)
        if weight_decay:
            gradient = gradient.add(wide(var), alpha=weight_decay)
        if momentum and buffers:
            buffer = gradient if first else wide(buffers[i]) * momentum + gradient * (1 - dampening)
            buffers[i].copy_(buffer)
            gradient = gradient.add(buffer, alpha=momentum) if nesterov else buffer
        var.copy_(wide(var).sub(gradient, alpha=lr))


@kernel("aclnnAmpUpdateScale")
def amp_update_scale(scale, growth_tracker, found_inf, growth_factor, backoff_factor, interval, new_scale, new_tracker):
    current, steps = scale.clone(), growth_tracker.clone()
    torch._amp_update_scale_(current, steps, found_inf, growth_factor, backoff_factor, interval)
    new_scale.copy_(current)
    new_tracker.copy_(steps)
