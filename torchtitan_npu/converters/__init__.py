"""The NPU's replacements for upstream modules, declared as data.

Each entry is an upstream Config class (the target of an override), the factory that replaces it, the operator that is
used, and when the entry can go. The factories are in this package's modules and are activated by name through
upstream's `override.imports`; reading this table imports neither torch nor torchtitan.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Converter:
    name: str
    part: str
    """What of the model or the run it concerns; `--npu.reference_parts` takes these names."""
    target: str
    """Upstream's Config class."""
    factory: str
    """Our `@override` factory, as listed in `override.imports`."""
    operator: str
    """The torch_npu operator; empty where none is used."""
    saves: str
    delete_when: str
    presets: tuple[str, ...] = ("npu",)


_MODULES = "torchtitan.models.common"
_HERE = "torchtitan_npu.converters"

CONVERTERS = (
    Converter(
        name="flex_attention",
        part="attention",
        target=f"{_MODULES}.attention.FlexAttention.Config",
        factory=f"{_HERE}.attention.flex_attention",
        operator="npu_fusion_attention",
        saves="block-mask building and a compiled Triton kernel that has no NPU counterpart",
        delete_when="flex_attention has an NPU backend in torch_npu",
    ),
    Converter(
        name="varlen_attention",
        part="attention",
        target=f"{_MODULES}.attention.VarlenAttention.Config",
        factory=f"{_HERE}.attention.varlen_attention",
        operator="npu_fusion_attention",
        saves="the score matrix of every head, and all but one launch of attention",
        delete_when="torch.nn.attention.varlen.varlen_attn runs on NPU and keeps float32",
    ),
    Converter(
        name="rms_norm",
        part="norm",
        target=f"{_MODULES}.nn_modules.RMSNorm.Config",
        factory=f"{_HERE}.rms_norm.rms_norm",
        operator="npu_rms_norm",
        saves="five element-wise and reduction launches of the composed norm, more in backward",
        delete_when="torch_npu lowers aten::rms_norm to one kernel, forward and backward",
    ),
    Converter(
        name="complex_rope",
        part="rope",
        target=f"{_MODULES}.rope.ComplexRoPE.Config",
        factory=f"{_HERE}.rope.complex_rope",
        operator="npu_rotary_mul",
        saves="complex arithmetic, which the NPU cannot index or compute on its vector unit",
        delete_when="upstream offers a real-valued table for adjacent pairs",
    ),
    Converter(
        name="cos_sin_rope",
        part="rope",
        target=f"{_MODULES}.rope.CosSinRoPE.Config",
        factory=f"{_HERE}.rope.cos_sin_rope",
        operator="npu_rotary_mul",
        saves="the slices, concatenation and four multiplications of rotate-half",
        delete_when="torch_npu fuses the rotate-half pattern by itself",
    ),
    Converter(
        name="swiglu",
        part="swiglu",
        target=f"{_MODULES}.feed_forward.FeedForward.Config",
        factory=f"{_HERE}.swiglu.swiglu",
        operator="npu_swiglu",
        saves="one element-wise pass forward and three backward",
        delete_when="upstream's feed-forward takes its activation as a configurable part",
    ),
    Converter(
        name="grouped_experts",
        part="experts",
        target=f"{_MODULES}.moe.GroupedExperts.Config",
        factory=f"{_HERE}.experts.grouped_experts",
        operator="npu_grouped_matmul",
        saves="a launch for each expert and projection, and reading the offsets to the host",
        delete_when="torch_npu serves torch._grouped_mm with one kernel, forward and backward",
    ),
    Converter(
        name="gpt_oss_experts",
        part="experts",
        target="torchtitan.models.gpt_oss.moe.GptOssGroupedExperts.Config",
        factory=f"{_HERE}.experts.gpt_oss_experts",
        operator="npu_grouped_matmul",
        saves="the same, the spread-out biases, and the element-wise passes of the clipped activation",
        delete_when="torch_npu serves torch._grouped_mm with one kernel, forward and backward",
    ),
    Converter(
        name="router",
        part="router",
        target=f"{_MODULES}.moe.TokenChoiceTopKRouter.Config",
        factory=f"{_HERE}.router.router",
        operator="npu_moe_gating_top_k",
        saves="softmax, top-k and gather as launches of their own, and their gradients",
        delete_when="torch_npu fuses the router's pattern by itself",
    ),
    Converter(
        name="local_dispatch",
        part="dispatch",
        target=f"{_MODULES}.token_dispatcher.LocalTokenDispatcher.Config",
        factory=f"{_HERE}.dispatch.local_dispatch",
        operator="npu_moe_token_permute",
        saves="sort, indexing, casts, the product with the scores and the scatter-add, and their gradients",
        delete_when="upstream's dispatcher takes its permutation as a configurable part",
    ),
    Converter(
        name="all_to_all_dispatch",
        part="dispatch",
        target=f"{_MODULES}.token_dispatcher.AllToAllTokenDispatcher.Config",
        factory=f"{_HERE}.dispatch.all_to_all_dispatch",
        operator="npu_moe_token_permute",
        saves="the same, and the index arithmetic that sorts arriving tokens by expert",
        delete_when="upstream's dispatcher takes its permutation as a configurable part",
    ),
    Converter(
        name="cross_entropy",
        part="loss",
        target="torchtitan.components.loss.CrossEntropyLoss.Config",
        factory=f"{_HERE}.loss.cross_entropy",
        operator="npu_cross_entropy_loss",
        saves="a launch forward and one backward for each chunk of the loss, and a pass over the logits each",
        delete_when="torch_npu lowers cross_entropy to one kernel, forward and backward",
    ),
    Converter(
        name="multi_token_cross_entropy",
        part="loss",
        target="torchtitan.models.deepseek_v3.mtp.MTPLoss.Config",
        factory=f"{_HERE}.loss.multi_token_cross_entropy",
        operator="npu_cross_entropy_loss",
        saves="a launch forward and one backward for each depth of prediction, and a pass over the logits each",
        delete_when="torch_npu lowers cross_entropy to one kernel, forward and backward",
    ),
    Converter(
        name="fused_adamw",
        part="optimizer",
        target="torchtitan.components.optimizer.OptimizersContainer.Config",
        factory=f"{_HERE}.optimizer.fused_adamw",
        operator="_fused_adamw_",
        saves="two launches for each small parameter, for some eight in all",
        delete_when="torch_npu's _fused_adamw_ is one launch for many parameters",
    ),
    Converter(
        name="selective_checkpoint",
        part="checkpointing",
        target="torchtitan.distributed.activation_checkpoint.SelectiveAC.Config",
        factory=f"{_HERE}.checkpointing.selective_checkpoint",
        operator="",
        saves="a second attention in backward: its output is kept, as upstream keeps its own attention's",
        delete_when="upstream's list of saved operators can be extended by configuration",
    ),
    Converter(
        name="reference_flex_attention",
        part="attention",
        target=f"{_MODULES}.attention.FlexAttention.Config",
        factory=f"{_HERE}.reference.reference_flex_attention",
        operator="",
        saves="nothing: mask, matmul and softmax, which converters are compared with",
        delete_when="flex_attention has an NPU backend in torch_npu",
        presets=("reference",),
    ),
    Converter(
        name="reference_varlen_attention",
        part="attention",
        target=f"{_MODULES}.attention.VarlenAttention.Config",
        factory=f"{_HERE}.reference.reference_varlen_attention",
        operator="",
        saves="nothing: mask, matmul and softmax, which converters are compared with",
        delete_when="torch.nn.attention.varlen.varlen_attn runs on NPU and keeps float32",
        presets=("reference",),
    ),
    Converter(
        name="reference_complex_rope",
        part="rope",
        target=f"{_MODULES}.rope.ComplexRoPE.Config",
        factory=f"{_HERE}.rope.reference_complex_rope",
        operator="",
        saves="nothing: upstream's formula on real tables, because the NPU cannot index complex ones",
        delete_when="upstream offers a real-valued table for adjacent pairs",
        presets=("reference",),
    ),
    Converter(
        name="metrics",
        part="metrics",
        target="torchtitan.components.metrics.MetricsProcessor.Config",
        factory="torchtitan_npu.metrics.npu_metrics",
        operator="",
        saves="nothing: keeps the losses, throughput and peak memory for the summary of the run",
        delete_when="upstream's metrics processor takes additional loggers from its configuration",
        presets=("npu", "reference", "none"),
    ),
    Converter(
        name="validator",
        part="validation",
        target="torchtitan.components.validate.Validator.Config",
        factory="torchtitan_npu.validation.npu_validator",
        operator="",
        saves="nothing: gives the loss of multi-token prediction the positions, without which it raises",
        delete_when="upstream's validator passes positions to the loss, as its training loop does",
        presets=("npu", "reference", "none"),
    ),
)


PARTS = tuple(dict.fromkeys(converter.part for converter in CONVERTERS))


def of_preset(preset: str, reference_parts: tuple[str, ...] | list[str] = ()) -> list[Converter]:
    """The entries a run activates; parts named in `reference_parts` come from preset `reference` instead."""
    return [
        converter
        for converter in CONVERTERS
        if ("reference" if converter.part in reference_parts else preset) in converter.presets
    ]
