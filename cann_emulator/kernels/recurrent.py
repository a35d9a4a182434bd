"""LSTM and GRU layers.

The gates that hardware hands from the forward to the backward operator are not written: the backward operator computes
the layers again, with autograd.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from cann_emulator.kernels.precision import deliver, wide, wide_all
from cann_emulator.kernels.registry import kernel, refuse


def _layers(
    name: str,
    x: Tensor,
    states: Tensor | Sequence[Tensor],
    params: Sequence[Tensor],
    batch_sizes: Tensor | None,
    has_bias: bool,
    layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    aten = getattr(torch.ops.aten, name)
    if batch_sizes is not None and batch_sizes.numel():
        return aten.data(x, batch_sizes, states, params, has_bias, layers, 0.0, False, bidirectional)
    return aten.input(x, states, params, has_bias, layers, 0.0, False, bidirectional, batch_first)


def _check(layers: int, dropout: float, train: bool) -> None:
    if dropout and train and layers > 1:
        refuse(161002, f"dropout is {dropout} between {layers} layers; in training only 0 is supported")


def _gradients(forward: Callable, inputs: Sequence[Tensor], grads: Sequence[Tensor | None]) -> Sequence[Tensor]:
    """Gradients of `inputs`, given those of what `forward` returns (None: zero)."""

    def compute() -> Sequence[Tensor]:
        leaves = [wide(tensor).detach().requires_grad_() for tensor in inputs]
        pairs = [(result, wide(grad)) for result, grad in zip(forward(leaves), grads, strict=True) if grad is not None]
        results, given = zip(*pairs, strict=True)
        return torch.autograd.grad(results, leaves, given)

    with ThreadPoolExecutor(1) as thread:  # a kernel's own thread has autograd off
        return thread.submit(compute).result()


@kernel("aclnnLSTM")
def lstm(
    x, params, hx, batch_sizes, has_bias, layers, dropout, train, bidirectional, batch_first, y, h, c, *gates
) -> None:
    _check(layers, dropout, train)
    wanted = (has_bias, layers, bidirectional, batch_first)
    results = _layers("lstm", wide(x), wide_all(*hx), wide_all(*params), batch_sizes, *wanted)
    for output, result in zip((y, h, c), results, strict=True):
        deliver(output, result)


@kernel("aclnnLstmBackward")
def lstm_backward(
    x, hx, params, dy, dh, dc, i, g, f, o, h, c, tanhc, batch_sizes, has_bias, layers, dropout, train,
    bidirectional, batch_first, output_mask, dx, dh_prev, dc_prev, dparams,
) -> None:  # fmt: skip
    wanted = (has_bias, layers, bidirectional, batch_first)
    grads = _gradients(
        lambda leaves: _layers("lstm", leaves[0], leaves[1:3], leaves[3:], batch_sizes, *wanted),
        [x, *hx, *params],
        [dy, dh, dc],
    )
    for output, result in zip((dx, dh_prev, dc_prev, *dparams), grads, strict=True):
        deliver(output, result)


@kernel("aclnnGRU")
def gru(x, params, hx, batch_sizes, has_bias, layers, dropout, train, bidirectional, batch_first, y, h, *gates) -> None:
    _check(layers, dropout, train)
    wanted = (has_bias, layers, bidirectional, batch_first)
    results = _layers("gru", wide(x), wide(hx), wide_all(*params), batch_sizes, *wanted)
    for output, result in zip((y, h), results, strict=True):
        deliver(output, result)


@kernel("aclnnGRUBackward")
def gru_backward(
    x, params, hx, dy, dh, r, z, n, hn, h, batch_sizes, has_bias, layers, bidirectional, batch_first, dx, dh_prev,
    dparams,
) -> None:  # fmt: skip
    wanted = (has_bias, layers, bidirectional, batch_first)
    grads = _gradients(
        lambda leaves: _layers("gru", leaves[0], leaves[1], leaves[2:], batch_sizes, *wanted),
        [x, hx, *params],
        [dy, dh],
    )
    for output, result in zip((dx, dh_prev, *dparams), grads, strict=True):
        deliver(output, result)
