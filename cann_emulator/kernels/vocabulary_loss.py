"""Cross entropy over a vocabulary that is spread over ranks, fused with the product that makes the logits."""

import numpy as np
import torch

from cann_emulator.kernels.precision import deliver, wide
from cann_emulator.kernels.registry import kernel, refuse


@kernel("aclnnFusedLinearOnlineMaxSum")
def linear_online_max_sum(x, weight, target, first, last, top, mass, predicted, mask, masked_target, logits_out):
    logits = wide(x) @ wide(weight).T
    deliver(logits_out, logits)
    highest = logits.amax(-1)
    differences = logits - highest.unsqueeze(-1)
    elsewhere = (target < first) | (target > last)
    local = torch.where(elsewhere, 0, target - first)
    deliver(top, highest)
    deliver(mass, differences.exp().sum(-1))
    own = differences.gather(-1, local.long().unsqueeze(-1)).squeeze(-1)
    deliver(predicted, own.masked_fill(elsewhere, 0.0))
    deliver(masked_target, local)
    aligned = np.ones(-(-elsewhere.numel() // 8) * 8, dtype=bool)
    aligned[: elsewhere.numel()] = elsewhere.numpy()
    mask.view(-1).copy_(torch.from_numpy(np.packbits(aligned)))


@kernel("aclnnFusedCrossEntropyLossWithMaxSum")
def cross_entropy_with_max_sum(top, mass, predicted, label_smoothing, x, weight, logits, loss, softmax):
    if label_smoothing:
        refuse(161002, "labelSmoothing must be 0: it is not supported")
    deliver(loss, torch.log(wide(mass)) - wide(predicted))
    if softmax is not None and logits is not None:
        deliver(softmax, torch.exp(wide(logits) - wide(top).unsqueeze(-1)) / wide(mass).unsqueeze(-1))


@kernel("aclnnFusedLinearCrossEntropyLossGrad")
def linear_cross_entropy_grad(grad, x, weight, mask, masked_target, label_smoothing, top, mass, softmax, dx, dweight):
    if label_smoothing:
        refuse(161002, "labelSmoothing must be 0: it is not supported")
    inputs, weights = wide(x), wide(weight)
    if softmax is None:
        logits = inputs @ weights.T
        probabilities = torch.exp(logits - top.unsqueeze(-1)) / mass.unsqueeze(-1)
    else:
        probabilities = wide(softmax).clone()
    elsewhere = torch.from_numpy(np.unpackbits(mask.view(-1).numpy(), count=probabilities.shape[0])).bool()
    rows = torch.arange(probabilities.shape[0])
    probabilities[rows, masked_target.long()] -= (~elsewhere).float()
    probabilities *= wide(grad).unsqueeze(-1)
    deliver(dx, probabilities @ weights)
    deliver(dweight, probabilities.T @ inputs)
