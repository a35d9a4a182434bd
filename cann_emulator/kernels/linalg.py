"""Decompositions whose options or outputs differ from ATen's."""

import torch
from torch import Tensor

from cann_emulator.kernels.precision import deliver, wide
from cann_emulator.kernels.registry import kernel, refuse

_QR_MODES = {0: "reduced", 1: "complete", 2: "r"}


@kernel("aclnnLinalgQr")
def qr(self: Tensor, mode: int, q: Tensor | None, r: Tensor) -> None:
    if mode not in _QR_MODES:
        refuse(161002, f"mode is {mode}; allowed are 0 (reduced), 1 (complete) and 2 (R only)")
    q_found, r_found = torch.linalg.qr(wide(self), _QR_MODES[mode])
    if mode != 2 and q is not None:
        q.copy_(q_found)
    r.copy_(r_found)


@kernel("aclnnSvd")
def svd(
    input: Tensor, full_matrices: bool, compute_uv: bool, sigma: Tensor, u: Tensor | None, v: Tensor | None
) -> None:
    if not compute_uv:
        sigma.copy_(torch.linalg.svdvals(wide(input)))
        return
    u_found, s_found, vh_found = torch.linalg.svd(wide(input), full_matrices)
    sigma.copy_(s_found)
    deliver(u, u_found)
    deliver(v, vh_found.mH)


@kernel("aclnnPdist")
def pairwise_distance(self: Tensor, p: float, out: Tensor) -> None:
    out.copy_(torch.pdist(wide(self).contiguous(), p))
