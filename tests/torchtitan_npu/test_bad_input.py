"""What a user can get wrong: one clear error in one screen, a non-zero exit, nothing overwritten."""

import errno
import shutil
from pathlib import Path

import pytest
import torch

from tests.torchtitan_npu.runs import LLAMA, SMALL, command, train
from torchtitan_npu import entry, launch
from torchtitan_npu.errors import UserError

SCREEN = 24


def configure(data: Path, *flags: str) -> None:
    entry._prepare_process()
    entry._configure(str(data), [*LLAMA, *SMALL, *flags])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--hf_assets_path", "no/where"], "tokenizer folder no/where does not exist"),
        (["--dataloader.dataset", "c4_test"], "dataset 'c4_test' is not there: tests/assets/c4_test does not exist"),
        (["--dataloader.dataset", "c5"], "dataloader.dataset 'c5' is unknown"),
        (["--dataloader.dataset", "prepared", "--dataloader.dataset_path", "gone.jsonl"], "gone.jsonl does not exist"),
        (["--training.steps", "0"], "training.steps 0 is too small"),
        (["--training.local_batch_size", "-2"], "training.local_batch_size -2 is too small"),
        (["--parallelism.tensor_parallel_degree", "0"], "parallelism.tensor_parallel_degree 0 is too small"),
        (["--parallelism.data_parallel_shard_degree", "0"], "data_parallel_shard_degree 0 is no number of ranks"),
        (["--dataloader.dataset", "prepared", "--dataloader.dataset_path", __file__], "no dataset: not JSON lines"),
        (["--hf_assets_path", __file__], "test_bad_input.py is a file"),
        (["--compile.enable", "--compile.backend", "gcc"], "compile.backend 'gcc' is unknown"),
        (["--training.seq_len", "100"], "training.seq_len 100 is not divisible by 8"),
        (["--training.global_batch_size", "3"], "training.global_batch_size 3 is not divisible by 2"),
        (["--parallelism.tensor_parallel_degree", "2"], "1 processes cannot be arranged as"),
        (["--parallelism.context_parallel_degree", "2"], "1 processes cannot be arranged as"),
        (["--parallelism.spmd_backend", "full_dtensor"], "full_dtensor is not served"),
        (["--training.no-disable_cuda_graphs"], "graph capture of a step is not served"),
        (["--npu.memory_fraction", "2"], "memory_fraction must be above 0"),
        (["--npu.hccl.buffer_mb", "-1"], "npu.hccl.buffer_mb must be at least 1, got -1"),
        (["--npu.hccl.connect_timeout_seconds", "0"], "connect_timeout_seconds must be at least 1"),
        (["--optimizer.param-groups.0.optimizer-kwargs.lr", "-1"], "optimizer-kwargs.lr -1"),
        (["--optimizer.param-groups.0.optimizer-kwargs.lr", "nan"], "lr nan is no learning rate"),
        (["--optimizer.param-groups.0.optimizer-name", "DistMuon"], "optimizer-name DistMuon is not served"),
        (["--debug.seed", "9223372036854775808"], "debug.seed 9223372036854775808 does not fit into 64 bits"),
        (["--npu.reference_parts", "norms"], "no part norms"),
        (["--dump_folder", f"{__file__}/run"], "nothing can be written to"),
    ],
)
def test_configuration_is_refused(
    data: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((UserError, SystemExit)) as caught:
        configure(data, *flags)
    # What a field itself refuses is shown by the parser of the flags.
    text = str(caught.value) if caught.type is UserError else capsys.readouterr().err
    assert message in " ".join(text.split())
    assert len(text.splitlines()) < SCREEN


@pytest.mark.parametrize(
    ("content", "message"), [("", "it holds no text"), ('{"body": "a"}\n', "has no field 'text'; it has body")]
)
def test_a_dataset_that_prepare_did_not_make_is_refused(data: Path, tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(content)
    with pytest.raises(UserError, match=f"mine.jsonl.*{message}") as refused:
        configure(data, "--dataloader.dataset", "prepared", "--dataloader.dataset_path", str(path))
    assert "torchtitan-npu prepare" in refused.value.fix


_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--training.seq_len", "1000000"], "exceeds attention RoPE maximum"),
        (["--checkpoint.enable", "--checkpoint.load_step", "77"], "load_step=77 not found"),
    ],
)
def test_what_upstream_refuses_is_one_message(data, tmp_path, flags, message, monkeypatch) -> None:
    for name, value in zip(_RANK, ("0", "0", "1", "localhost", "0"), strict=True):
        monkeypatch.setenv(name, value)
    entry._prepare_process()
    config = entry._configure(str(data), [*LLAMA, *SMALL, *flags, "--dump_folder", str(tmp_path)])
    try:
        with pytest.raises(UserError, match=rf"torchtitan refuses this \(.*py:\d+\): .*{message}"):
            entry._run(config)
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def test_what_only_another_rank_finds_is_said_once(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv(launch.SAID, str(tmp_path / "said"))
    monkeypatch.setattr(entry, "_prepare_process", lambda: None)
    monkeypatch.setattr(entry, "_configure", lambda data, flags: None)

    def fail(config: None) -> None:
        raise UserError("no memory here")

    monkeypatch.setattr(entry, "_run", fail)
    for rank in ("1", "0"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        assert entry.main(["data"]) == 2
    assert capsys.readouterr().err == "torchtitan-npu: error: no memory here\n"


def test_a_full_disk_is_one_message() -> None:
    error = entry._refusal(OSError(errno.ENOSPC, "No space left on device", "outputs/data/cache"))
    assert isinstance(error, UserError) and error.cause == "outputs/data/cache: No space left on device"


def test_hyperparameters_that_the_optimizer_refuses_are_one_message() -> None:
    with pytest.raises(ValueError) as caught:
        torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], betas=(1.5, 0.9))
    assert "torch refuses this (adam.py" in str(entry._refusal(caught.value))
    assert "Invalid beta parameter at index 0: 1.5" in str(entry._refusal(caught.value))


def test_a_mistake_in_the_code_keeps_its_traceback() -> None:
    try:
        int("a mistake of this project or of torch")
    except ValueError as error:
        assert entry._refusal(error) is error


def test_a_tokenizer_larger_than_the_vocabulary_is_refused(data: Path, tmp_path: Path) -> None:
    from torchtitan_npu.data import prepare

    prepare.run(
        files=[], output=str(tmp_path / "d"), tokenizer=None, vocab_size=3000, field="text", held_out=0.05,
        say=lambda line: None,
    )  # fmt: skip
    with pytest.raises(UserError, match="has 3000 tokens, the model's vocabulary only 2048"):
        configure(tmp_path / "d")


@pytest.mark.parametrize(
    ("module", "config", "why", "instead"),
    [
        ("qwen3", "qwen3_moe_deepep", "DeepEP's kernels are CUDA's", "all-to-all dispatcher"),
        ("deepseek_v3", "deepseek_v3_debugmodel_hybridep", "HybridEP's kernels are CUDA's", "all-to-all dispatcher"),
        ("deepseek_v3", "deepseek_v3_debugmodel_minimal_async_ep", "Triton's for CUDA", "all-to-all dispatcher"),
        ("llama3", "llama3_debugmodel_dist_gemm", "CUDA's symmetric memory", "tensor_parallel_degree"),
        ("gpt_oss", "gpt_oss_debugmodel_flex", "a sliding window", "gpt_oss_debugmodel"),
        ("qwen3", "qwen3_debugmodel_flex_flash", "Hopper or Blackwell", "qwen3_debugmodel"),
        ("qwen3", "qwen3_debugmodel_nvfp4", "torchao is not installed", "without the quantisation"),
    ],
)
def test_what_an_npu_cannot_do_is_refused_with_what_to_use(data: Path, module, config, why, instead) -> None:
    entry._prepare_process()
    with pytest.raises(UserError, match=why) as refused:
        entry._configure(str(data), ["--module", module, "--config", config, *SMALL])
    assert instead in refused.value.fix


@pytest.mark.parametrize("degree", ["pipeline_parallel_degree", "context_parallel_degree"])
def test_multi_token_prediction_with_pipelines_or_context_is_refused(data: Path, degree: str) -> None:
    entry._prepare_process()
    model = ("--module", "deepseek_v3", "--config", "deepseek_v3_debugmodel_mtp")
    with pytest.raises(UserError, match="multi-token prediction runs without it"):
        entry._configure(str(data), [*model, *SMALL, f"--parallelism.{degree}", "2"])


def test_a_split_backward_with_selective_checkpointing_is_refused(data: Path) -> None:
    entry._prepare_process()
    stages = ("--parallelism.pipeline_parallel_degree", "2", "--parallelism.pipeline_parallel_schedule")
    with pytest.raises(UserError, match="ZBVZeroBubble goes backward through a stage twice") as refused:
        entry._configure(str(data), [*LLAMA, *SMALL, *stages, "ZBVZeroBubble"])
    assert "activation-checkpoint:none" in refused.value.fix


DEEPSEEK = ("--module", "deepseek_v3", "--config", "deepseek_v3_debugmodel")
_TP, _PP, _EP = (f"--parallelism.{name}_parallel_degree" for name in ("tensor", "pipeline", "expert"))
_SCHEDULE = "--parallelism.pipeline_parallel_schedule"
_BATCH = "--training.local_batch_size"


@pytest.mark.parametrize(
    ("ranks", "flags", "message", "fix"),
    [
        (2, (_EP, "0"), "expert_parallel_degree 0 is too small", f"{_EP} 1"),
        (2, (_EP, "3"), "expert_parallel_degree 3 does not divide the 8 experts of layers.1.moe", f"{_EP} 1 or 2"),
        (2, (_EP, "4"), "4 does not divide the 2 ranks of data shards, context and tensor", f"{_EP} 1 or 2"),
        (16, (_EP, "16"), "expert_parallel_degree 16 does not divide the 8 experts", f"{_EP} 1 or 2 or 4 or 8"),
        (4, (_EP, "4", _PP, "2"), "4 does not divide the 2 ranks of data shards", f"{_EP} 1 or 2"),
        (
            3,
            (_TP, "3"),
            "tensor_parallel_degree 3 does not divide the 16 query and 16 key/value heads",
            f"{_TP} 1 or 2",
        ),
        (2, (_PP, "2", _SCHEDULE, "2F2B"), "Unknown schedule name '2F2B'", "Interleaved1F1B"),
        (2, (_PP, "2", _BATCH, "1"), "1F1B needs 2 microbatches for 2 ranks, and has 1", f"{_BATCH} 2"),
        (16, (_PP, "16"), "1F1B makes 16 stages of a model of 6 layers", f"{_PP} 8 at most"),
        (8, (_PP, "8", _SCHEDULE, "Interleaved1F1B"), "Interleaved1F1B makes 16 stages of a model", f"{_PP} 4 at most"),
        (2, (_PP, "2", _SCHEDULE, "Interleaved1F1B", _BATCH, "5"), "5 microbatches out to 2 rounds", f"{_BATCH} 4"),
        (
            2,
            ("--checkpoint.enable", "--checkpoint.create_seed_checkpoint"),
            "create_seed_checkpoint on 2 processes",
            "--nproc 1",
        ),
    ],
)
def test_a_layout_that_the_model_does_not_allow_is_refused_with_one_that_it_does(
    data: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, flags: tuple[str, ...], message: str, fix: str
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    entry._prepare_process()
    with pytest.raises(UserError) as refused:
        entry._configure(str(data), [*DEEPSEEK, *SMALL, *flags])
    assert message in refused.value.cause
    assert fix in refused.value.fix


def test_upstreams_kernel_overrides_are_refused(data: Path) -> None:
    entry._prepare_process()
    upstream = ("--override.imports", "torchtitan.overrides.helion_rope.helion_rope")
    with pytest.raises(UserError, match=r"Triton, Helion or CUDA"):
        entry._configure(str(data), [*LLAMA, *SMALL, *upstream])


@pytest.mark.parametrize(
    ("flags", "message", "fix"),
    [
        (["examples.own_override.float32_norm"], "both claim node", "--npu.reference_parts norm leaves"),
        (
            ["examples.own_override.float32_norm", "--npu.reference_parts", "rope"],
            "both claim node",
            "--npu.reference_parts rope,norm leaves",
        ),
        (["no.such.module"], "module 'no.such' could not be imported", "full names"),
        (["examples.own_override.float64_norm"], "names no registered @override", "full names"),
    ],
)
def test_overrides_that_cannot_be_applied_are_refused_before_the_start(data: Path, flags, message, fix) -> None:
    with pytest.raises(UserError) as refused:
        configure(data, "--override.imports", *flags)
    assert message in refused.value.cause
    assert fix in refused.value.fix


def test_a_setting_that_an_override_does_not_take_is_named_without_other_advice(data: Path) -> None:
    with pytest.raises(UserError, match=r"float32_norm\(\) got an unexpected keyword argument 'eps'") as refused:
        configure(
            data, "--npu.reference_parts", "norm", "--override.imports", 'examples.own_override.float32_norm={"eps": 1}'
        )
    assert refused.value.fix == ""


def test_prepared_data_is_used_and_flags_win(data: Path) -> None:
    entry._prepare_process()
    config = entry._configure(str(data), [*LLAMA, *SMALL])
    assert config.hf_assets_path == str(data / "tokenizer")
    assert config.dataloader.dataset_path == str(data / "train" / "data.jsonl")
    assert config.validator.dataloader.dataset_path == str(data / "held_out" / "data.jsonl")
    other = entry._configure(str(data), [*LLAMA, *SMALL, "--hf-assets-path", str(data / "tokenizer" / ".")])
    assert other.dataloader.dataset == "prepared"


def one_screen(result, message: str, code: int = 2) -> None:
    assert result.returncode == code, result.stderr[-2000:]
    errors = [line for line in result.stderr.splitlines() if not line.startswith(("[W", "[rank"))]
    start = next(number for number, line in enumerate(errors) if "torchtitan-npu: error:" in line)
    assert message in "\n".join(errors[start:])
    assert len(errors[start:]) < SCREEN
    assert "Traceback" not in result.stderr


def test_more_ranks_than_devices(data: Path, tmp_path: Path) -> None:
    result = command(
        "train", "--data", str(data), "--nproc", "2", *LLAMA, *SMALL, cwd=tmp_path, ASCEND_RT_VISIBLE_DEVICES="3"
    )
    one_screen(result, "2 processes on this node but 1 NPU is visible")
    assert list(tmp_path.iterdir()) == []


def test_too_little_memory(data: Path, tmp_path: Path) -> None:
    result = command(
        *("train", "--data", str(data), *LLAMA, *SMALL, "--training.steps", "2"), cwd=tmp_path,
        CANN_EMULATOR_HBM_GB="0.05",
    )  # fmt: skip
    one_screen(result, "the device's memory is not enough")


def test_a_corrupt_checkpoint_is_named_and_kept(data: Path, tmp_path: Path) -> None:
    flags = (*LLAMA, *SMALL, "--dump_folder", str(tmp_path / "out"), "--checkpoint.enable", "--training.steps", "1")
    train(data, *flags)
    step = tmp_path / "out" / "checkpoint" / "step-1"
    whole = tmp_path / "whole"
    shutil.copytree(step, whole)
    (weights,) = step.glob("*.distcp")
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UserError, match=r"1000 bytes, \d+ are needed"):
        train(data, *flags)
    weights.unlink()
    with pytest.raises(UserError, match="is missing"):
        train(data, *flags)
    shutil.copy(whole / weights.name, weights)
    (step / ".metadata").write_bytes(b"not a pickle")
    result = command("train", "--data", str(data), *flags, cwd=tmp_path)
    one_screen(result, "is corrupt: its .metadata cannot be read")
    assert sorted(path.name for path in step.iterdir()) == sorted(path.name for path in whole.iterdir())
    assert (step / ".metadata").read_bytes() == b"not a pickle"


def test_an_unknown_flag_is_answered_with_the_command_that_lists_the_known(data: Path, tmp_path: Path) -> None:
    result = command("train", "--data", str(data), *LLAMA, "--bogus", "3", cwd=tmp_path)
    said = " ".join(result.stderr.replace("│", " ").split())
    assert result.returncode == 2
    assert "--bogus" in said and f"run torchtitan-npu train {' '.join(LLAMA)} --help" in said
