"""Grouped matrix products: one product per group of rows (group type 0) or of the summed dimension (type 2).

`groupListType` says what the group list holds: 0 where each group ends, 1 how many rows it has, 2 pairs of (group,
rows) that name only the groups in use. Rows after the last group are neither read nor computed; their output is 0.
"""

import itertools

import torch
import torch.nn.functional as F

from cann_emulator.kernels.precision import deliver, wide
from cann_emulator.kernels.quantisation import plain_scale
from cann_emulator.kernels.registry import kernel, refuse

_ACTIVATIONS = {
    1: F.relu,
    2: lambda x: F.gelu(x, approximate="tanh"),
    4: lambda x: x * torch.sigmoid(1.702 * x),
    5: F.silu,
}

# (group, first row, last row + 1)
Span = tuple[int, int, int]


def spans(group_list, list_type: int, total: int, groups: int, unit: str = "rows") -> list[Span]:
    """Where each group lies.

    Args:
        group_list: the list, as a tensor or as integers.
        list_type: 0 ends, 1 counts, 2 (group, count) pairs.
        total: rows there are.
        groups: groups there are, which the list must not exceed.
        unit: what is grouped, for messages.
    """
    values = group_list.tolist() if isinstance(group_list, torch.Tensor) else list(group_list)
    if list_type == 2:
        pairs = [(int(group), int(count)) for group, count in values]
    else:
        if list_type == 0:
            ends = [0, *values]
            if any(b < a for a, b in itertools.pairwise(ends)):
                refuse(161002, f"groupList is {values}; with groupListType 0 it holds where each group ends and must "
                               "not decrease. Counts are groupListType 1")  # fmt: skip
            values = [b - a for a, b in itertools.pairwise(ends)]
        elif list_type != 1:
            refuse(161002, f"groupListType is {list_type}; it is 0 (ends), 1 (counts) or 2 (pairs)")
        pairs = list(enumerate(values))
    if any(count < 0 for _, count in pairs):
        refuse(161002, f"groupList has a negative count: {values}")
    if any(not 0 <= group < groups for group, _ in pairs):
        refuse(161002, f"groupList names {len(pairs)} groups, but there are {groups} weights")
    covered = sum(count for _, count in pairs)
    if covered > total:
        refuse(161002, f"groupList covers {covered} {unit} (groupListType {list_type}), but there are {total}")
    result, begin = [], 0
    for group, count in pairs:
        result.append((group, begin, begin + count))
        begin += count
    return result


def _pick(tensors: list | None, group: int) -> torch.Tensor | None:
    """A group's tensor of an optional list: one tensor a group, or one for all with a dimension of groups."""
    if not tensors or tensors[0] is None or tensors[0].numel() == 0:
        return None
    return tensors[group] if len(tensors) > 1 else tensors[0][group] if tensors[0].dim() > 1 else tensors[0]


def _weights(weight: list) -> list[torch.Tensor]:
    return list(weight[0]) if len(weight) == 1 and weight[0].dim() == 3 else list(weight)


def _product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if x.shape[-1] != weight.shape[0]:
        refuse(161002, f"x has {x.shape[-1]} columns, the group's weight {weight.shape[0]} rows; they must agree")
    return wide(x) @ wide(weight)


def _integer_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """An int8 product; exact, since fp64 holds every sum that int32 holds."""
    return x.double() @ weight.double()


class _Epilogue:
    """What follows a group's product: bias, scales and activation."""

    def __init__(self, bias, scale, offset, antiquant_scale, antiquant_offset, token_scale, activation: int) -> None:
        self.bias, self.scale, self.offset = bias, scale, offset
        self.antiquant_scale, self.antiquant_offset = antiquant_scale, antiquant_offset
        self.token_scale = token_scale[0] if token_scale and token_scale[0] is not None else None
        if activation and activation not in _ACTIVATIONS:
            refuse(161002, f"actType is {activation}; it is 0 or one of {list(_ACTIVATIONS)}")
        self.activation = _ACTIVATIONS.get(activation)

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, group: int, rows: slice) -> torch.Tensor:
        bias, scale = _pick(self.bias, group), _pick(self.scale, group)
        if x.dtype == torch.int8 and weight.dtype == torch.int8:
            if _pick(self.offset, group) is not None:
                refuse(561000, "a quantised grouped product with an offset is not implemented")
            result = _integer_product(x, weight)
            if bias is not None and bias.dtype == torch.int32:
                result, bias = result + bias.double(), None
            if scale is not None:
                result = result * plain_scale(scale).double()
            if self.token_scale is not None:
                result = result * self.token_scale[rows].double().unsqueeze(-1)
        elif x.dtype.is_floating_point and weight.dtype == torch.int8:
            factor = _pick(self.antiquant_scale, group)
            if factor is None or factor.dim() != 1:
                refuse(561000, "an int8 weight needs antiquantScale with a value per column; other forms are not "
                               "implemented")  # fmt: skip
            shift = _pick(self.antiquant_offset, group)
            values = weight.float() if shift is None else weight.float() + wide(shift)
            result = wide(x) @ (values * wide(factor))
        elif x.dtype.is_floating_point and x.dtype == weight.dtype:
            result = _product(x, weight)
        else:
            refuse(561000, f"a grouped product of {x.dtype} and {weight.dtype} is not implemented")
        if bias is not None:
            result = result + bias.to(result.dtype)
        return result if self.activation is None else self.activation(result.float())


def _by_rows(x: list, weight: list, group_list, list_type: int, outputs: list, finish: _Epilogue) -> None:
    matrices = _weights(weight)
    if len(x) > 1:  # one tensor a group
        if len(x) != len(matrices):
            refuse(161002, f"x has {len(x)} tensors, weight {len(matrices)}; they must agree")
        begin = 0
        for group, (rows, matrix) in enumerate(zip(x, matrices, strict=True)):
            result = finish(rows.flatten(0, -2), matrix, group, slice(begin, begin + rows.shape[0]))
            target = outputs[group] if len(outputs) > 1 else outputs[0][begin : begin + rows.shape[0]]
            deliver(target, result)
            begin += rows.shape[0]
        return
    parts = (
        spans(group_list, list_type, x[0].shape[0], len(matrices))
        if group_list is not None
        else [(0, 0, x[0].shape[0])]
    )
    if len(outputs) == 1 and (not parts or parts[-1][2] < x[0].shape[0]):
        outputs[0][parts[-1][2] if parts else 0 :].zero_()
    for group, begin, end in parts:
        rows = slice(begin, end)
        target = outputs[0][rows] if len(outputs) == 1 else outputs[group]
        if end > begin:
            deliver(target, finish(x[0][rows], matrices[group], group, rows))


def _by_columns(x: list, weight: list, group_list, list_type: int, outputs: list) -> None:
    """Each group sums over its own part of the inner dimension."""
    left, right = x[0], weight[0]
    if left.shape[-1] != right.shape[0]:
        refuse(161002, f"x has {left.shape[-1]} columns, weight {right.shape[0]} rows; they must agree")
    groups = outputs[0].shape[0] if len(outputs) == 1 else len(outputs)
    for output in outputs:
        output.zero_()
    for group, begin, end in spans(group_list, list_type, right.shape[0], groups, "columns of x"):
        target = outputs[0][group] if len(outputs) == 1 else outputs[group]
        if end > begin:
            deliver(target, wide(left[:, begin:end]) @ wide(right[begin:end]))


def _grouped(x, weight, group_list, group_type, list_type, outputs, finish: _Epilogue) -> None:
    if group_type == 2:
        _by_columns(x, weight, group_list, list_type, outputs)
    elif group_type in (-1, 0):
        _by_rows(x, weight, group_list, list_type, outputs, finish)
    else:
        refuse(161002, f"groupType is {group_type}; it is -1 (none), 0 (rows) or 2 (inner dimension)")


@kernel("aclnnGroupedMatmul")
def grouped_matmul(
    x, weight, bias, scale, offset, antiquant_scale, antiquant_offset, group_list, split_item, y
):  # fmt: skip
    finish = _Epilogue(bias, scale, offset, antiquant_scale, antiquant_offset, None, 0)
    _grouped(x, weight, group_list or None, -1, 0, y, finish)


@kernel("aclnnGroupedMatmulV4")
def grouped_matmul_v4(
    x, weight, bias, scale, offset, antiquant_scale, antiquant_offset, token_scale, group_list, activation_input,
    activation_scale, activation_offset, split_item, group_type, list_type, activation, out, activation_out, scale_out,
):  # fmt: skip
    finish = _Epilogue(bias, scale, offset, antiquant_scale, antiquant_offset, token_scale, activation)
    _grouped(x, weight, group_list, group_type, list_type, out, finish)


@kernel("aclnnGroupedMatmulV5")
def grouped_matmul_v5(
    x, weight, bias, scale, offset, antiquant_scale, antiquant_offset, token_scale, group_list, activation_input,
    activation_scale, activation_offset, split_item, group_type, list_type, activation, tuning, out, activation_out,
    scale_out,
):  # fmt: skip
    finish = _Epilogue(bias, scale, offset, antiquant_scale, antiquant_offset, token_scale, activation)
    _grouped(x, weight, group_list, group_type, list_type, out, finish)


@kernel("aclnnGroupedMatmulWeightNz")
def grouped_matmul_weight_nz(
    x, weight, bias, scale, offset, antiquant_scale, antiquant_offset, token_scale, group_list, activation_input,
    activation_scale, activation_offset, split_item, group_type, list_type, activation, tuning, group_size, out,
    activation_out, scale_out,
):  # fmt: skip
    if group_size:
        refuse(561000, "quantisation by groups along the inner dimension is not implemented")
    finish = _Epilogue(bias, scale, offset, antiquant_scale, antiquant_offset, token_scale, activation)
    _grouped(x, weight, group_list, group_type, list_type, out, finish)


def _add(x, weight, group_list, y, transpose_x, transpose_weight, group_type, list_type) -> None:
    if group_type != 2 or transpose_weight or not transpose_x:
        refuse(161002, "groupedMatmulAdd takes groupType 2 with transposeX true and transposeWeight false")
    if x.shape[0] != weight.shape[0]:
        refuse(161002, f"x has {x.shape[0]} rows, weight {weight.shape[0]}; they must agree")
    groups = group_list.shape[0]
    target = y.reshape(groups, -1, y.shape[-1]) if y.is_contiguous() else y.unflatten(0, (groups, -1))
    for group, begin, end in spans(group_list, list_type, x.shape[0], groups):
        if end > begin:
            target[group].add_(wide(x[begin:end]).T @ wide(weight[begin:end]))


@kernel("aclnnGroupedMatmulAdd")
def grouped_matmul_add(x, weight, group_list, y, transpose_x, transpose_weight, group_type):
    _add(x, weight, group_list, y, transpose_x, transpose_weight, group_type, 0)


@kernel("aclnnGroupedMatmulAddV2")
def grouped_matmul_add_v2(x, weight, group_list, y, transpose_x, transpose_weight, group_type, list_type):
    _add(x, weight, group_list, y, transpose_x, transpose_weight, group_type, list_type)
