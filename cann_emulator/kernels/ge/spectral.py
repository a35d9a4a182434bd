"""Fourier transforms over the last dimensions."""

import torch

from .registry import Node, kernel

_FORMS = {"FFT": torch.fft.fft, "IFFT": torch.fft.ifft, "FFT2D": torch.fft.fft2, "IFFT2D": torch.fft.ifft2}


@kernel(*_FORMS)
def fft(n: Node) -> None:
    """A complex transform."""
    n.run(_apply, _FORMS[n.type], next(iter(n.inputs.values())), n.out)


def _apply(form, x: torch.Tensor, y: torch.Tensor) -> None:  # one of torch.fft's functions
    y.copy_(form(x))


@kernel("RFFT", "IRFFT")
def rfft(n: Node) -> None:
    """A transform from or to real numbers."""
    n.run(_real, torch.fft.rfft if n.type == "RFFT" else torch.fft.irfft, next(iter(n.inputs.values())), n.out,
          n.ints("fft_length")[-1])  # fmt: skip


def _real(form, x: torch.Tensor, y: torch.Tensor, length: int) -> None:  # one of torch.fft's functions
    y.copy_(form(x, n=length))
