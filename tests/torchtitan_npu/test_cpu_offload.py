"""Parameters, gradients and optimizer state kept on the host."""

from pathlib import Path

from tests.torchtitan_npu.runs import FP32, train, trainer

SHORT = ("--module", "tests.torchtitan_npu.short", "--config", "deepseek", "--debug.seed", "42", *FP32)
STEPS = ("--training.steps", "3", "--training.seq_len", "32", "--training.local_batch_size", "1")


def test_experts_offloaded_to_the_host_train_as_on_the_device(data: Path, tmp_path: Path) -> None:
    """From one seed checkpoint, since the host draws other numbers than the device."""
    seed = tmp_path / "seed"
    with trainer(data, *SHORT, *STEPS, "--dump_folder", str(seed), "--checkpoint.enable") as built:
        built.checkpointer.save(curr_step=0, last_step=True)
    flags = (*SHORT, *STEPS, "--checkpoint.enable", "--checkpoint.interval", "1000", "--checkpoint.folder", "own")
    flags += ("--checkpoint.initial_load_path", str(seed / "checkpoint" / "step-0"))
    here = train(data, *flags, "--dump_folder", str(tmp_path / "here")).losses
    offloaded = train(data, *flags, "--dump_folder", str(tmp_path / "off"), "--training.enable_cpu_offload").losses
    assert len(here) == 3
    assert max(abs(offloaded[step] - here[step]) for step in here) <= 1e-4
