"""Dropout: a mask of bits, the lowest bit of a byte first, 1 for an element that is kept."""

import math

import numpy as np
import torch

from cann_emulator.kernels.precision import deliver, wide
from cann_emulator.kernels.random import generator, key_of
from cann_emulator.kernels.registry import kernel, refuse


def pack(kept: np.ndarray, mask: torch.Tensor) -> None:
    """Writes booleans as bits; what is left of the mask becomes 0."""
    bits = torch.from_numpy(np.packbits(kept, bitorder="little"))
    flat = mask.view(-1)
    flat[: bits.numel()].copy_(bits)
    flat[bits.numel() :].zero_()


def unpack(mask: torch.Tensor, count: int) -> torch.Tensor:
    """The first `count` bits of a mask, as booleans."""
    data = mask.contiguous().view(torch.uint8).view(-1)
    if data.numel() * 8 < count:
        refuse(161002, f"the dropout mask has {data.numel()} bytes; {count} elements need {(count + 7) // 8}")
    return torch.from_numpy(np.unpackbits(data.numpy(), count=count, bitorder="little")).bool()


@kernel("aclnnDropoutGenMask")
def dropout_gen_mask(shape, probability, seed, offset, mask):
    if not 0 <= probability <= 1:
        refuse(161002, f"prob is {probability}; it must be in [0, 1]")
    pack(generator(seed, offset).random(math.prod(shape), dtype=np.float32) >= probability, mask)


@kernel("aclnnDropoutGenMaskV2")
def dropout_gen_mask_v2(shape, probability, seed, offset, dtype, mask):
    dropout_gen_mask(shape, probability, seed, offset, mask)


@kernel("aclnnDropoutGenMaskV2Tensor")
def dropout_gen_mask_v2_tensor(shape, probability, seed, base, offset, dtype, mask):
    dropout_gen_mask(shape, probability, *key_of(seed, base, offset), mask)


@kernel("aclnnDropoutDoMask")
def dropout_do_mask(x, mask, probability, out):
    if probability == 1:
        out.zero_()
        return
    kept = unpack(mask, x.numel()).view(x.shape)
    deliver(out, (wide(x) * (1 / (1 - probability))).masked_fill_(~kept, 0))


@kernel("aclnnDropoutV3")
def dropout_v3(x, noise_shape, probability, seed, offset, out, mask):
    if noise_shape is not None:
        refuse(161002, "optionalNoiseShape must be null: it is reserved")
    dropout_gen_mask(list(x.shape), probability, seed, offset, mask)
    dropout_do_mask(x, mask, probability, out)


@kernel("aclnnDropoutV3Tensor")
def dropout_v3_tensor(x, noise_shape, probability, seed, base, offset, out, mask):
    dropout_v3(x, noise_shape, probability, *key_of(seed, base, offset), out, mask)


@kernel("aclnnDropoutV3Grad")
def dropout_v3_grad(grad, mask, scale, dx):
    dropout_do_mask(grad, mask, scale, dx)
