"""Reductions that ATen does not have in the operator's form."""

import torch
from torch import Tensor

from cann_emulator.kernels.precision import wide
from cann_emulator.kernels.registry import kernel


@kernel("aclnnAminmax")
def aminmax(self: Tensor, dim: list[int], keepdim: bool, min_out: Tensor, max_out: Tensor) -> None:
    min_out.copy_(torch.amin(self, dim, keepdim))
    max_out.copy_(torch.amax(self, dim, keepdim))


@kernel("aclnnAll")
def all_(self: Tensor, dim: list[int], keepdim: bool, out: Tensor) -> None:
    out.copy_(torch.all(self, dim or None, keepdim))  # to ATen an empty list means none, to aclnn every dimension


@kernel("aclnnAny")
def any_(self: Tensor, dim: list[int], keepdim: bool, out: Tensor) -> None:
    out.copy_(torch.any(self, dim or None, keepdim))


@kernel("aclnnHistc")
def histc(self: Tensor, bins: int, low: float, high: float, out: Tensor) -> None:
    values = wide(self) if self.is_floating_point() else self.double()
    out.copy_(torch.histc(values, bins, low, high))
