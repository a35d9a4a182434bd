"""A trained model, exported and loaded by transformers on the CPU, gives the logits it gives on the NPU."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.torchtitan_npu.runs import FP32, LLAMA, QWEN, command, trainer
from torchtitan_npu import export
from torchtitan_npu.errors import UserError

PROMPTS = (
    "The return statement",
    "A class definition is",
    "def f(x): return x + 1",
    "An exception is raised when the name is not found in any scope",
    "Lists are mutable sequences, typically used to store collections",
)


@pytest.fixture(scope="module", params=[LLAMA, QWEN], ids=["llama3", "qwen3"])
def trained(request, data: Path, tmp_path_factory: pytest.TempPathFactory):
    """Three steps of training, the checkpoint they leave, and the model's logits for every prompt in float32."""
    from tokenizers import Tokenizer

    folder = tmp_path_factory.mktemp("trained")
    tokenizer = Tokenizer.from_file(str(data / "tokenizer" / "tokenizer.json"))
    prompts = [tokenizer.encode(prompt).ids for prompt in PROMPTS]
    flags = (*request.param, *FP32, "--debug.seed", "3", "--dump_folder", str(folder), "--training.steps", "3")
    flags += ("--training.seq_len", "64", "--training.local_batch_size", "1", "--checkpoint.enable")
    with trainer(data, *flags) as built:
        built.train()
        logits = [_logits(built, prompt) for prompt in prompts]
    return request.param, folder / "checkpoint" / "step-3", prompts, logits


def _logits(built, prompt: list[int]) -> torch.Tensor:
    (model,) = built.model_parts
    tokens = torch.tensor([prompt]).npu()
    positions = torch.arange(len(prompt)).npu()[None]
    model.eval()
    skipped, model._skip_lm_head = model._skip_lm_head, False
    with torch.no_grad(), built.train_context():
        out = model(tokens, positions=positions, attention_masks=model.get_attention_masks(positions))
    model._skip_lm_head = skipped
    return out[0].float().cpu()


def test_transformers_gives_the_same_logits(trained, data: Path, tmp_path: Path) -> None:
    import transformers

    model, checkpoint, prompts, expected = trained
    _export(model, checkpoint, data, tmp_path / "hf")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    for text, prompt, logits in zip(PROMPTS, prompts, expected, strict=True):
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == prompt
        with torch.no_grad():
            found = loaded(torch.tensor([prompt])).logits[0]
        assert (found - logits).abs().max() <= 1e-4 * max(1.0, logits.abs().max().item())


def test_weights_in_bfloat16_are_the_float32_ones_rounded_once(trained, data: Path, tmp_path: Path) -> None:
    model, checkpoint, *_ = trained
    tensors = []
    for dtype in ("float32", "bfloat16"):
        _export(model, checkpoint, data, tmp_path / dtype, dtype)
        tensors.append(load_file(tmp_path / dtype / "model.safetensors"))
    exact, rounded = tensors
    assert exact.keys() == rounded.keys()
    for name in exact:
        assert rounded[name].dtype == torch.bfloat16 and torch.equal(rounded[name], exact[name].bfloat16()), name
    config = json.loads((tmp_path / "bfloat16" / "config.json").read_text())
    assert config.get("dtype", config.get("torch_dtype")) == "bfloat16"


def _export(model, checkpoint: Path, data: Path, output: Path, dtype: str = "float32") -> None:
    export.run(
        module=model[1],
        config=model[3],
        checkpoint=str(checkpoint),
        tokenizer=str(data / "tokenizer"),
        dtype=dtype,
        output=str(output),
        say=lambda line: None,
    )


def test_the_folder_is_complete(trained, data: Path, tmp_path: Path) -> None:
    model, checkpoint, *_ = trained
    _export(model, checkpoint, data, tmp_path / "hf")
    assert {path.name for path in (tmp_path / "hf").iterdir()} == {
        *("model.safetensors", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    }
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    generation = json.loads((tmp_path / "hf" / "generation_config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"]) == (0, 1)
    assert (generation["bos_token_id"], generation["eos_token_id"]) == (0, 1)
    if model is LLAMA:
        assert config["rope_scaling"]["rope_type"] == "llama3" and not config["tie_word_embeddings"]
    else:
        assert config["head_dim"] == 128 and config["tie_word_embeddings"] and config["rope_scaling"] is None


def test_the_command_writes_and_never_overwrites(trained, data: Path, tmp_path: Path) -> None:
    model, checkpoint, *_ = trained
    arguments = ("export", *model, "--checkpoint", str(checkpoint), "--tokenizer", str(data / "tokenizer"))
    result = command(*arguments, "--output", "hf", cwd=tmp_path)
    assert result.returncode == 0 and "wrote hf" in result.stdout
    before = (tmp_path / "hf" / "model.safetensors").stat().st_mtime_ns
    with pytest.raises(UserError, match="exists already"):
        _export(model, checkpoint, data, tmp_path / "hf")
    assert (tmp_path / "hf" / "model.safetensors").stat().st_mtime_ns == before


def test_what_is_not_this_models_checkpoint_is_refused(trained, data: Path, tmp_path: Path) -> None:
    model, checkpoint, *_ = trained
    other = QWEN if model is LLAMA else LLAMA
    with pytest.raises(UserError, match="another model wrote it"):
        _export(other, checkpoint, data, tmp_path / "hf")
    with pytest.raises(UserError, match="is not a checkpoint"):
        _export(model, tmp_path, data, tmp_path / "hf")
    damaged = tmp_path / "damaged"
    shutil.copytree(checkpoint, damaged)
    weights = next(damaged.glob("*.distcp"))
    size = weights.stat().st_size
    for content, message in ((b"\0" * size, "cannot be read: "), (b"", "is corrupt: .* 0 bytes, ")):
        weights.write_bytes(content)
        with pytest.raises(UserError, match=message) as refused:
            _export(model, damaged, data, tmp_path / "hf")
        assert "dict_keys" not in str(refused.value)
    (damaged / ".metadata").write_bytes(b"junk")
    with pytest.raises(UserError, match=r"is corrupt: its .metadata cannot be read"):
        _export(model, damaged, data, tmp_path / "hf")
    assert {path.name for path in tmp_path.iterdir()} == {"damaged"}


def test_a_failing_export_leaves_nothing(trained, tmp_path: Path) -> None:
    model, checkpoint, *_ = trained
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match=r"tokenizer.json cannot be read"):
        _export(model, checkpoint, tmp_path, tmp_path / "new" / "hf")
    assert {path.name for path in tmp_path.iterdir()} == {"tokenizer"}
