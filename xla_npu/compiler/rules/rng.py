"""rng_bit_generator: the bits that XLA's Threefry and Philox generators give, from 32-bit integer operations."""

from __future__ import annotations

from typing import Any

import numpy as np

from xla_npu.compiler.attributes import tensor_type, word
from xla_npu.compiler.dtypes import UNSIGNED, ElementType
from xla_npu.compiler.errors import Unsupported
from xla_npu.compiler.lowering import Lowering, rule
from xla_npu.compiler.rules.elementwise import mulhi
from xla_npu.compiler.tensor import Tensor

U32, U64 = UNSIGNED[32], UNSIGNED[64]
# Published constants of the generators (Salmon et al., Parallel random numbers: as easy as 1, 2, 3).
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
THREEFRY_PARITY = 0x1BD11BDA
PHILOX_MULTIPLIERS, PHILOX_WEYL = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)


@rule("stablehlo.rng_bit_generator")
def rng_bit_generator(b: Lowering, op: Any, state: Tensor) -> list[Tensor]:
    kind, shape = tensor_type(op.results[1])
    if state.type != U64:
        raise Unsupported(f"a generator state of {state.type.name} has no lowering; use 64-bit words")
    algorithm = word(op, "rng_algorithm")
    key = _element(b, state, 0)
    if algorithm == "THREE_FRY":
        counter, bits = _threefry(b, key, _element(b, state, 1), kind, shape)
        return [_vector(b, [key, counter]), bits]
    # The counter has 128 bits, its low word first; a state of two words holds the key and the high word's place.
    if state.shape[0] >= 3:
        low, high = _element(b, state, 1), _element(b, state, 2)
    else:
        low, high = _element(b, state, 1), key
    (low, high), bits = _philox(b, key, low, high, kind, shape)
    return [_vector(b, [key, low, high][: max(state.shape[0], 2)]), bits]


def _element(b: Lowering, vector: Tensor, i: int) -> Tensor:
    return b.reshape(b.slice_axis(vector, 0, i, i + 1), ())


def _vector(b: Lowering, scalars: list[Tensor]) -> Tensor:
    return b.concatenate([b.reshape(s, (1,)) for s in scalars], 0)


def _words(b: Lowering, x: Tensor) -> tuple[Tensor, Tensor]:
    """The low and the high half of 64-bit words."""
    return b.convert(x, U32), b.convert(b.shift_right_logical(x, b.scalar(32, x)), U32)


def _join(b: Lowering, low: Tensor, high: Tensor) -> Tensor:
    wide = b.convert(high, U64)
    return b.or_(b.convert(low, U64), b.shift_left(wide, b.scalar(32, wide)))


def _prod(shape: Any) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _threefry(
    b: Lowering, key: Tensor, counter: Tensor, kind: ElementType, shape: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    wide = kind.bits == 64
    split = next((i for i, n in enumerate(shape) if n % 2 == 0), int(np.argmax(shape)) if shape else 0)
    # Every counter gives two words: one 64-bit element, or two 32-bit ones side by side along one dimension.
    half = shape if wide else tuple(-(-n // 2) if i == split else n for i, n in enumerate(shape)) or (1,)
    total = _prod(half)
    flat = b.reshape(b.iota((total,), 0, U64), half)
    low, high = _words(b, b.add(b.broadcast(counter, half), flat))
    x, y = threefry2x32(b, [b.broadcast(k, half) for k in _words(b, key)], low, high)
    counter = b.add(counter, b.scalar(total, counter))
    if wide:
        return counter, Tensor(kind, shape, _join(b, x, y).parts)
    if not shape:
        return counter, b.convert(b.reshape(x, ()), kind)
    pair = (*half[: split + 1], 1, *half[split + 1 :])
    both = b.concatenate([b.reshape(x, pair), b.reshape(y, pair)], split + 1)
    both = b.reshape(both, (*half[:split], 2 * half[split], *half[split + 1 :]))
    return counter, b.convert(b.slice_axis(both, split, 0, shape[split]), kind)


def threefry2x32(b: Lowering, key: list[Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Threefry-2x32 with 20 rounds."""
    keys = [*key, b.xor(b.xor(key[0], key[1]), b.scalar(THREEFRY_PARITY, key[0]))]
    x, y = b.add(x, keys[0]), b.add(y, keys[1])
    for group in range(5):
        for distance in ROTATIONS[group % 2]:
            x = b.add(x, y)
            left = b.shift_left(y, b.scalar(distance, y))
            y = b.xor(x, b.or_(left, b.shift_right_logical(y, b.scalar(32 - distance, y))))
        x = b.add(x, keys[(group + 1) % 3])
        y = b.add(b.add(y, keys[(group + 2) % 3]), b.scalar(group + 1, y))
    return x, y


def _philox(
    b: Lowering, key: Tensor, low: Tensor, high: Tensor, kind: ElementType, shape: tuple[int, ...]
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    words = _prod(shape) * (2 if kind.bits == 64 else 1)
    blocks = -(-words // 4)
    place = b.iota((blocks,), 0, U64)
    lows = b.add(b.broadcast(low, (blocks,)), place)
    carry = b.compare(lows, b.broadcast(low, (blocks,)), "LT")
    highs = b.broadcast(high, (blocks,))
    highs = b.select(carry, b.add(highs, b.scalar(1, highs)), highs)
    state = [*_words(b, lows), *_words(b, highs)]
    keys = [b.broadcast(k, (blocks,)) for k in _words(b, key)]
    for _ in range(10):
        products = []
        for word_, multiplier in ((state[0], PHILOX_MULTIPLIERS[0]), (state[2], PHILOX_MULTIPLIERS[1])):
            factor = b.scalar(multiplier, word_)
            products.append((mulhi(b, None, word_, factor), b.multiply(word_, factor)))
        (high0, low0), (high1, low1) = products
        state = [
            b.xor(b.xor(high1, state[1]), keys[0]),
            low1,
            b.xor(b.xor(high0, state[3]), keys[1]),
            low0,
        ]
        keys = [b.add(k, b.scalar(weyl, k)) for k, weyl in zip(keys, PHILOX_WEYL, strict=True)]
    if kind.bits == 64:
        state = [_join(b, state[0], state[1]), _join(b, state[2], state[3])]
    columns = b.concatenate([b.reshape(b.full(s), (blocks, 1)) for s in state], 1)
    flat = b.slice_axis(b.reshape(columns, (blocks * len(state),)), 0, 0, _prod(shape))
    bits = b.reshape(flat, shape)
    bits = b.convert(bits, kind) if kind.bits < 32 else Tensor(kind, shape, bits.parts)
    after = b.add(low, b.scalar(blocks, low))
    overflow = b.compare(after, low, "LT")
    return (after, b.select(overflow, b.add(high, b.scalar(1, high)), high)), bits
