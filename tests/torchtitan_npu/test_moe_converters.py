"""The converters of mixture-of-experts layers against upstream's modules in float32 on the CPU, with gradients."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torchtitan.components.loss import IGNORE_INDEX, CrossEntropyLoss
from torchtitan.config.override import derive
from torchtitan.models.common.attention import VarlenAttention, create_varlen_metadata_for_document
from torchtitan.models.common.linear import Linear
from torchtitan.models.common.moe import GroupedExperts, TokenChoiceTopKRouter
from torchtitan.models.common.token_dispatcher import LocalTokenDispatcher
from torchtitan.models.deepseek_v3.mtp import MTPLoss
from torchtitan.models.gpt_oss import moe as gpt_oss
from torchtitan.models.gpt_oss.model import Attention, apply_attention_sink_rescale

from tests.torchtitan_npu.test_converters import DTYPES, assert_near, compare, documents, on_npu, rounded, to_npu
from torchtitan_npu.converters import attention, dispatch, experts, loss, reference, router
from torchtitan_npu.converters.grouped_linear import grouped_linear
from torchtitan_npu.errors import UserError

# Rows of each of four experts, and rows that belong to none.
LOADS = pytest.mark.parametrize(
    ("counts", "spare"),
    [([3, 3, 3, 3], 0), ([1, 9, 0, 2], 0), ([0, 0, 12, 0], 0), ([0, 1, 0, 0], 0), ([2, 0, 3, 1], 6)],
    ids=["even", "uneven", "one expert", "one token", "spare rows"],
)
IN, OUT = 24, 16


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def by_loop(x: torch.Tensor, weight: torch.Tensor, counts: list[int], bias: torch.Tensor | None = None) -> torch.Tensor:
    """A linear layer for each group; rows of no group give 0."""
    parts, begin = [], 0
    for group, count in enumerate(counts):
        parts.append(F.linear(x[begin : begin + count], weight[group], None if bias is None else bias[group]))
        begin += count
    return torch.cat([*parts, x.new_zeros(x.shape[0] - begin, weight.shape[1])])


@DTYPES
@LOADS
@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "bias"])
def test_grouped_linear(counts: list[int], spare: int, with_bias: bool, dtype: torch.dtype) -> None:
    inputs = [rounded(sum(counts) + spare, IN, dtype=dtype), rounded(4, OUT, IN, dtype=dtype)]
    inputs += [rounded(4, OUT, dtype=dtype)] if with_bias else []
    on_device = torch.tensor(counts).npu()
    compare(
        lambda x, weight, *bias: by_loop(x, weight, counts, *bias),
        lambda x, weight, *bias: grouped_linear(x, weight, on_device, *bias),
        inputs,
        dtype,
    )


def test_no_rows_at_all() -> None:
    """A rank whose experts nobody chose: nothing is launched, and the gradient is zero, not missing."""
    x, weight, bias = (torch.randn(*shape).npu().requires_grad_() for shape in ((0, IN), (4, OUT, IN), (4, OUT)))
    out = grouped_linear(x, weight, torch.zeros(4, dtype=torch.long).npu(), bias)
    assert out.shape == (0, OUT)
    out.sum().backward()
    assert x.grad.shape == x.shape
    assert not weight.grad.any() and not bias.grad.any()


def test_rows_of_no_group_do_not_count() -> None:
    """NaN in them stays out of the output of the others and of every gradient."""
    weight = torch.randn(3, OUT, IN).npu().requires_grad_()
    x = torch.randn(9, IN).npu()
    x[6:] = float("nan")
    x.requires_grad_()
    out = grouped_linear(x, weight, torch.tensor([2, 0, 4]).npu())
    out[:6].sum().backward()
    assert out[:6].isfinite().all() and weight.grad.isfinite().all() and x.grad.isfinite().all()
    assert not x.grad[6:].any() and not weight.grad[1].any() and weight.grad[2].any()


@pytest.mark.parametrize("layout", ["transposed", "expanded", "sliced"])
def test_weight_and_gradient_of_any_strides(layout: str) -> None:
    """The gradient of a sum is expanded from one number; weights come transposed from other layouts."""
    counts = [2, 0, 4]
    base = {
        "transposed": lambda: torch.randn(3, IN, OUT).transpose(1, 2),
        "expanded": lambda: torch.randn(1, OUT, IN).expand(3, -1, -1),
        "sliced": lambda: torch.randn(3, 2 * OUT, 2 * IN)[:, ::2, ::2],
    }[layout]()
    x = torch.randn(6, IN)
    ours, twin = base.npu().detach(), base.detach().clone()
    if layout != "expanded":
        assert not ours.is_contiguous() or layout == "sliced"
    ours, twin = ours.requires_grad_(), twin.requires_grad_()
    grouped_linear(x.npu(), ours, torch.tensor(counts).npu()).sum().backward()
    by_loop(x, twin, counts).sum().backward()
    torch.testing.assert_close(ours.grad.cpu(), twin.grad)


def test_weights_of_all_experts_with_counts_of_the_own_are_refused() -> None:
    """What an expert-parallel layer would pass by mistake; the message names both numbers."""
    with pytest.raises(ValueError, match="4 counts for 8 weights"):
        grouped_linear(torch.zeros(4, IN), torch.zeros(8, OUT, IN), torch.ones(4, dtype=torch.long))
    with pytest.raises(ValueError, match=r"\[4, 3\].*\[8, 16, 24\]"):
        grouped_linear(torch.zeros(4, 3), torch.zeros(8, OUT, IN), torch.ones(8, dtype=torch.long))


@pytest.mark.parametrize(("list_type", "groups"), [(0, [2, 4]), (1, [2, 2])], ids=["ends", "counts"])
def test_group_lists_as_ends_and_as_counts_split_alike(list_type: int, groups: list[int]) -> None:
    x, weight = torch.randn(4, IN), torch.randn(2, IN, OUT)
    out = torch.ops.npu.npu_grouped_matmul(
        [x.npu()], [weight.npu()], group_list=torch.tensor(groups).npu(), split_item=3, group_type=0,
        group_list_type=list_type,
    )[0]  # fmt: skip
    torch.testing.assert_close(out.cpu(), torch.cat((x[:2] @ weight[0], x[2:] @ weight[1])))


@pytest.mark.parametrize(("list_type", "groups"), [(0, [3, 1]), (1, [3, 2])], ids=["counts as ends", "too many"])
def test_a_group_list_of_the_other_form_is_refused(list_type: int, groups: list[int]) -> None:
    with pytest.raises(RuntimeError, match=r"161002|groupList"):
        torch.ops.npu.npu_grouped_matmul(
            [torch.randn(4, IN).npu()], [torch.randn(2, IN, OUT).npu()], group_list=torch.tensor(groups).npu(),
            split_item=3, group_type=0, group_list_type=list_type,
        )  # fmt: skip
        torch.npu.synchronize()


def set_parameters(ours: torch.nn.Module, twin: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """Random parameters that the dtype holds, the same in both; ours on the device."""
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.copy_(rounded(*parameter.shape, dtype=dtype) / 4)
    ours.load_state_dict(twin.state_dict())
    return ours.to(dtype).npu()


def assert_same_gradients(ours: torch.nn.Module, twin: torch.nn.Module, dtype: torch.dtype) -> None:
    for (name, a), (_, e) in zip(ours.named_parameters(), twin.named_parameters(), strict=True):
        assert a.grad is not None, name
        assert_near(a.grad, e.grad, dtype)


class FloatExperts(GroupedExperts):
    """Upstream's experts without its cast to bfloat16 and its operator."""

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(GroupedExperts.Config):
        pass

    def forward(self, x_RD: torch.Tensor, num_tokens_per_expert_E: torch.Tensor) -> torch.Tensor:
        counts = num_tokens_per_expert_E.tolist()
        hidden = F.silu(by_loop(x_RD, self.w1_EFD, counts)) * by_loop(x_RD, self.w3_EFD, counts)
        return by_loop(hidden, self.w2_EDF, counts)


@DTYPES
@LOADS
def test_grouped_experts(counts: list[int], spare: int, dtype: torch.dtype) -> None:
    config = GroupedExperts.Config(dim=IN, hidden_dim=OUT, num_experts=4)
    twin = derive(config, FloatExperts.Config).build()
    ours = set_parameters(experts.grouped_experts(config).build(), twin, dtype)
    compare(
        lambda x: twin(x, torch.tensor(counts)),
        lambda x: ours(x, torch.tensor(counts).npu()),
        [rounded(sum(counts) + spare, IN, dtype=dtype)],
        dtype,
    )
    assert_same_gradients(ours, twin, dtype)


def test_experts_are_upstreams_to_the_rounding_of_its_bfloat16() -> None:
    config = GroupedExperts.Config(dim=32, hidden_dim=64, num_experts=4)
    upstream = config.build()
    ours = set_parameters(experts.grouped_experts(config).build(), upstream, torch.bfloat16)
    x, counts = rounded(16, 32, dtype=torch.bfloat16), torch.tensor([4, 0, 10, 2])
    expected = upstream(x.bfloat16(), counts)
    actual = ours(x.bfloat16().npu(), counts.npu())
    worst = (actual.cpu().float() - expected.float()).abs().max()
    assert worst <= 4 * torch.finfo(torch.bfloat16).eps * expected.abs().max()


class FloatGptOssExperts(gpt_oss.GptOssGroupedExperts):
    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(gpt_oss.GptOssGroupedExperts.Config):
        pass

    def forward(self, x_RD: torch.Tensor, num_tokens_per_expert_E: torch.Tensor) -> torch.Tensor:
        counts = num_tokens_per_expert_E.tolist()
        hidden = gpt_oss.swiglu(by_loop(x_RD, self.mlp1_weight_EGD, counts, self.mlp1_bias_EG), limit=self.swiglu_limit)
        return by_loop(hidden, self.mlp2_weight_EDF, counts, self.mlp2_bias_ED)


@pytest.mark.parametrize(
    ("limit", "dtype"),
    [(7.0, torch.float32), (7.0, torch.bfloat16), (0.5, torch.float32)],  # rounding moves numbers over a limit
    ids=["float32", "bfloat16", "clipped"],
)
def test_gpt_oss_experts(limit: float, dtype: torch.dtype) -> None:
    counts = torch.tensor([5, 0, 3, 8])
    config = gpt_oss.GptOssGroupedExperts.Config(dim=IN, hidden_dim=OUT, num_experts=4, swiglu_limit=limit)
    twin = derive(config, FloatGptOssExperts.Config).build()
    ours = set_parameters(experts.gpt_oss_experts(config).build(), twin, dtype)
    compare(lambda x: twin(x, counts), lambda x: ours(x, counts.npu()), [rounded(16, IN, dtype=dtype)], dtype)
    assert_same_gradients(ours, twin, dtype)


EXPERTS = 8


def router_pair(**settings) -> tuple[TokenChoiceTopKRouter, router.NPURouter]:
    gate = Linear.Config(in_features=IN, out_features=EXPERTS, bias=False)
    config = TokenChoiceTopKRouter.Config(num_experts=EXPERTS, gate=gate, top_k=3, **settings)
    upstream = config.build()
    return upstream, set_parameters(router.router(config).build(), upstream, torch.float32)


@pytest.mark.parametrize("with_bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize(
    "settings",
    [
        {"score_func": "softmax"},
        {"score_func": "softmax", "route_norm": True},
        {"score_func": "softmax", "route_scale": 2.5},
        {"score_func": "sigmoid", "route_norm": True, "route_scale": 2.5},
        {"score_func": "sigmoid"},
        {"score_func": "sigmoid", "route_norm": True, "num_expert_groups": 2, "num_limited_groups": 1},
        {"score_func": "softmax", "num_expert_groups": 4, "num_limited_groups": 2},
        {"score_func": "softmax", "_debug_force_load_balance": True},
    ],
    ids=lambda settings: "-".join(f"{value}" for value in settings.values()),
)
def test_router(settings: dict, with_bias: bool) -> None:
    upstream, ours = router_pair(**settings)
    x = torch.randn(2, 7, IN)
    bias = torch.randn(EXPERTS) if with_bias else None
    expected = upstream(x, bias)
    actual = ours(x.npu(), None if bias is None else bias.npu())
    # The order of a token's experts has no meaning.
    order, own = expected[1].argsort(-1), actual[1].cpu().argsort(-1)
    assert torch.equal(actual[1].cpu().gather(-1, own), expected[1].gather(-1, order))
    torch.testing.assert_close(actual[0].cpu().gather(-1, own), expected[0].gather(-1, order))
    torch.testing.assert_close(actual[2].cpu(), expected[2])
    grad, grad_all = torch.randn(expected[0].shape), torch.randn(expected[2].shape)
    ((expected[0].gather(-1, order) * grad).sum() + (expected[2] * grad_all).sum()).backward()
    ((actual[0].gather(-1, own.npu()) * grad.npu()).sum() + (actual[2] * grad_all.npu()).sum()).backward()
    torch.testing.assert_close(ours.gate.weight.grad.cpu(), upstream.gate.weight.grad)


def test_router_computes_its_gate_in_float32() -> None:
    _, ours = router_pair(score_func="softmax")
    scores, _, all_scores = ours.bfloat16()(torch.randn(1, 4, IN).bfloat16().npu())
    assert scores.dtype == all_scores.dtype == torch.float32


@DTYPES
@pytest.mark.parametrize("choices", [1, 3])
@pytest.mark.parametrize("tokens", [1, 7])
def test_local_dispatch(tokens: int, choices: int, dtype: torch.dtype) -> None:
    config = LocalTokenDispatcher.Config(num_experts=4, top_k=choices)
    upstream, ours = config.build(), dispatch.local_dispatch(config).build()
    ids = torch.stack([torch.randperm(4)[:choices] for _ in range(tokens)])
    counts = torch.bincount(ids.flatten(), minlength=4)
    weight = rounded(tokens * choices, IN, dtype=dtype)

    def through(dispatcher, x, scores, ids, counts, weight):
        rows, of_experts, metadata = dispatcher.dispatch(x, scores, ids, counts)
        assert torch.equal(of_experts, counts)
        return dispatcher.combine(rows * weight, metadata, x)

    scores = torch.rand(tokens, choices)
    x = rounded(tokens, IN, dtype=dtype)
    cpu = [x.clone().requires_grad_(), scores.clone().requires_grad_()]
    npu = [on_npu(x, dtype), scores.npu().requires_grad_()]
    expected = through(upstream, *cpu, ids, counts, weight)
    actual = through(ours, *npu, ids.npu(), counts.npu(), weight.to(dtype).npu())
    assert actual.dtype == dtype
    grad = rounded(tokens, IN, dtype=dtype)
    expected.backward(grad)
    actual.backward(grad.to(dtype).npu())
    assert_near(actual.detach(), expected.detach(), dtype)
    for a, e in zip(npu, cpu, strict=True):
        assert_near(a.grad, e.grad, dtype)


def test_permute_experts_unpermute_with_a_transposed_weight() -> None:
    """Two experts, four tokens, gate and up projection passed transposed: gradients are finite and the loop's."""
    x, ids = torch.randn(4, 8), torch.tensor([[1], [0], [1], [1]])
    stored = torch.randn(2, 8, 12)
    ours = [x.npu().requires_grad_(), stored.npu().requires_grad_()]
    rows, places = dispatch.permute(ours[0], ids.npu())
    hidden = grouped_linear(rows, ours[1].transpose(1, 2), torch.tensor([1, 3]).npu())
    dispatch.unpermute(torch.ops.npu.npu_swiglu(hidden, -1), places, torch.ones(4, 1).npu()).sum().backward()
    twins = [x.clone().requires_grad_(), stored.clone().requires_grad_()]
    gate, up = torch.einsum("td,tdh->th", twins[0], twins[1][ids[:, 0]]).chunk(2, -1)
    (F.silu(gate) * up).sum().backward()
    for a, e in zip(ours, twins, strict=True):
        assert a.grad.isfinite().all()
        torch.testing.assert_close(a.grad.cpu(), e.grad)


class Sinks(Attention):
    """As much of gpt-oss's attention as its output transform needs."""

    def __init__(self, heads: int) -> None:
        torch.nn.Module.__init__(self)
        self.sinks = torch.nn.Parameter(torch.randn(heads))


@DTYPES
@pytest.mark.parametrize("window", [(-1, 0), (5, 0)], ids=["causal", "band"])
def test_attention_sinks(window: tuple[int, int], dtype: torch.dtype) -> None:
    """The operator's sink against upstream's rescaling by the log-sum-exp, gradient of the sinks included."""
    config = VarlenAttention.Config(window_size=window)
    expected, ours = (derive(config, kind).build() for kind in
                      (reference.ReferenceAttention.Config, attention.NPUAttention.Config))  # fmt: skip
    metadata = create_varlen_metadata_for_document(documents([0, 7], [0, 1, 20], length=24))
    twin, own = Sinks(4), Sinks(4)
    own.load_state_dict(twin.state_dict())
    own.npu()
    compare(
        lambda q, k, v: expected(q, k, v, attention_masks=metadata, scale=0.3, out_transform=twin._apply_sinks),
        lambda q, k, v: ours(q, k, v, attention_masks=to_npu(metadata), scale=0.3, out_transform=own._apply_sinks),
        [rounded(2, 24, heads, 16, dtype=dtype) for heads in (4, 2, 2)],
        dtype,
    )
    assert twin.sinks.grad.abs().min() > 0
    assert_near(own.sinks.grad, twin.sinks.grad, dtype)


def test_attention_refuses_other_output_transforms() -> None:
    module = attention.NPUAttention.Config().build()
    tensor = torch.zeros(1, 4, 1, 16)
    metadata = create_varlen_metadata_for_document(documents([0], length=4))
    with pytest.raises(UserError, match="no gradient for the log-sum-exp"):
        module(tensor, tensor, tensor, attention_masks=metadata,
               out_transform=lambda out, lse: apply_attention_sink_rescale(out, lse, torch.zeros(1)))  # fmt: skip


@DTYPES
def test_attention_with_wider_query_than_value(dtype: torch.dtype) -> None:
    """Multi-head latent attention: 24 numbers a head in query and key, 16 in the value."""
    expected, ours = (kind.build() for kind in (reference.ReferenceAttention.Config(), attention.NPUAttention.Config()))
    metadata = create_varlen_metadata_for_document(documents([0, 7], [0, 1, 20], length=24))
    compare(
        lambda q, k, v: expected(q, k, v, attention_masks=metadata, scale=0.3),
        lambda q, k, v: ours(q, k, v, attention_masks=to_npu(metadata), scale=0.3),
        [rounded(2, 24, 4, width, dtype=dtype) for width in (24, 24, 16)],
        dtype,
    )


@DTYPES
@pytest.mark.parametrize("ignored", [0, 5, 12], ids=["none ignored", "some", "all"])
def test_cross_entropy(ignored: int, dtype: torch.dtype) -> None:
    config = CrossEntropyLoss.Config(global_vocab_size=40)
    upstream, ours = config.build(), loss.cross_entropy(config).build()
    labels = torch.randint(0, 40, (2, 6))
    labels.view(-1)[:ignored] = IGNORE_INDEX
    logits = rounded(2, 6, 40, dtype=dtype)
    twin, own = logits.clone().requires_grad_(), on_npu(logits, dtype)
    expected, _ = upstream(twin, labels, torch.tensor(7.0))
    actual, _ = ours(own, labels.npu(), torch.tensor(7.0).npu())
    torch.testing.assert_close(actual.cpu(), expected)
    expected.backward()
    actual.backward()
    if ignored < 12:
        assert_near(own.grad, twin.grad, dtype)
    else:
        assert not own.grad.any()


def test_multi_token_cross_entropy() -> None:
    """Two documents in a row: no prediction goes over their border, which is upstream's part of the loss."""
    config = MTPLoss.Config(global_vocab_size=40)
    upstream, ours = config.build(), loss.multi_token_cross_entropy(config).build()
    labels, positions = torch.randint(0, 40, (2, 6)), torch.tensor([[0, 1, 2, 0, 1, 2]]).expand(2, -1)
    twins = [torch.randn(2, 6, 40).requires_grad_() for _ in range(3)]
    own = [twin.detach().npu().requires_grad_() for twin in twins]
    expected, _ = upstream(twins, labels, torch.tensor(7.0), positions=positions)
    actual, _ = ours(own, labels.npu(), torch.tensor(7.0).npu(), positions=positions.npu())
    torch.testing.assert_close(actual.cpu(), expected)
    expected.backward()
    actual.backward()
    for a, e in zip(own, twins, strict=True):
        torch.testing.assert_close(a.grad.cpu(), e.grad)


@pytest.mark.parametrize("part", ["experts", "gpt_oss", "router", "dispatch", "sinks", "loss"])
def test_moe_converters_are_traced_whole(part: str) -> None:
    x, counts = torch.randn(12, IN).npu(), torch.tensor([5, 0, 3, 4]).npu()
    if part in ("experts", "gpt_oss"):
        kind, factory = {
            "experts": (GroupedExperts, experts.grouped_experts),
            "gpt_oss": (gpt_oss.GptOssGroupedExperts, experts.gpt_oss_experts),
        }[part]
        module = factory(kind.Config(dim=IN, hidden_dim=OUT, num_experts=4)).build().npu()
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        run = lambda x: module(x, counts)  # noqa: E731
    elif part == "router":
        _, module = router_pair(score_func="softmax", route_norm=True)
        run = lambda x: module(x[None])[0]  # noqa: E731
    elif part == "dispatch":
        dispatcher = dispatch.local_dispatch(LocalTokenDispatcher.Config(num_experts=4, top_k=1)).build()
        ids, scores = torch.randint(0, 4, (12, 1)).npu(), torch.rand(12, 1).npu()

        def run(x):
            rows, _, metadata = dispatcher.dispatch(x, scores, ids, counts)
            return dispatcher.combine(rows * rows, metadata, x)
    elif part == "loss":
        labels = torch.randint(0, IN, (1, 12)).npu()
        run = lambda x: loss.npu_cross_entropy_loss(x[None], labels)  # noqa: E731
    else:
        module, own = attention.NPUAttention.Config().build(), Sinks(1).npu()
        metadata = to_npu(create_varlen_metadata_for_document(documents([0, 7], length=12)))

        def run(x):
            heads = x.view(1, 12, 1, IN)
            return module(heads, heads, heads, attention_masks=metadata, out_transform=own._apply_sinks)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    twin = x.clone().requires_grad_()
    x.requires_grad_()
    eager, traced = run(x), compiled(twin)
    torch.testing.assert_close(traced, eager)
    eager.sum().backward()
    traced.sum().backward()
    torch.testing.assert_close(x.grad, twin.grad)
