"""Random numbers from a counter-based generator (Philox), keyed by (seed, offset).

The numbers of a call depend on seed, offset and size alone: not on the device, the run, or the number of threads. The
key is the seed; the counter holds the offset in its upper half, so calls with different offsets never share numbers,
however many each draws.
"""

import math
import threading
from collections.abc import Callable

import numpy as np
import torch

from cann_emulator.kernels.precision import HALVES, deliver, wide
from cann_emulator.kernels.registry import kernel, refuse

_WORD = (1 << 64) - 1
_BLOCK = 1 << 20  # numbers drawn at a time: bounds the temporary of a half or strided tensor

Draw = Callable[[np.random.Generator, int], np.ndarray]


class _Philox(threading.local):
    """One bit generator a thread, moved to a call's key and counter (making a new one takes ten times as long)."""

    def __init__(self) -> None:
        self.bits = np.random.Philox(0)
        self.start = self.bits.state  # its buffer is empty
        self.generator = np.random.Generator(self.bits)


_philox = _Philox()


def generator(seed: int, offset: int, block: int = 0) -> np.random.Generator:
    """The generator of one call; `block` numbers the blocks that a call draws."""
    start = _philox.start
    start["state"]["key"][:] = seed & _WORD, 0
    start["state"]["counter"][:] = 0, 0, offset & _WORD, block
    _philox.bits.state = start
    return _philox.generator


def key_of(seed: torch.Tensor, base: torch.Tensor, offset: int) -> tuple[int, int]:
    """(seed, offset) where both lie on the device, as inside a captured graph."""
    return int(seed.item()), int(base.item()) + offset


def _fill(tensor: torch.Tensor, seed: int, offset: int, draw: Draw) -> torch.Tensor:
    """Fills a tensor, in order of its elements."""
    target = tensor if tensor.is_contiguous() else torch.empty_like(tensor, memory_format=torch.contiguous_format)
    flat = target.view(-1)
    for block, start in enumerate(range(0, flat.numel(), _BLOCK)):
        part = flat[start : start + _BLOCK]
        part.copy_(torch.from_numpy(draw(generator(seed, offset, block), part.numel())))
    if target is not tensor:
        tensor.copy_(target)
    return tensor


def _real(dtype: torch.dtype) -> type:
    return np.float64 if dtype == torch.float64 else np.float32


def uniform(like: torch.Tensor, seed: int, offset: int, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
    """A tensor of the shape of `like`, uniform in [low, high)."""
    kind = torch.float64 if like.dtype == torch.float64 else torch.float32
    values = torch.empty(like.shape, dtype=kind)
    _fill(values, seed, offset, lambda gen, n: gen.random(n, dtype=_real(kind)))
    return values if (low, high) == (0.0, 1.0) else values.mul_(high - low).add_(low)


def normal(like: torch.Tensor, seed: int, offset: int) -> torch.Tensor:
    """A tensor of the shape of `like`, standard normal."""
    kind = torch.float64 if like.dtype == torch.float64 else torch.float32
    values = torch.empty(like.shape, dtype=kind)
    return _fill(values, seed, offset, lambda gen, n: gen.standard_normal(n, dtype=_real(kind)))


_REALS = (torch.float32, torch.float64, *HALVES)


def _check_real(name: str, tensor: torch.Tensor) -> None:
    if tensor.dtype.is_complex:
        refuse(
            161002,
            f"Tensor {name} not implemented for DT_{str(tensor.dtype).removeprefix('torch.').upper()}, should be in "
            "dtype support list [DT_FLOAT16,DT_FLOAT,DT_INT32,DT_INT64,DT_BOOL,DT_INT8,DT_UINT8,DT_INT16,DT_DOUBLE,"
            "DT_BFLOAT16].",
        )


@kernel("aclnnInplaceUniform")
def inplace_uniform(x, low, high, seed, offset):
    _check_real("selfRef", x)
    kind = _real(x.dtype)
    span = high - low

    def draw(gen: np.random.Generator, n: int) -> np.ndarray:
        values = gen.random(n, dtype=kind)
        if span != 1.0:
            values *= kind(span)
        if low:
            values += kind(low)
        return values

    _fill(x, seed, offset, draw)
    if x.dtype in HALVES or span != 1.0 or low:  # rounding may have reached the bound that is excluded
        x.masked_fill_(x >= high, low)


@kernel("aclnnInplaceUniformTensor")
def inplace_uniform_tensor(x, low, high, seed, base, offset):
    inplace_uniform(x, low, high, *key_of(seed, base, offset))


@kernel("aclnnInplaceNormal")
def inplace_normal(x, mean, std, seed, offset):
    _check_real("selfRef", x)
    kind = _real(x.dtype)

    def draw(gen: np.random.Generator, n: int) -> np.ndarray:
        values = gen.standard_normal(n, dtype=kind)
        if std != 1.0:
            values *= kind(std)
        if mean:
            values += kind(mean)
        return values

    _fill(x, seed, offset, draw)


@kernel("aclnnInplaceNormalTensor")
def inplace_normal_tensor(x, mean, std, seed, base, offset):
    inplace_normal(x, mean, std, *key_of(seed, base, offset))


@kernel("aclnnNormalFloatFloat")
def normal_float_float(mean, std, seed, offset, out):
    inplace_normal(out, mean, std, seed, offset)


@kernel("aclnnNormalFloatTensor", "aclnnNormalTensorFloat", "aclnnNormalTensorTensor")
def normal_tensors(mean, std, seed, offset, out):
    mean = wide(mean) if isinstance(mean, torch.Tensor) else mean
    std = wide(std) if isinstance(std, torch.Tensor) else std
    deliver(out, normal(out, seed, offset) * std + mean)


def _integers(low: int, high: int) -> Draw:
    """Draws integers of [low, high)."""
    return lambda gen, n: gen.integers(low, high, n, dtype=np.int64)


@kernel("aclnnInplaceRandom")
def inplace_random(x, low, high, seed, offset):
    _fill(x, seed, offset, _integers(low, high))


@kernel("aclnnInplaceRandomTensor")
def inplace_random_tensor(x, low, high, seed, base, offset):
    inplace_random(x, low, high, *key_of(seed, base, offset))


# Integers up to which every one is representable, by floating dtype.
_EXACT = {torch.float64: 1 << 53, torch.float32: 1 << 24, torch.float16: 1 << 11, torch.bfloat16: 1 << 8}


@kernel("aclnnInplaceRandomWithoutFromTo")
def inplace_random_full(x, seed, offset):
    last = _EXACT.get(x.dtype) or (1 if x.dtype == torch.bool else torch.iinfo(x.dtype).max)
    _fill(x, seed, offset, lambda gen, n: gen.integers(0, last, n, dtype=np.int64, endpoint=True))


@kernel("aclnnInplaceRandomWithoutFromToTensor")
def inplace_random_full_tensor(x, seed, base, offset):
    inplace_random_full(x, *key_of(seed, base, offset))


@kernel("aclnnInplaceBernoulli")
def inplace_bernoulli(x, probability, seed, offset):
    if not 0 <= probability <= 1:
        refuse(161002, f"prob is {probability}; it must be in [0, 1]")
    _fill(x, seed, offset, lambda gen, n: gen.random(n, dtype=np.float64) < probability)


@kernel("aclnnInplaceBernoulliTensor")
def inplace_bernoulli_tensor(x, probability, seed, offset):
    draws = uniform(torch.empty(x.shape, dtype=torch.float64), seed, offset)
    x.copy_(draws < probability.double())


@kernel("aclnnSimThreadExponential")
def exponential(x, count, rate, seed, offset):
    kind = _real(x.dtype)
    _fill(x, seed, offset, lambda gen, n: gen.standard_exponential(n, dtype=kind, method="inv") * kind(1 / rate))


@kernel("aclnnStatelessExponentialTensor")
def exponential_tensor(x, seed, base, offset, rate):
    exponential(x, x.numel(), rate, *key_of(seed, base, offset))


@kernel("aclnnRandperm")
def randperm(n, seed, offset, out):
    deliver(out, torch.from_numpy(generator(seed, offset).permutation(n)))


@kernel("aclnnMultinomial")
def multinomial(weights, samples, replacement, seed, offset, out):
    rows = wide(weights).reshape(-1, weights.shape[-1])
    if replacement:
        cumulative = rows.double().cumsum(-1)
        draws = uniform(torch.empty(rows.shape[0], samples, dtype=torch.float64), seed, offset)
        found = torch.searchsorted(cumulative, draws * cumulative[:, -1:], right=True)
        last = (rows > 0).int().mul(torch.arange(1, rows.shape[-1] + 1)).amax(-1, keepdim=True) - 1
        deliver(out, torch.minimum(found, last))
    else:  # the order of exponential variates with the weights as rates is a sample without replacement
        draws = uniform(rows.double(), seed, offset)
        keys = torch.where(rows > 0, -torch.log1p(-draws) / rows.double(), math.inf)
        deliver(out, keys.topk(samples, largest=False).indices)


@kernel("aclnnMultinomialTensor")
def multinomial_tensor(weights, samples, replacement, seed, base, offset, out):
    multinomial(weights, samples, replacement, *key_of(seed, base, offset), out)
