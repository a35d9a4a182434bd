"""Sparse tensors in coordinate form."""

from torch import Tensor

from cann_emulator.kernels.registry import kernel


@kernel("aclnnCoalesceSparse")
def coalesce(
    count: Tensor, places: Tensor, indices: Tensor, values: Tensor, new_indices: Tensor, new_values: Tensor
) -> None:
    """Sums values with the same coordinates; `places` says where in the result the coordinates of each are."""
    new_indices[places.long()] = indices.to(new_indices.dtype)
    new_values.copy_(new_values.new_zeros(new_values.shape).index_add_(0, places.long(), values))
