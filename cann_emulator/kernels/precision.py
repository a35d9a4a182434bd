"""Halves are computed in fp32 and rounded once, as the NPU's units do."""

import torch
from torch import Tensor

HALVES = (torch.float16, torch.bfloat16)


def wide(tensor: Tensor | None) -> Tensor | None:
    """The tensor to compute with: fp32 for a half, else the tensor itself."""
    return tensor.float() if tensor is not None and tensor.dtype in HALVES else tensor


def wide_all(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """`wide` of each."""
    return tuple(wide(tensor) for tensor in tensors)


def deliver(output: Tensor | None, result: Tensor | None) -> None:
    """Rounds a result into the operator's output, where the caller asked for that output."""
    if output is not None and result is not None:
        output.copy_(result.reshape(output.shape))
