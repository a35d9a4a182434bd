"""Every converter against the upstream module it replaces: outputs and gradients.

The expectation is upstream's module (for attention, the reference module) in float32 on the CPU, given the same
rounded inputs. Tolerances are multiples of the dtype's spacing, relative to the largest expected value.
"""

import dataclasses

import pytest
import torch
from torchtitan.config.override import derive
from torchtitan.models.common.attention import VarlenAttention, VarlenMetadata, create_varlen_metadata_for_document
from torchtitan.models.common.feed_forward import FeedForward
from torchtitan.models.common.linear import Linear
from torchtitan.models.common.nn_modules import RMSNorm
from torchtitan.models.common.rope import ComplexRoPE, CosSinRoPE

from torchtitan_npu.converters import attention, packed, reference, rms_norm, rope, swiglu

# Units of the dtype's spacing: float32 sums differ by their order; bfloat16 rounds a few intermediate results.
SPACINGS = {torch.float32: 64, torch.bfloat16: 3}
DTYPES = pytest.mark.parametrize("dtype", SPACINGS, ids=str)


def assert_near(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert actual.shape == expected.shape
    expected = expected.float().cpu()
    allowed = SPACINGS[dtype] * torch.finfo(dtype).eps * expected.abs().max().item()
    worst = (actual.float().cpu() - expected).abs().max().item()
    assert worst <= allowed, f"off by {worst:.3g}, allowed {allowed:.3g}"


def rounded(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Random numbers that the dtype holds exactly, as float32 on the CPU."""
    return torch.randn(*shape).to(dtype).float()


def on_npu(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype).npu().requires_grad_()


def compare(expected_fn, actual_fn, inputs: list[torch.Tensor], dtype: torch.dtype) -> None:
    """Run both on the inputs, push the same gradient back, compare outputs and input gradients."""
    cpu_inputs = [tensor.clone().requires_grad_() for tensor in inputs]
    npu_inputs = [on_npu(tensor, dtype) for tensor in inputs]
    expected, actual = expected_fn(*cpu_inputs), actual_fn(*npu_inputs)
    expected, actual = (out if isinstance(out, tuple) else (out,) for out in (expected, actual))
    assert all(out.dtype == dtype for out in actual)
    grads = [rounded(*out.shape, dtype=dtype) for out in expected]
    torch.autograd.backward(expected, grads)
    torch.autograd.backward(actual, [grad.to(dtype).npu() for grad in grads])
    for a, e in zip(actual, expected, strict=True):
        assert_near(a.detach(), e.detach(), dtype)
    for a, e in zip(npu_inputs, cpu_inputs, strict=True):
        assert_near(a.grad, e.grad, dtype)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def documents(*starts: list[int], length: int) -> torch.Tensor:
    """Positions of a batch whose rows' documents begin at the given tokens."""
    rows = []
    for begins in starts:
        ends = [*begins[1:], length]
        rows.append(torch.cat([torch.arange(end - begin) for begin, end in zip(begins, ends, strict=True)]))
    return torch.stack(rows)


@DTYPES
@pytest.mark.parametrize("shape", [(2, 16, 64), (3, 5, 4, 32)], ids=["tokens", "heads"])
def test_rms_norm(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    config = RMSNorm.Config(normalized_shape=shape[-1], eps=1e-6)
    weight = rounded(shape[-1], dtype=dtype)
    upstream, ours = config.build(), rms_norm.rms_norm(config).build()
    with torch.no_grad():
        upstream.weight.copy_(weight)
        ours.weight.copy_(weight)
    ours = ours.to(dtype).npu()
    compare(upstream, ours, [rounded(*shape, dtype=dtype)], dtype)
    assert_near(ours.weight.grad, upstream.weight.grad, dtype)


@DTYPES
@pytest.mark.parametrize("with_positions", [True, False])
@pytest.mark.parametrize(
    ("config_class", "factory"),
    [(ComplexRoPE, rope.complex_rope), (CosSinRoPE, rope.cos_sin_rope), (ComplexRoPE, rope.reference_complex_rope)],
    ids=["complex", "cos_sin", "reference"],
)
def test_rope(config_class, factory, with_positions: bool, dtype: torch.dtype) -> None:
    config = config_class.Config(dim=16, max_seq_len=32, theta=10000.0)
    if config_class is ComplexRoPE:
        config = dataclasses.replace(config, scaling="llama")
    positions = documents([0, 7], [0, 3, 20], length=24) if with_positions else None
    upstream = config.build()
    with torch.device("npu"):
        ours = factory(config).build()
    assert ours.cache.device.type == "npu" and ours.cache.dtype == torch.float32  # neither complex nor float64
    npu_positions = None if positions is None else positions.npu()
    compare(
        lambda q, k: upstream(q, k, positions),
        lambda q, k: ours(q, k, npu_positions),
        [rounded(2, 24, 4, 16, dtype=dtype), rounded(2, 24, 2, 16, dtype=dtype)],
        dtype,
    )


def test_rope_keeps_the_class_that_hf_adapters_check() -> None:
    assert issubclass(rope.NPUComplexRoPE.Config, ComplexRoPE.Config)
    assert issubclass(rope.NPUCosSinRoPE.Config, CosSinRoPE.Config)


@DTYPES
def test_swiglu(dtype: torch.dtype) -> None:
    def linear(inputs: int, outputs: int) -> Linear.Config:
        return Linear.Config(in_features=inputs, out_features=outputs)

    config = FeedForward.Config(w1=linear(32, 48), w2=linear(48, 32), w3=linear(32, 48))
    upstream = config.build()
    with torch.no_grad():
        for parameter in upstream.parameters():
            parameter.copy_(rounded(*parameter.shape, dtype=dtype) / 8)
    ours = swiglu.swiglu(config).build().to(dtype).npu()
    ours.load_state_dict(upstream.state_dict())
    compare(upstream, ours, [rounded(2, 16, 32, dtype=dtype)], dtype)
    for (name, a), (_, e) in zip(ours.named_parameters(), upstream.named_parameters(), strict=True):
        assert_near(a.grad, e.grad, dtype), name


WINDOWS = pytest.mark.parametrize("window", [(-1, 0), (5, 0), (-1, -1)], ids=["causal", "band", "full"])


def to_npu(metadata: VarlenMetadata) -> VarlenMetadata:
    return metadata._replace(cu_seq_q=metadata.cu_seq_q.npu(), cu_seq_k=metadata.cu_seq_k.npu())


@DTYPES
@WINDOWS
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2)], ids=["mha", "gqa"])
@pytest.mark.parametrize("module", [attention.NPUAttention, reference.ReferenceAttention], ids=["npu", "reference"])
def test_attention(module, heads: int, kv_heads: int, window: tuple[int, int], dtype: torch.dtype) -> None:
    config = VarlenAttention.Config(window_size=window)
    metadata = create_varlen_metadata_for_document(documents([0, 7], [0, 1, 20], length=24))
    expected = derive(config, reference.ReferenceAttention.Config).build()
    actual = derive(config, module.Config).build()
    compare(
        lambda q, k, v: expected(q, k, v, attention_masks=metadata),
        lambda q, k, v: actual(q, k, v, attention_masks=to_npu(metadata)),
        [rounded(2, 24, n, 16, dtype=dtype) for n in (heads, kv_heads, kv_heads)],
        dtype,
    )


def test_reference_attention_is_attention() -> None:
    """The module everything is compared with, against torch's own attention on one document a row."""
    query, key, value = (torch.randn(2, 12, 3, 8) for _ in range(3))
    metadata = create_varlen_metadata_for_document(documents([0], [0], length=12))
    module = reference.ReferenceAttention.Config().build()
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(tensor.transpose(1, 2) for tensor in (query, key, value)), is_causal=True
    ).transpose(1, 2)
    torch.testing.assert_close(module(query, key, value, attention_masks=metadata), expected)


def test_attention_keeps_documents_apart() -> None:
    module = attention.NPUAttention.Config().build()
    metadata = to_npu(create_varlen_metadata_for_document(documents([0, 10], length=24)))
    query, key, value = (torch.randn(1, 24, 2, 16).npu() for _ in range(3))
    before = module(query, key, value, attention_masks=metadata)
    value[:, :10] = 100.0
    after = module(query, key, value, attention_masks=metadata)
    assert torch.equal(before[:, 10:], after[:, 10:])
    assert not torch.equal(before[:, :10], after[:, :10])


def test_offsets_are_read_again_when_they_change() -> None:
    last = packed._LastOffsets()
    offsets = torch.tensor([0, 4, 9])
    assert last.ends(offsets) == [4, 9]
    assert last.ends(offsets) == [4, 9]
    offsets[1] = 5
    assert last.ends(offsets) == [5, 9]
    assert last.ends(torch.tensor([0, 3])) == [3]


@pytest.mark.parametrize("name", ["out_transform", "score_mod"])
def test_attention_refuses_what_it_cannot_do(name: str) -> None:
    module = attention.NPUAttention.Config().build()
    tensor = torch.zeros(1, 4, 1, 16)
    metadata = create_varlen_metadata_for_document(documents([0], length=4))
    with pytest.raises(Exception, match=name):
        module(tensor, tensor, tensor, attention_masks=metadata, **{name: lambda *args: None})


@pytest.mark.parametrize("dtype", SPACINGS, ids=str)
def test_attention_is_traced_whole(dtype: torch.dtype) -> None:
    """Upstream compiles each block with fullgraph=True; the number of documents changes from step to step."""
    module = attention.NPUAttention.Config().build()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=False)
    for starts in ([0, 7], [0, 3, 11]):
        metadata = to_npu(create_varlen_metadata_for_document(documents(starts, length=24)))
        inputs = [on_npu(torch.randn(1, 24, 2, 16), dtype) for _ in range(3)]
        twins = [tensor.detach().clone().requires_grad_() for tensor in inputs]
        eager, traced = module(*inputs, attention_masks=metadata), compiled(*twins, attention_masks=metadata)
        torch.testing.assert_close(traced, eager)
        eager.sum().backward()
        traced.sum().backward()
        for a, b in zip(inputs, twins, strict=True):
            torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("build", ["rms_norm", "rope", "swiglu"])
def test_other_converters_are_traced_whole(build: str) -> None:
    x = torch.randn(1, 8, 32).npu()
    heads = torch.randn(1, 8, 2, 16).npu()
    if build == "rms_norm":
        module = rms_norm.NPURMSNorm.Config(normalized_shape=32).build().npu()
        arguments = [x]
    elif build == "rope":
        with torch.device("npu"):
            module = rope.NPUComplexRoPE.Config(dim=16, max_seq_len=8).build()
        arguments = [heads, heads.clone()]
    else:
        linear = Linear.Config(in_features=32, out_features=32)
        module = swiglu.NPUFeedForward.Config(w1=linear, w2=linear, w3=linear).build().npu()
        arguments = [x]
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    twins = [tensor.clone().requires_grad_() for tensor in arguments]
    arguments = [tensor.requires_grad_() for tensor in arguments]
    eager, traced = module(*arguments), compiled(*twins)
    eager, traced = (out if isinstance(out, tuple) else (out,) for out in (eager, traced))
    torch.testing.assert_close(traced, eager)
    sum(out.sum() for out in eager).backward()
    sum(out.sum() for out in traced).backward()
    for a, b in zip(arguments, twins, strict=True):
        torch.testing.assert_close(a.grad, b.grad)
