"""Tensors filled with values that depend on no other tensor, where ATen's operator does not fit as it is."""

import torch
from torch import Tensor

from cann_emulator.kernels.registry import kernel, refuse


@kernel("aclnnArange")
def arange(start: float, end: float, step: float, out: Tensor) -> None:
    values = torch.arange(start, end, step, dtype=out.dtype)
    if values.numel() != out.numel():
        # torch_npu sizes int64 ranges by the bounds' integer parts, and hardware would fill what it is given.
        refuse(
            161002,
            f"out has {out.numel()} elements, the range from {start} to {end} in steps of {step} has {values.numel()}; "
            "give an int64 range integer bounds and step",
        )
    out.copy_(values)
