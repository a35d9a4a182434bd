"""A linear layer for each group of rows, on `npu_grouped_matmul`, with the gradient that the operator lacks.

Operator: torch_npu's `npu_grouped_matmul` (aclnnGroupedMatmulV4/V5): group type 0 (groups of rows) for the output and
the gradient of the input, group type 2 (groups of the summed dimension) for the gradient of the weight, which comes out
in the parameter's own layout. The group list holds counts (list type 1), so no running total is launched. Constraints:
input and weight share a dtype (float16, bfloat16 or float32); counts are int64. Groups without rows give zero
gradients, and rows after the last group are not read: they take no part in any gradient, and theirs is 0.
"""

from typing import Any

import torch

_BY_ROWS, _BY_SUM = 0, 2  # group_type of the operator
_ONE_OUTPUT = 3  # split_item: all groups in one tensor
_COUNTS = 1  # group_list_type
_BIAS_COLUMNS = 16  # the smallest width the cube unit computes: narrower costs as much


def grouped_linear(
    x: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """`x @ weight[group].T + bias[group]` for consecutive groups of rows.

    Args:
        x: [rows, inputs], groups one after another; rows beyond `counts.sum()` belong to none.
        weight: [groups, outputs, inputs], of the dtype of `x`; any strides.
        counts: [groups], rows of each group, an integer tensor on the device.
        bias: [groups, outputs] or None.

    Returns:
        [rows, outputs], of the dtype of `x`.

    Raises:
        ValueError: sizes or dtypes do not agree.
    """
    groups, outputs, inputs = weight.shape
    if x.dim() != 2 or x.shape[1] != inputs:
        raise ValueError(f"grouped_linear: x has shape {list(x.shape)}, the weight {list(weight.shape)}: x needs "
                         f"{inputs} columns")  # fmt: skip
    if counts.shape != (groups,):
        raise ValueError(
            f"grouped_linear: {counts.numel()} counts for {groups} weights; under expert parallelism both are those of "
            "the rank's own experts"
        )
    if x.dtype != weight.dtype:
        raise ValueError(f"grouped_linear: x is {x.dtype}, the weight {weight.dtype}; they must agree")
    if bias is not None and bias.shape != (groups, outputs):
        raise ValueError(f"grouped_linear: bias has shape {list(bias.shape)}; [{groups}, {outputs}] is wanted")
    return _grouped_linear(x, weight, counts.long(), bias)


def _matrices(weight: torch.Tensor) -> torch.Tensor:
    """The operator takes matrices as they are or transposed; other strides are copied."""
    rows, columns = weight.shape[-2:]
    dense = weight.stride(0) == rows * columns
    plain = weight.stride()[-2:] == (columns, 1)
    transposed = weight.stride()[-2:] == (1, rows)
    return weight if dense and (plain or transposed) else weight.contiguous()


def _by_rows(
    x: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """`x @ weight[group] + bias[group]`; weight is [groups, inputs, outputs]."""
    if x.shape[0] == 0:
        return x.new_zeros((0, weight.shape[-1]))
    # bfloat16 products take their bias in float32.
    wide = None if bias is None else [bias.float() if x.dtype == torch.bfloat16 else bias]
    return torch.ops.npu.npu_grouped_matmul(
        [x.contiguous()],
        [_matrices(weight)],
        bias=wide,
        group_list=counts,
        split_item=_ONE_OUTPUT,
        group_type=_BY_ROWS,
        group_list_type=_COUNTS,
    )[0]


@torch.library.custom_op("torchtitan_npu::grouped_linear", mutates_args=())
def _grouped_linear(
    x: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    return _by_rows(x, weight.transpose(1, 2), counts, bias)


@_grouped_linear.register_fake
def _(x, weight, counts, bias):
    return x.new_empty((x.shape[0], weight.shape[1]))


@torch.library.custom_op("torchtitan_npu::grouped_linear_input_grad", mutates_args=())
def _input_grad(grad: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    return _by_rows(grad, weight, counts)


@_input_grad.register_fake
def _(grad, weight, counts):
    return grad.new_empty((grad.shape[0], weight.shape[2]))


@torch.library.custom_op("torchtitan_npu::grouped_linear_weight_grad", mutates_args=())
def _weight_grad(grad: torch.Tensor, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """`grad[group].T @ x[group]`, [groups, outputs, inputs]."""
    if x.shape[0] == 0:
        return x.new_zeros((counts.shape[0], grad.shape[1], x.shape[1]))
    return torch.ops.npu.npu_grouped_matmul(
        [grad.contiguous().t()],
        [x.contiguous()],
        group_list=counts,
        split_item=_ONE_OUTPUT,
        group_type=_BY_SUM,
        group_list_type=_COUNTS,
    )[0]


@_weight_grad.register_fake
def _(grad, x, counts):
    return x.new_empty((counts.shape[0], grad.shape[1], x.shape[1]))


def _setup_context(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
    x, weight, counts, bias = inputs
    ctx.save_for_backward(x, weight, counts)
    ctx.bias_dtype = None if bias is None else bias.dtype


def _backward(ctx: Any, grad: torch.Tensor) -> tuple:
    x, weight, counts = ctx.saved_tensors
    of_x, of_weight, _, of_bias = ctx.needs_input_grad
    grad_x = _input_grad(grad, weight, counts) if of_x else None
    grad_weight = _weight_grad(grad, x, counts) if of_weight else None
    grad_bias = None
    if of_bias:  # sums over each group's rows, as a product with ones
        ones = grad.new_ones((grad.shape[0], _BIAS_COLUMNS))
        grad_bias = _weight_grad(grad, ones, counts)[..., 0].to(ctx.bias_dtype)
    return grad_x, grad_weight, None, grad_bias


_grouped_linear.register_autograd(_backward, setup_context=_setup_context)
