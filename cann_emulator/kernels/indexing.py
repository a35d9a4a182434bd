"""Reading and writing by index tensors."""

import torch
from torch import Tensor

from cann_emulator.kernels.precision import HALVES, wide
from cann_emulator.kernels.registry import kernel


def _is_placeholder(index: Tensor | None) -> bool:
    """torch_npu stands an empty tensor of the data's dtype where a dimension is not indexed."""
    return index is None or index.shape == (0,)


@kernel("aclnnIndex")
def index(self: Tensor, indices: list[Tensor | None], out: Tensor) -> None:
    if out.numel() == 0:  # so every empty index below is a placeholder, since a real one would select nothing
        return
    out.copy_(torch.ops.aten.index.Tensor(self, [None if _is_placeholder(i) else i for i in indices]))


@kernel("aclnnIndexPutImpl")
def index_put(self: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool, unsafe: bool) -> None:
    if all(_is_placeholder(i) for i in indices):  # nothing is selected
        return
    chosen = [None if _is_placeholder(i) else i for i in indices]
    if accumulate and self.dtype in HALVES:
        self.copy_(torch.ops.aten._index_put_impl_(self.float(), chosen, values.float(), True, unsafe))
    else:
        torch.ops.aten._index_put_impl_(self, chosen, values.to(self.dtype), accumulate, unsafe)


@kernel("aclnnIndexFillTensor")
def index_fill(self: Tensor, dim: int, positions: list[int], value: float, out: Tensor) -> None:
    out.copy_(self.index_fill(dim, torch.tensor(positions, dtype=torch.int64), value))


@kernel("aclnnInplaceIndexFillTensor")
def inplace_index_fill(self: Tensor, dim: int, positions: list[int], value: float) -> None:
    self.index_fill_(dim, torch.tensor(positions, dtype=torch.int64), value)


@kernel("aclnnGatherV3")
def gather(self: Tensor, dim: int, index: Tensor, batch_dims: int, mode: int, out: Tensor) -> None:
    """Selects along `dim`; the first `batch_dims` dimensions of `self` and `index` go together."""
    dim %= max(self.dim(), 1)
    batches = self.shape[:batch_dims].numel()
    rows = self.reshape(batches, *self.shape[batch_dims:])
    wanted = index.reshape(batches, -1)
    results = [row.index_select(dim - batch_dims, chosen.long()) for row, chosen in zip(rows, wanted, strict=True)]
    if results:
        out.copy_(torch.stack(results).reshape(out.shape))


@kernel("aclnnRepeatInterleaveGrad")
def repeat_interleave_grad(grad: Tensor, repeats: Tensor, axis: int, out: Tensor) -> None:
    size = out.shape[axis]
    counts = repeats.reshape(-1).expand(size)
    owners = torch.repeat_interleave(torch.arange(size), counts)
    shape = list(grad.shape)
    shape[axis] = size
    out.copy_(wide(grad).new_zeros(shape).index_add_(axis, owners, wide(grad)).reshape(out.shape))


@kernel("aclnnEmbeddingBag")
def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    include_last_offset: bool,
    padding_idx: int,
    output: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    max_indices: Tensor,
) -> None:
    same = torch.promote_types(indices.dtype, offsets.dtype)
    results = torch._embedding_bag_forward_only(
        wide(weight),
        indices.to(same),
        offsets.to(same),
        scale_grad_by_freq,
        mode,
        sparse,
        None if per_sample_weights is None else wide(per_sample_weights),
        include_last_offset,
        padding_idx,
    )
    for result, out in zip(results, (output, offset2bag, bag_size, max_indices), strict=True):
        if out is not None and result.shape == out.shape:
            out.copy_(result)
