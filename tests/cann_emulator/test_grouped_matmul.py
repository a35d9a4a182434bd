"""Grouped matrix products and the movement of tokens to experts, against loops on the CPU."""

import pytest
import torch
import torch_npu

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
E, K, N = 4, 12, 10
COUNTS = [3, 0, 5, 4]  # an expert without tokens
ROWS = sum(COUNTS)
ENDS = torch.tensor(COUNTS).cumsum(0)


def values(dtype, *shapes):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def close(actual, expected, dtype):
    tolerance = TOLERANCE[dtype]
    scale = max(1.0, expected.abs().max().item())
    torch.testing.assert_close(actual.detach().cpu().float(), expected.float(), rtol=tolerance, atol=tolerance * scale)


def by_expert(x, weight):
    parts = zip(x.float().split(COUNTS), weight.float(), strict=True)
    return torch.cat([rows @ matrix for rows, matrix in parts])


def grouped(x, weight, group_list, **options):
    options = {"split_item": 3, "group_type": 0, "group_list_type": 0} | options
    return torch_npu.npu_grouped_matmul(
        [x.npu()], [w.npu() for w in weight] if isinstance(weight, list) else [weight.npu()],
        group_list=group_list.npu(), **options,
    )[0]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("list_type", [0, 1])
def test_by_rows(dtype, transposed, list_type):
    x, weight = values(dtype, (ROWS, K), (E, K, N))
    if transposed:
        weight = weight.transpose(1, 2).contiguous().transpose(1, 2)
    group_list = ENDS if list_type == 0 else torch.tensor(COUNTS)
    close(grouped(x, weight, group_list, group_list_type=list_type), by_expert(x, weight), dtype)


def test_rows_after_the_last_group_have_no_influence():
    x, weight = values(torch.float32, (ROWS + 4, K), (E, K, N))
    x[ROWS:] = float("nan")
    out = grouped(x, weight, ENDS).cpu()
    close(out[:ROWS], by_expert(x[:ROWS], weight), torch.float32)
    assert out[ROWS:].eq(0).all()


def test_along_the_inner_dimension():
    x, y = values(torch.float32, (ROWS, K), (ROWS, N))
    out = torch_npu.npu_grouped_matmul(
        [x.npu().T], [y.npu()], group_list=ENDS.npu(), split_item=3, group_type=2, group_list_type=0
    )[0]
    expected = torch.stack([a.T @ b for a, b in zip(x.split(COUNTS), y.split(COUNTS), strict=True)])
    close(out, expected, torch.float32)


def test_lists_of_tensors():
    x = values(torch.float32, *[(count, K) for count in (3, 2)])
    weight = values(torch.float32, (K, N), (K, N))
    bias = values(torch.float32, (N,), (N,))
    out = torch_npu.npu_grouped_matmul(
        [t.npu() for t in x], [t.npu() for t in weight], bias=[t.npu() for t in bias], split_item=0, group_type=-1
    )
    for actual, rows, matrix, shift in zip(out, x, weight, bias, strict=True):
        close(actual, rows @ matrix + shift, torch.float32)


def test_int8():
    x = torch.randint(-128, 128, (ROWS, K), dtype=torch.int8)
    weight = torch.randint(-128, 128, (E, K, N), dtype=torch.int8)
    scale, per_token = torch.rand(E, N) * 0.01, torch.rand(ROWS)
    out = torch_npu.npu_grouped_matmul(
        [x.npu()], [weight.npu()], scale=[scale.bfloat16().npu()], per_token_scale=[per_token.npu()],
        group_list=ENDS.npu(), split_item=3, group_type=0, group_list_type=0, output_dtype=torch.bfloat16,
    )[0]  # fmt: skip
    scales = scale.bfloat16().float().repeat_interleave(torch.tensor(COUNTS), 0)
    close(out, by_expert(x, weight) * scales * per_token.unsqueeze(-1), torch.bfloat16)


@pytest.mark.parametrize(
    "group_list, list_type, message",
    [
        ([5, 3, 8, 12], 0, "must not decrease"),
        ([3, 6, 9, ROWS + 1], 0, "covers 13"),
        ([3, 3, 8, 12], 1, "covers 26"),
        ([3, -1, 5, 4], 1, "negative"),
    ],
)
def test_a_list_that_cannot_be_of_the_stated_form_is_refused(group_list, list_type, message):
    x, weight = values(torch.float32, (ROWS, K), (E, K, N))
    with pytest.raises(RuntimeError, match="161002") as failure:
        grouped(x, weight, torch.tensor(group_list), group_list_type=list_type)
    assert message in str(failure.value)


def test_sizes_that_disagree_are_both_named():
    x, weight = values(torch.float32, (ROWS, K), (E, K + 1, N))
    with pytest.raises(RuntimeError, match=r"12 columns.*13 rows"):
        grouped(x, weight, ENDS)


# Tokens to experts and back

T, TOP, H = 6, 2, 8


def routing():
    generator = torch.Generator().manual_seed(3)
    return torch.stack([torch.randperm(E, generator=generator)[:TOP] for _ in range(T)])


@pytest.mark.parametrize("dtype", DTYPES)
def test_permute_and_unpermute(dtype):
    indices = routing()
    tokens, probs = values(dtype, (T, H), (T, TOP))
    moved = [t.npu().requires_grad_() for t in (tokens, probs)]
    permuted, places = torch_npu.npu_moe_token_permute(moved[0], indices.npu())
    order = torch.argsort(indices.flatten(), stable=True)
    assert torch.equal(permuted.detach().cpu(), tokens[order // TOP])
    out = torch_npu.npu_moe_token_unpermute(permuted * 2, places, moved[1])
    reference = [t.float().requires_grad_() for t in (tokens, probs)]
    expected = 2 * reference[0] * reference[1].sum(-1, keepdim=True)
    close(out, expected.detach(), dtype)
    grad = torch.randn(T, H, generator=torch.Generator().manual_seed(4)).to(dtype)
    out.backward(grad.npu())
    for tensor, gradient in zip(moved, torch.autograd.grad(expected, reference, grad.float()), strict=True):
        close(tensor.grad, gradient, dtype)


def test_permute_and_unpermute_with_routing_map():
    chosen = torch.zeros(T, E, dtype=torch.bool).scatter_(1, routing(), True)
    tokens, probs = values(torch.float32, (T, H), (T, E))
    probs = probs * chosen
    moved = [t.npu().requires_grad_() for t in (tokens, probs)]
    permuted, permuted_probs, places = torch_npu.npu_moe_token_permute_with_routing_map(
        moved[0], chosen.npu(), probs=moved[1], num_out_tokens=T * TOP
    )
    experts, rows = chosen.T.nonzero(as_tuple=True)
    assert torch.equal(permuted.detach().cpu(), tokens[rows])
    assert torch.equal(permuted_probs.detach().cpu(), probs[rows, experts])
    out = torch_npu.npu_moe_token_unpermute_with_routing_map(
        permuted, places, tokens.shape, probs=moved[1], routing_map=chosen.npu()
    )
    reference = [t.clone().requires_grad_() for t in (tokens, probs)]
    expected = reference[0] * (reference[1] * chosen).sum(-1, keepdim=True)
    close(out, expected.detach(), torch.float32)
    out.sum().backward()
    for tensor, gradient in zip(moved, torch.autograd.grad(expected.sum(), reference), strict=True):
        close(tensor.grad, gradient, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gating_softmax(dtype):
    (x,) = values(dtype, (T, E))
    y, experts, rows = torch_npu.npu_moe_gating_top_k_softmax(x.npu(), None, TOP)
    expected = x.float().softmax(-1).topk(TOP)
    close(y, expected.values, dtype)
    assert torch.equal(experts.cpu().long(), expected.indices)
    assert torch.equal(rows.cpu(), torch.arange(T * TOP, dtype=torch.int32).view(TOP, T).T)


def test_gating_sigmoid_with_groups():
    x, bias = values(torch.float32, (T, 8), (8,))
    y, experts, _ = torch_npu.npu_moe_gating_top_k(
        x.npu(), TOP, bias=bias.npu(), k_group=1, group_count=2, group_select_mode=1, norm_type=1,
        routed_scaling_factor=2.5,
    )  # fmt: skip
    gates = x.sigmoid()
    groups = (gates + bias).view(T, 2, 4)
    best = groups.topk(2).values.sum(-1).argmax(-1)
    inside = groups[torch.arange(T), best].topk(TOP).indices + 4 * best.unsqueeze(-1)
    weights = gates.gather(-1, inside)
    assert torch.equal(experts.cpu().long(), inside)
    close(y, 2.5 * weights / weights.sum(-1, keepdim=True), torch.float32)


def test_init_and_finalize_routing():
    x, scales = values(torch.float32, (T, H), (T, TOP))
    experts = routing().int()
    rows = torch.arange(T * TOP, dtype=torch.int32).view(TOP, T).T.contiguous()
    expanded, places, sorted_experts = torch_npu.npu_moe_init_routing(x.npu(), rows.npu(), experts.npu(), T)
    assert torch.equal(sorted_experts.cpu(), experts.flatten().sort().values)
    ends = torch_npu.npu_moe_compute_expert_tokens(sorted_experts, E).cpu()
    assert torch.equal(ends.long(), torch.bincount(experts.flatten(), minlength=E).cumsum(0))
    out = torch_npu.npu_moe_finalize_routing(
        expanded, torch.zeros(T, H).npu(), None, torch.zeros(E, H).npu(), scales.npu(), places, experts.npu()
    )
    close(out, x * scales.sum(-1, keepdim=True), torch.float32)
