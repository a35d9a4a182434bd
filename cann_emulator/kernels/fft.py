"""Fourier transforms."""

import torch
from torch import Tensor

from cann_emulator.kernels.precision import wide
from cann_emulator.kernels.registry import kernel, refuse

_NORMS = {1: "backward", 2: "forward", 3: "ortho"}


@kernel("aclRfft1D")
def rfft(self: Tensor, n: int, dim: int, norm: int, out: Tensor) -> None:
    """Real and imaginary part are the last dimension of `out`."""
    if norm not in _NORMS:
        refuse(161002, f"norm is {norm}; allowed are 1 (backward), 2 (forward) and 3 (ortho)")
    out.copy_(torch.view_as_real(torch.fft.rfft(wide(self), n, dim, _NORMS[norm])))


@kernel("aclStft")
def stft(
    self: Tensor,
    window: Tensor | None,
    out: Tensor,
    n_fft: int,
    hop: int,
    length: int,
    normalized: bool,
    onesided: bool,
    return_complex: bool,
) -> None:
    spectrum = torch.stft(
        self, n_fft, hop, length, window, center=False, normalized=normalized, onesided=onesided, return_complex=True
    )
    out.copy_(spectrum if return_complex else torch.view_as_real(spectrum))
