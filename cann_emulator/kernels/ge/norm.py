"""Normalisation."""

import torch

from .registry import Node, kernel


@kernel("BNInfer", "BatchNorm")
def batch_norm(n: Node) -> None:
    """Normalises every channel."""
    order = n.attr("data_format", "NHWC")
    n.run(_batch_norm, n.inputs, list(n.outputs.values()), order.index("C") if n.x.dim() == len(order) else 1,
          n.attr("epsilon", 1e-4), n.type == "BatchNorm" and n.attr("is_training", True))  # fmt: skip


def _batch_norm(
    inputs: dict[str, torch.Tensor], outputs: list[torch.Tensor], channel: int, epsilon: float, training: bool
) -> None:
    x = inputs["x"].float()
    shape = [1] * x.dim()
    shape[channel] = -1
    axes = [axis for axis in range(x.dim()) if axis != channel]
    mean, variance = inputs.get("mean"), inputs.get("variance")
    if training or mean is None or variance is None:
        variance, mean = torch.var_mean(x, axes, correction=0)
    scale, offset = inputs["scale"], inputs["offset"]
    y = (x - mean.reshape(shape)) * torch.rsqrt(variance.reshape(shape) + epsilon)
    outputs[0].copy_(y * scale.reshape(shape) + offset.reshape(shape))
    for output, value in zip(outputs[1:5], (mean, variance, mean, variance), strict=False):
        output.copy_(value)


@kernel("LayerNorm")
def layer_norm(n: Node) -> None:
    """Normalises the last dimensions."""
    n.run(
        _layer_norm,
        n.x,
        n.gamma,
        n.beta,
        list(n.outputs.values()),
        n.attr("begin_norm_axis", 0),
        n.attr("epsilon", 1e-7),
    )


def _layer_norm(
    x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, outputs: list[torch.Tensor], axis: int, epsilon: float
) -> None:
    wide = x.float()
    axes = list(range(axis % x.dim(), x.dim()))
    variance, mean = torch.var_mean(wide, axes, correction=0, keepdim=True)
    outputs[0].copy_((wide - mean) * torch.rsqrt(variance + epsilon) * gamma.float() + beta.float())
    outputs[1].copy_(mean)
    outputs[2].copy_(variance)


@kernel("RmsNorm")
def rms_norm(n: Node) -> None:
    """Divides the last dimensions by their root mean square."""
    n.run(_rms_norm, n.x, n.gamma, list(n.outputs.values()), n.attr("epsilon", 1e-6))


def _rms_norm(x: torch.Tensor, gamma: torch.Tensor, outputs: list[torch.Tensor], epsilon: float) -> None:
    wide = x.float()
    axes = list(range(x.dim() - gamma.dim(), x.dim()))
    factor = torch.rsqrt(wide.square().mean(axes, keepdim=True) + epsilon)
    outputs[0].copy_(wide * factor * gamma.float())
    outputs[1].copy_(factor)
