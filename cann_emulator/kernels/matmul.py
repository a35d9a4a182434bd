"""Matrix products with something before or after them."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from cann_emulator.kernels.precision import deliver, wide, wide_all
from cann_emulator.kernels.registry import kernel, refuse

_AFTER = {
    "": lambda y, x3: y,
    "16cast32": lambda y, x3: y,
    "add": lambda y, x3: y + x3,
    "mul": lambda y, x3: y * x3,
    "relu": lambda y, x3: F.relu(y),
    "gelu_erf": lambda y, x3: F.gelu(y),
    "gelu_tanh": lambda y, x3: F.gelu(y, approximate="tanh"),
}


@kernel("aclnnFusedMatmul")
def fused_matmul(x1, x2, bias, x3, operation, cube_math_type, y):
    after = _AFTER.get(operation or "")
    if after is None:
        refuse(161002, f"fusedOpType is {operation!r}; it is one of {', '.join(name or 'empty' for name in _AFTER)}")
    x1, x2, bias, x3 = wide_all(x1, x2, bias, x3)
    if operation in ("add", "mul") and x3 is None:
        refuse(161002, f"fusedOpType {operation} needs x3")
    result = x1 @ x2
    deliver(y, after(result if bias is None else result + bias, x3))


@kernel("aclnnTransposeBatchMatMul", "aclnnTransposeBatchMatMulWeightNz")
def transpose_batch_matmul(x1, x2, bias, scale, perm_x1, perm_x2, perm_y, cube_math_type, split, out):
    if bias is not None:
        refuse(161002, "bias must be null: it is not supported")
    if scale is not None:
        refuse(561000, "a quantised output (scale) is not implemented")
    result = wide(x1).permute(perm_x1 or (0, 1, 2)) @ wide(x2).permute(perm_x2 or (0, 1, 2))
    if split > 1:
        parts = result.unflatten(0, (split, -1)).permute(0, 2, 1, 3)
        deliver(out, parts.reshape(split, parts.shape[1], -1))
    else:
        deliver(out, result.permute(perm_y or (1, 0, 2)))


@kernel("aclnnFFNV2")
def ffn(
    x, weight1, weight2, expert_tokens, bias1, bias2, scale, offset, deq_scale1, deq_scale2, antiquant_scale1,
    antiquant_scale2, antiquant_offset1, antiquant_offset2, activation, inner_precise, tokens_index, y,
):  # fmt: skip
    extras = (scale, offset, deq_scale1, deq_scale2, antiquant_scale1, antiquant_scale2, antiquant_offset1,
              antiquant_offset2)  # fmt: skip
    if any(value is not None and value.numel() for value in extras):
        refuse(561000, "a quantised FFN is not implemented")
    functions: dict[str, Callable] = {
        "relu": F.relu,
        "gelu": F.gelu,
        "fastgelu": lambda t: t * torch.sigmoid(1.702 * t),
        "silu": F.silu,
        "swiglu": lambda t: F.silu(t.chunk(2, -1)[0]) * t.chunk(2, -1)[1],
        "geglu": lambda t: F.gelu(t.chunk(2, -1)[0]) * t.chunk(2, -1)[1],
        "reglu": lambda t: F.relu(t.chunk(2, -1)[0]) * t.chunk(2, -1)[1],
    }
    function = functions.get(activation or "")
    if function is None:
        refuse(161002, f"activation is {activation!r}; it is one of {', '.join(functions)}")
    rows = wide(x).reshape(-1, x.shape[-1])
    target = y.view(-1, y.shape[-1])
    experts = expert_tokens or [rows.shape[0]]
    ends = experts if tokens_index and expert_tokens else torch.tensor(experts, dtype=torch.int64).cumsum(0).tolist()
    begin = 0
    for i, end in enumerate(ends):
        one, two = (w if w.dim() == 2 else w[i] for w in (weight1, weight2))
        b1, b2 = (None if b is None or not b.numel() else wide(b if b.dim() == 1 else b[i]) for b in (bias1, bias2))
        hidden = rows[begin:end] @ wide(one)
        result = function(hidden if b1 is None else hidden + b1) @ wide(two)
        deliver(target[begin:end], result if b2 is None else result + b2)
        begin = end
