"""Upstream's debug models as upstream configures them: each learns a text, and trains as preset reference does.

What passed is written as a table where SUPPORT_TABLE names a file; `make support-table` writes the documentation's. A
model that did not run now keeps its row.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.torchtitan_npu.runs import FP32, train
from torchtitan_npu.data import prepare

_SHORT = ("--training.seq_len", "64", "--training.local_batch_size", "1", "--debug.seed", "42")
_STEPS = ("--training.steps", "4", "--lr_scheduler.warmup_steps", "1")
# AdamW's first updates have the learning rate's size however small a gradient is, its rounding included: few and small.
_RATE = ("--optimizer.param-groups.0.optimizer-kwargs.lr", "2e-4")
_DENSE, _MOE = "grouped-query attention", "mixture of experts"

# Module, config, what is in it, and whether a run takes too long for the everyday suite.
MODELS = (
    ("llama3", "llama3_debugmodel", f"dense, {_DENSE} (flex)", True),
    ("llama3", "llama3_debugmodel_varlen_attn", f"dense, {_DENSE} (varlen)", True),
    ("qwen3", "qwen3_debugmodel", f"dense, {_DENSE}, query and key norms", True),
    ("qwen3", "qwen3_moe_debug", f"{_MOE} (64, top 8), {_DENSE}", True),
    ("deepseek_v3", "deepseek_v3_debugmodel", f"{_MOE} (8, top 3, shared), latent attention", False),
    ("deepseek_v3", "deepseek_v3_debugmodel_mtp", "the same with multi-token prediction", True),
    ("gpt_oss", "gpt_oss_debugmodel", f"{_MOE} (8, top 4), sinks, sliding window", False),
)


_INTRODUCTION = """\
# Models that train

Written by `make support-table`: each config as upstream has it learns one text, 4 steps of 64 tokens, with the
converters; in float32 each loss is that of `--npu.converters reference` to bfloat16's precision (upstream's experts
multiply in it whatever the precision is).

"""
_HEAD = ["| module | config | what it is | loss, 4 steps |", "| --- | --- | --- | --- |"]


@pytest.fixture(scope="module")
def table() -> Iterator[dict[str, str]]:
    """A row for each config."""
    rows: dict[str, str] = {}
    yield rows
    if path := os.environ.get("SUPPORT_TABLE"):
        file = Path(path)
        before = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        known = {line.split("|")[2].strip(): line for line in before if line.startswith("|")} | rows
        lines = [*_HEAD, *(known[config] for _, config, *_ in MODELS if config in known)]
        file.write_text(_INTRODUCTION + "\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def one_text(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same text again and again: its loss falls whatever a model is, that of ever new text need not in 4 steps."""
    root = tmp_path_factory.mktemp("one_text")
    (root / "text.txt").write_text("A rank that waits for a rank that waits for it waits for ever. " * 4)
    prepare.run(
        files=[str(root / "text.txt")],
        output=str(root / "data"),
        tokenizer=str(data / "tokenizer"),
        vocab_size=2048,
        field="text",
        held_out=0,
        say=lambda line: None,
    )
    return root / "data"


@pytest.mark.parametrize(
    ("module", "config", "what"),
    [pytest.param(*row, id=row[1], marks=[pytest.mark.slow] if slow else []) for *row, slow in MODELS],
)
def test_a_text_is_learnt_as_with_the_reference_preset(
    one_text: Path, tmp_path: Path, table: dict[str, str], module: str, config: str, what: str
) -> None:
    flags = ("--module", module, "--config", config, *_SHORT, *_STEPS, *_RATE, "--dump_folder", str(tmp_path))
    losses = train(one_text, *flags).losses
    assert losses[4] < losses[1] - 0.5
    float32 = train(one_text, *flags, *FP32).losses
    reference = train(one_text, *flags, *FP32, "--npu.converters", "reference").losses
    eps = torch.finfo(torch.bfloat16).eps / 2
    assert max(abs(float32[step] - reference[step]) for step in float32) <= eps * float32[1]  # the experts' bfloat16
    assert abs(losses[1] - float32[1]) <= eps * float32[1]
    table[config] = f"| {module} | {config} | {what} | {losses[1]:.2f} -> {losses[4]:.2f} |"
