"""Faster forms of a few kernels for bf16, which the bridge registers with torch (`native/bridge/fused.cpp`).

A kernel works without them: they do the same in one pass, where the Python form makes a pass for every step.
"""

from collections.abc import Callable

import torch


def find(name: str, *tensors: torch.Tensor | None) -> Callable | None:
    """The faster form, if there is one and the tensors are what it takes: contiguous and bf16, or an fp32 statistic."""
    if not all(t is not None and t.is_contiguous() for t in tensors) or tensors[0].dtype != torch.bfloat16:  # type: ignore[union-attr]
        return None
    return getattr(torch.ops.cann_emulator, name, None)
