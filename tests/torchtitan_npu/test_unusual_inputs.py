"""Converters given what is not the rule: strided and expanded tensors, one token, experts without tokens; and tracing
of what the other files' tests leave out. The expectation is upstream's module in float32 on the CPU.
"""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.common_utils import find_free_port
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.config.override import derive
from torchtitan.models.common.attention import create_varlen_metadata_for_document
from torchtitan.models.common.feed_forward import FeedForward
from torchtitan.models.common.linear import Linear
from torchtitan.models.common.nn_modules import RMSNorm
from torchtitan.models.common.rope import ComplexRoPE, CosSinRoPE
from torchtitan.models.common.token_dispatcher import AllToAllTokenDispatcher, LocalTokenDispatcher
from torchtitan.models.deepseek_v3.mtp import MTPLoss
from torchtitan.models.gpt_oss.moe import GptOssGroupedExperts

from tests.torchtitan_npu.test_converters import compare, documents, rounded, to_npu
from tests.torchtitan_npu.test_moe_converters import (
    EXPERTS,
    IN,
    LOADS,
    OUT,
    FloatGptOssExperts,
    assert_same_gradients,
    router_pair,
    set_parameters,
)
from torchtitan_npu.converters import attention, dispatch, experts, loss, reference, rms_norm, rope, swiglu

FP32 = torch.float32


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@LOADS
def test_gpt_oss_experts_with_any_load(counts: list[int], spare: int) -> None:
    """Rows of no expert are not read, so that theirs are not compared."""
    config = GptOssGroupedExperts.Config(dim=IN, hidden_dim=OUT, num_experts=4, swiglu_limit=7.0)
    twin = derive(config, FloatGptOssExperts.Config).build()
    ours = set_parameters(experts.gpt_oss_experts(config).build(), twin, FP32)
    rows = sum(counts)
    compare(
        lambda x: twin(x, torch.tensor(counts))[:rows],
        lambda x: ours(x, torch.tensor(counts).npu())[:rows],
        [rounded(rows + spare, IN, dtype=FP32)],
        FP32,
    )
    assert_same_gradients(ours, twin, FP32)


@pytest.mark.parametrize(
    "settings",
    [{"score_func": "softmax", "route_norm": True}, {"score_func": "sigmoid", "route_norm": True}],
    ids=lambda settings: settings["score_func"],
)
@pytest.mark.parametrize("tokens", [1, 5])
def test_router_of_transposed_tokens_with_an_expanded_gradient(settings: dict, tokens: int) -> None:
    upstream, ours = router_pair(**settings)
    stored = torch.randn(1, IN, tokens)
    for module, x in ((upstream, stored), (ours, stored.npu())):
        scores, _, all_scores = module(x.transpose(1, 2), None)
        (scores.square().sum(-1) + all_scores.square().sum(-1)).sum().backward()
    torch.testing.assert_close(ours.gate.weight.grad.cpu(), upstream.gate.weight.grad)


@pytest.mark.parametrize("experts_chosen", [[[2]] * 6, [[0], [3], [0], [3], [3], [0]]], ids=["one", "two of four"])
def test_dispatch_of_strided_tokens_and_expanded_scores_to_few_experts(experts_chosen: list[list[int]]) -> None:
    config = LocalTokenDispatcher.Config(num_experts=4, top_k=1)
    upstream, ours = config.build(), dispatch.local_dispatch(config).build()
    ids = torch.tensor(experts_chosen)
    counts = torch.bincount(ids.flatten(), minlength=4)

    def through(dispatcher, stored, score, ids, counts):
        x = stored.t()[:, ::2]
        rows, of_experts, metadata = dispatcher.dispatch(x, score.expand(6, 1), ids, counts)
        assert torch.equal(of_experts, counts)
        return dispatcher.combine(rows.square(), metadata, x)

    compare(
        lambda stored, score: through(upstream, stored, score, ids, counts),
        lambda stored, score: through(ours, stored, score, ids.npu(), counts.npu()),
        [rounded(2 * IN, 6, dtype=FP32), rounded(1, 1, dtype=FP32)],
        FP32,
    )


def test_attention_of_strided_queries_and_keys_shared_by_the_heads() -> None:
    """Queries cut out of a joint projection; a key expanded over the heads, as latent attention's rotary part is."""
    expected, ours = reference.ReferenceAttention.Config().build(), attention.NPUAttention.Config().build()
    metadata = create_varlen_metadata_for_document(documents([0, 7], [0, 1, 20], length=24))

    def through(module, joint, shared, masks):
        query, value = joint[..., :16], joint[..., 16:]
        return module(query, shared.expand(-1, -1, 4, -1), value, attention_masks=masks)

    compare(
        lambda joint, shared: through(expected, joint, shared, metadata),
        lambda joint, shared: through(ours, joint, shared, to_npu(metadata)),
        [rounded(2, 24, 4, 32, dtype=FP32), rounded(2, 24, 1, 16, dtype=FP32)],
        FP32,
    )


def _norm() -> tuple[torch.nn.Module, torch.nn.Module]:
    config = RMSNorm.Config(normalized_shape=16, eps=1e-6)
    return config.build(), rms_norm.rms_norm(config).build()


def _feed_forward() -> tuple[torch.nn.Module, torch.nn.Module]:
    linear = Linear.Config(in_features=16, out_features=16)
    config = FeedForward.Config(w1=linear, w2=linear, w3=linear)
    return config.build(), swiglu.swiglu(config).build()


@pytest.mark.parametrize("pair", [_norm, _feed_forward])
@pytest.mark.parametrize("tokens", [1, 6])
def test_layers_of_transposed_tokens(pair: Callable, tokens: int) -> None:
    upstream, ours = pair()
    set_parameters(ours, upstream, FP32)
    compare(
        lambda stored: upstream(stored.transpose(1, 2)),
        lambda stored: ours(stored.transpose(1, 2)),
        [rounded(2, 16, tokens, dtype=FP32)],
        FP32,
    )
    assert_same_gradients(ours, upstream, FP32)


@pytest.mark.parametrize(("kind", "factory"), [(ComplexRoPE, rope.complex_rope), (CosSinRoPE, rope.cos_sin_rope)])
def test_rotary_embedding_of_a_part_of_each_head(kind, factory) -> None:
    config = kind.Config(dim=16, max_seq_len=8)
    upstream, ours = config.build(), factory(config).build().npu()
    compare(
        lambda wide: upstream(wide[..., 8:], wide[:, :, :1, 8:].expand(-1, -1, 2, -1)),
        lambda wide: ours(wide[..., 8:], wide[:, :, :1, 8:].expand(-1, -1, 2, -1)),
        [rounded(1, 8, 2, 24, dtype=FP32)],
        FP32,
    )


@pytest.mark.parametrize("tokens", [1, 5])
def test_cross_entropy_of_transposed_logits(tokens: int) -> None:
    config = CrossEntropyLoss.Config(global_vocab_size=40)
    upstream, ours = config.build(), loss.cross_entropy(config).build()
    labels = torch.randint(0, 40, (1, tokens))
    compare(
        lambda stored: upstream(stored.transpose(1, 2), labels, torch.tensor(1.0))[0][None],
        lambda stored: ours(stored.transpose(1, 2), labels.npu(), torch.tensor(1.0).npu())[0][None],
        [rounded(1, 40, tokens, dtype=FP32)],
        FP32,
    )


@pytest.fixture
def one_rank() -> Iterator[None]:
    torch.npu.set_device(0)
    dist.init_process_group("hccl", init_method=f"tcp://localhost:{find_free_port()}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def assert_traced_whole(run: Callable, x: torch.Tensor) -> None:
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    x, twin = (x.detach().clone().requires_grad_() for _ in range(2))
    eager, traced = run(x), compiled(twin)
    torch.testing.assert_close(traced, eager)
    eager.square().sum().backward()
    traced.square().sum().backward()
    torch.testing.assert_close(x.grad, twin.grad)


def test_a_sigmoid_router_with_groups_and_bias_is_traced_whole() -> None:
    _, module = router_pair(score_func="sigmoid", route_norm=True, num_expert_groups=2, num_limited_groups=1)
    bias = torch.randn(EXPERTS).npu()
    assert_traced_whole(lambda x: module(x, bias)[0], torch.randn(2, 6, IN).npu())


def test_rotary_embedding_of_halves_is_traced_whole() -> None:
    with torch.device("npu"):
        module = rope.NPUCosSinRoPE.Config(dim=16, max_seq_len=8).build()
    assert_traced_whole(lambda x: module(x, x)[0], torch.randn(1, 8, 2, 16).npu())


def test_multi_token_cross_entropy_is_traced_whole() -> None:
    ours = loss.multi_token_cross_entropy(MTPLoss.Config(global_vocab_size=IN)).build()
    labels, positions = torch.randint(0, IN, (2, 6)).npu(), torch.arange(6).expand(2, -1).npu()
    count = torch.tensor(12.0).npu()
    assert_traced_whole(lambda x: ours([x, 2 * x], labels, count, positions=positions)[0], torch.randn(2, 6, IN).npu())


def test_all_to_all_dispatch_is_traced_whole(one_rank: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream compiles these layers with sizes that only the data tells."""
    monkeypatch.setattr(torch._dynamo.config, "capture_scalar_outputs", True)
    dispatcher = dispatch.all_to_all_dispatch(AllToAllTokenDispatcher.Config(num_experts=4, top_k=2)).build()
    dispatcher.wire_meshes(ep_mesh=init_device_mesh("npu", (1,), mesh_dim_names=("ep",)))
    ids = torch.stack([torch.randperm(4)[:2] for _ in range(12)])
    counts, ids, scores = torch.bincount(ids.flatten(), minlength=4).npu(), ids.npu(), torch.rand(12, 2).npu()

    def run(x: torch.Tensor) -> torch.Tensor:
        rows, _, metadata = dispatcher.dispatch(x, scores, ids, counts)
        return dispatcher.combine(rows * rows, metadata, x)

    assert_traced_whole(run, torch.randn(12, IN).npu())
