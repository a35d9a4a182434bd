"""The command line, as a user meets it: processes, exit codes, what is printed and how soon."""

import json
import subprocess
import sys
import time

import pytest

from torchtitan_npu import cli, devices, launch
from torchtitan_npu.config import catalogue
from torchtitan_npu.errors import UserError


def run(*arguments: str, **settings) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "torchtitan_npu.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        **settings,
    )


@pytest.mark.parametrize("command", [[], ["train"], ["prepare"], ["export"], ["doctor"], ["configs"]])
def test_help_fits_80_columns_and_comes_at_once(command: list[str]) -> None:
    begin = time.monotonic()
    result = run(*command, "--help")
    assert time.monotonic() - begin < 2
    assert result.returncode == 0
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "usage: torchtitan-npu" in result.stdout


def test_no_command_needs_torch_to_start() -> None:
    program = "import sys, torchtitan_npu.cli, torchtitan_npu.launch, torchtitan_npu.data.prepare; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "torch_npu", "torchtitan", "cann_emulator"} & set(loaded)


def test_configs_lists_what_upstream_ships() -> None:
    listed = json.loads(run("configs", "--json").stdout)
    assert {"llama3_debugmodel", "llama3_debugmodel_varlen_attn"} <= set(listed["llama3"])
    assert "qwen3_debugmodel" in listed["qwen3"]


def test_catalogue_agrees_with_the_modules() -> None:
    from torchtitan.models.llama3 import config_registry
    from torchtitan.trainer import Trainer

    for name in catalogue.models()["llama3"]:
        assert callable(getattr(config_registry, name))
    assert isinstance(config_registry.llama3_debugmodel(), Trainer.Config)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--module", "llama3", "--config", "llama3_debug"], "one of llama3_debugmodel, llama3_debugmodel_varlen_attn"),
        (["--module", "lama3", "--config", "x"], "unknown module 'lama3'"),
        ([], "--module and --config are needed"),
        (["--module=llama3", "--config=llama3_debugmodel", "--nproc", "0"], "argument --nproc: 0 is not"),
        (["--module=llama3", "--config=llama3_debugmodel", "--nnodes", "x"], "x is neither a number of nodes nor MIN"),
    ],
)
def test_bad_names_are_refused_with_the_choices(flags: list[str], message: str) -> None:
    result = run("train", *flags)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) < 24 and "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--nnodes", "2:1"], "min_nodes must be > 0 and <= max_nodes"),
        (["--rdzv-backend", "pigeon", "--rdzv-endpoint", "a:1"], "pigeon"),
    ],
)
def test_what_torchrun_refuses_is_one_message(monkeypatch: pytest.MonkeyPatch, flags: list[str], message: str) -> None:
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    options, upstream = cli._parse(["train", *flags])
    with pytest.raises(UserError, match=f"torchrun cannot start the processes: .*{message}"):
        launch.train(options, upstream)


def test_a_folder_that_cannot_be_written_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["prepare", "--output", f"{__file__}/data"]) == 2
    assert "Not a directory" in capsys.readouterr().err


def test_unknown_option_of_another_command_is_refused() -> None:
    result = run("prepare", "--colour", "red")
    assert result.returncode == 2 and "unrecognized arguments: --colour" in result.stderr
    assert "usage: torchtitan-npu prepare" in result.stderr


def test_upstream_flags_are_listed_with_a_config() -> None:
    result = run("train", "--module", "llama3", "--config", "llama3_debugmodel", "--help")
    assert result.returncode == 0
    assert "--training.seq-len" in result.stdout and "--npu.converters" in result.stdout
    assert max(map(len, result.stdout.splitlines()[2:])) <= 80


def test_flags_reach_upstream_unchanged() -> None:
    options, rest = cli._parse(["train", "--nproc", "2", "--module", "m", "--config", "c", "--training.steps=3"])
    assert options.nproc == 2
    assert rest == ["--module", "m", "--config", "c", "--training.steps=3"]


class TestDevices:
    def test_auto_without_a_device_is_the_emulator(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(devices, "ascend_devices", list)
        assert devices.choose("auto") == "emulator"
        with pytest.raises(UserError, match="no Ascend device found"):
            devices.choose("npu")

    def test_auto_with_a_device_is_the_npu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(devices, "ascend_devices", lambda: ["davinci0"])
        monkeypatch.setattr(devices, "on_emulator", lambda: False)
        assert devices.choose("auto") == "npu"
        assert devices.choose("emulator") == "emulator"

    def test_the_command_is_started_again_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        started = []
        monkeypatch.setattr(cli.os, "execv", lambda program, command: started.append(command))
        monkeypatch.setattr(devices, "ascend_devices", list)
        monkeypatch.setattr(devices, "on_emulator", lambda: False)
        monkeypatch.setattr(devices, "emulator_command", lambda: ["cann-emulator", "run", "--"])
        monkeypatch.delenv(cli._RESTARTED, raising=False)
        cli._enter_device("auto", ["train", "--x"])
        assert started == [["cann-emulator", "run", "--", sys.executable, "-m", "torchtitan_npu.cli", "train", "--x"]]
        with pytest.raises(UserError, match="did not set up the emulated CANN"):
            cli._enter_device("auto", ["train", "--x"])

    def test_a_missing_emulator_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        monkeypatch.setenv("PATH", "")
        with pytest.raises(UserError, match="cann-emulator is not installed"):
            devices.emulator_command()
