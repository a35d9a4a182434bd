"""Losses and gradients that are no single ATen operator. `reduction`: 0 none, 1 mean, 2 sum."""

import torch
import torch.nn.functional as F

from cann_emulator.kernels.precision import deliver, wide, wide_all
from cann_emulator.kernels.registry import kernel, refuse

_REDUCTIONS = ("none", "mean", "sum")


def _mean_share(reduction: int, count: int) -> float:
    """What one element's loss counts for in the reduced loss."""
    return 1.0 / max(count, 1) if reduction == 1 else 1.0


@kernel("aclnnL1LossBackward")
def l1_loss_backward(grad, x, target, reduction, dx):
    grad, x, target = wide_all(grad, x, target)
    difference = x - target
    deliver(dx, torch.sign(difference) * grad * _mean_share(reduction, difference.numel()))


@kernel("aclnnKlDivBackward")
def kl_div_backward(grad, x, target, reduction, log_target, dx):
    grad, x, target = wide_all(grad, x, target)
    slope = -target.exp() if log_target else -target
    deliver(dx, slope * grad * _mean_share(reduction, x.numel()))


@kernel("aclnnKlDivTargetBackward")
def kl_div_target_backward(grad, x, target, reduction, log_target, dtarget):
    grad, x, target = wide_all(grad, x, target)
    plain = torch.where(target > 0, target.log() + 1 - x, 0.0)
    slope = target.exp() * (target + 1 - x) if log_target else plain
    deliver(dtarget, slope * grad * _mean_share(reduction, x.numel()))


@kernel("aclnnBinaryCrossEntropyWithLogitsBackward")
def bce_with_logits_backward(grad, x, target, weight, pos_weight, reduction, dx):
    grad, x, target, weight, pos_weight = wide_all(grad, x, target, weight, pos_weight)
    probability = torch.sigmoid(x)
    if pos_weight is None:
        slope = probability - target
    else:
        positive = pos_weight * target
        slope = (positive + 1 - target) * probability - positive
    if weight is not None:
        slope = slope * weight
    deliver(dx, slope * grad * _mean_share(reduction, x.numel()))


@kernel("aclnnMultilabelMarginLoss")
def multilabel_margin_loss(x, target, reduction, out, is_target):
    loss, marks = torch.ops.aten.multilabel_margin_loss_forward(wide(x), target.long(), reduction)
    deliver(out, loss)
    deliver(is_target, marks)


def _weights(x, target, weight, ignore_index):
    """(per-class weights, per-row weight of the row's class, mask of the rows that count, safe targets)."""
    counted = target != ignore_index
    safe = torch.where(counted, target, 0)
    classes = torch.ones(x.shape[-1], dtype=torch.float32) if weight is None else weight
    return classes, torch.where(counted, classes[safe], 0.0), counted, safe


@kernel("aclnnCrossEntropyLoss")
def cross_entropy_loss(
    x, target, weight, reduction, ignore_index, label_smoothing, zloss_scale, return_zloss, loss, log_prob, zloss,
    lse_for_zloss,
):  # fmt: skip
    reduction = reduction or "mean"
    if reduction not in _REDUCTIONS:
        refuse(161002, f"reductionOptional is {reduction!r}; it is none, mean or sum")
    x, weight = wide_all(x, weight)
    log_prob_result = F.log_softmax(x, dim=-1)
    deliver(log_prob, log_prob_result)
    # The z-loss arguments have no effect in the operator either.
    result = F.nll_loss(log_prob_result, target, weight, ignore_index=ignore_index, reduction=reduction)
    if label_smoothing:
        result = F.cross_entropy(
            x, target, weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
        )
    deliver(loss, result)


@kernel("aclnnCrossEntropyLossGrad")
def cross_entropy_loss_grad(
    grad, log_prob, target, weight, grad_zloss, lse_for_zloss, reduction, ignore_index, label_smoothing, zloss_scale,
    dx,
):  # fmt: skip
    grad, log_prob, weight = wide_all(grad, log_prob, weight)
    reduction = reduction or "mean"
    classes, row_weights, counted, safe = _weights(log_prob, target, weight, ignore_index)
    scale = grad / row_weights.sum() if reduction == "mean" else grad
    scale = (scale * counted).reshape(-1, 1)
    probability = log_prob.exp()
    own = (1 - label_smoothing) * row_weights.reshape(-1, 1) * scale
    result = probability * own
    result.scatter_add_(1, safe.reshape(-1, 1), -own)
    if label_smoothing:
        smooth = classes * scale * (label_smoothing / log_prob.shape[-1])
        result += probability * smooth.sum(-1, keepdim=True) - smooth
    deliver(dx, result)


@kernel("aclnnCtcLoss")
def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity, loss, log_alpha):
    result, alpha = torch.ops.aten._ctc_loss(
        wide(log_probs), targets.long(), input_lengths, target_lengths, blank, zero_infinity
    )
    deliver(loss, result)
    log_alpha[..., alpha.shape[-1] :].zero_()  # the device aligns the rows of alpha
    log_alpha[..., : alpha.shape[-1]].copy_(alpha)


@kernel("aclnnCtcLossBackward")
def ctc_loss_backward(
    grad, log_probs, targets, input_lengths, target_lengths, loss, log_alpha, blank, zero_infinity, dx
):
    width = 2 * max(target_lengths, default=0) + 1
    grad, log_probs, loss, alpha = wide_all(grad, log_probs, loss, log_alpha[..., :width])
    result = torch.ops.aten._ctc_loss_backward(
        grad, log_probs, targets.long(), input_lengths, target_lengths, loss, alpha.contiguous(), blank, zero_infinity
    )
    deliver(dx, result)
