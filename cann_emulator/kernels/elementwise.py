"""Element-wise operators that are more than one ATen operator, or whose options ATen spells differently."""

import torch
from torch import Tensor

from cann_emulator.kernels.precision import wide
from cann_emulator.kernels.registry import kernel, refuse

_ROUNDING = {0: None, 1: "trunc", 2: "floor"}


def _rounding(mode: int) -> str | None:
    if mode not in _ROUNDING:
        refuse(161002, f"mode is {mode}; allowed are 0 (true division), 1 (towards zero) and 2 (floor)")
    return _ROUNDING[mode]


@kernel("aclnnDivMod", "aclnnDivMods")
def div_mod(self: Tensor, other: Tensor | float, mode: int, out: Tensor) -> None:
    out.copy_(torch.div(self, other, rounding_mode=_rounding(mode)))


@kernel("aclnnInplaceDivMod", "aclnnInplaceDivMods")
def inplace_div_mod(self: Tensor, other: Tensor | float, mode: int) -> None:
    self.div_(other, rounding_mode=_rounding(mode))


@kernel("aclnnAddV3")
def add_number(self: float, other: Tensor, alpha: float, out: Tensor) -> None:
    out.copy_(wide(other).mul(alpha).add(self))


@kernel("aclnnEqual")
def equal(self: Tensor, other: Tensor, out: Tensor) -> None:
    out.fill_(torch.equal(self, other))


@kernel("aclnnMaskedScale")
def masked_scale(self: Tensor, mask: Tensor, scale: float, out: Tensor) -> None:
    out.copy_(wide(self) * wide(mask) * scale)


@kernel("aclnnInplaceFillTensor")
def inplace_fill(self: Tensor, value: Tensor) -> None:
    self.fill_(value.reshape(()))


@kernel("aclnnInplaceMaskedFillTensor")
def inplace_masked_fill(self: Tensor, mask: Tensor, value: Tensor) -> None:
    self.masked_fill_(mask, value.reshape(()))
