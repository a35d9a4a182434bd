"""Halves are computed in fp32 and rounded once, as the NPU's units do."""

import torch

HALVES = (torch.float16, torch.bfloat16)


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor to compute with: fp32 for a half, else the tensor itself."""
    return tensor.float() if tensor.dtype in HALVES else tensor


def wide_all(*tensors: torch.Tensor | None) -> list:
    """`wide` of every tensor; None stays None."""
    return [None if tensor is None else wide(tensor) for tensor in tensors]


def deliver(output: torch.Tensor | None, result: torch.Tensor | None) -> None:
    """Rounds a result into an output; either may be absent. The number of elements must agree."""
    if output is not None and result is not None:
        output.copy_(result.reshape(output.shape) if result.shape != output.shape else result)
