"""Tensors that are spread over ranks."""

import torch
from torch.distributed.tensor import DTensor


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The rank's own part; the tensor itself where it is not spread."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
