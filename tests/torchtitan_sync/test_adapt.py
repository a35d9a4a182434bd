"""`adapt`: one commit or a patch, nobody's uncommitted work, and nothing left for a plugin that only saw moves."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torchtitan_sync import moves_only
from tests.torchtitan_sync.repositories import Repository
from torchtitan_sync import cli


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # of the pytest that `verify` starts: it starts faster
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "Ada")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "ada@example.org")
    return moves_only.build(tmp_path)[0]


def run(command: str, plugin: Repository, *options: str) -> int:
    return cli.main([command, "--repo", str(plugin.path), *options])


def test_adapt_then_verify_leaves_nothing_broken(plugin: Repository, tmp_path: Path) -> None:
    assert run("check", plugin) == 1
    assert run("verify", plugin) == 1
    assert run("adapt", plugin) == 0
    report = tmp_path / "verify.json"
    assert run("verify", plugin, "--tests", "--json", str(report)) == 0
    checks = {check["name"]: check for check in json.loads(report.read_text())}
    assert checks.keys() == {"P0 left", "import", "attribute", "subclass", "signature", "tests"}
    assert all(check["failed"] == check["skipped"] == 0 and check["passed"] for check in checks.values())
    assert run("check", plugin) == 0


def test_adapted_files_keep_comments_formatting_and_line_endings(plugin: Repository) -> None:
    run("adapt", plugin)
    assert (plugin.path / "torchtitan_npu/models.py").read_bytes() == (
        b"from torchtitan.models.llama.model import LlamaArgs\r\n\r\n\r\n"
        b"class NpuArgs(LlamaArgs):  # ours\r\n    fused: bool = True\r\n"
    )
    assert (plugin.path / "torchtitan_npu/converters.py").read_text() == (
        '"""Uses upstream\'s tools."""\n\n'
        "import torchtitan.tools.timing as tools  # the module\n"
        "from torchtitan.tools.timing import Timer  # measures\n"
        "from torchtitan.distributed.clipping import clip_grad_norm\n"
        "from torchtitan.config import JobConfig\n\n\n"
        "def convert(config: JobConfig) -> list:\n"
        '    timer = Timer(name="convert")\n'
        "    timer.start()\n"
        "    print(tools.Timer.unit, config.training.sequence_length)  # seq_len\n"
        "    return clip_grad_norm([1.0], max_norm=config.training.clip)\n"
    )


def test_flags_in_scripts_and_keys_in_toml_files_are_renamed(plugin: Repository) -> None:
    run("adapt", plugin)
    assert (plugin.path / "torchtitan_npu/configs/debug.toml").read_bytes() == (
        b"[training]\r\nsequence_length = 64  # short\r\nsteps = 2\r\n"
    )
    assert (plugin.path / "scripts/run.sh").read_text() == (
        "torchrun -m torchtitan.train --training.sequence_length 64 --training.steps 2  # seq_len\n"
    )


def test_everything_is_one_commit_that_names_what_was_done(plugin: Repository) -> None:
    head = plugin.git("rev-parse", "HEAD")
    plugin.write({"staged.txt": "mine\n"})
    plugin.git("add", "staged.txt")
    run("adapt", plugin)
    assert plugin.git("rev-parse", "HEAD~1") == head
    message = plugin.git("log", "-1", "--format=%B")
    assert "torchtitan.components.tools.Timer -> torchtitan.tools.timing.Timer" in message
    assert plugin.git("status", "--porcelain") == "A  staged.txt", "what was staged is not in the commit"


def test_without_a_git_identity_nothing_is_changed(
    plugin: Repository, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL", "EMAIL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    plugin.git("config", "user.useConfigOnly", "true")  # else git may make one up from the machine's name
    assert run("adapt", plugin) == 2
    assert "set git config user.name" in capsys.readouterr().err
    assert plugin.git("status", "--porcelain") == ""
    assert run("adapt", plugin, "--patch", str(plugin.path.parent / "a.patch")) == 0


def test_dry_run_and_patch_change_nothing_and_the_patch_applies(
    plugin: Repository, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = plugin.git("rev-parse", "HEAD")
    run("adapt", plugin, "--dry-run")
    assert "+from torchtitan.tools.timing import Timer" in capsys.readouterr().out
    run("adapt", plugin, "--patch", str(tmp_path / "adapt.patch"))
    assert (plugin.git("rev-parse", "HEAD"), plugin.git("status", "--porcelain")) == (head, "")
    plugin.git("apply", str(tmp_path / "adapt.patch"))
    patched = plugin.git("diff", "HEAD")
    plugin.git("checkout", "--quiet", ".")
    run("adapt", plugin)
    assert plugin.git("diff", head, "HEAD") == patched


def test_patch_of_a_file_without_a_last_newline_applies(plugin: Repository, tmp_path: Path) -> None:
    plugin.commit({"torchtitan_npu/last.py": b"x = 1\nfrom torchtitan.components.tools import Timer"})
    run("adapt", plugin, "--patch", str(tmp_path / "adapt.patch"))
    plugin.git("apply", str(tmp_path / "adapt.patch"))
    expected = b"x = 1\nfrom torchtitan.tools.timing import Timer"
    assert (plugin.path / "torchtitan_npu/last.py").read_bytes() == expected


def test_file_with_uncommitted_changes_is_left_alone_unless_told_so(
    plugin: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    dirty = plugin.path / "torchtitan_npu/patches.py"
    dirty.write_text(dirty.read_text() + "# mine\n")
    plugin.write({"torchtitan_npu/untracked.py": "from torchtitan.components.tools import Timer\n"})
    before = dirty.read_bytes()
    run("adapt", plugin)
    printed = capsys.readouterr().out
    assert "left alone for its uncommitted changes: torchtitan_npu/patches.py (--allow-dirty)" in printed
    assert "torchtitan_npu/untracked.py" in printed
    assert dirty.read_bytes() == before
    run("adapt", plugin, "--allow-dirty")
    assert b"torchtitan.tools.timing.Timer.stop" in dirty.read_bytes()
    assert plugin.git("status", "--porcelain").splitlines() == [
        "M torchtitan_npu/patches.py",
        "?? torchtitan_npu/untracked.py",
    ], "what was uncommitted stays so"


def test_report_ignored_files_and_submodules_are_not_the_plugins_own(plugin: Repository) -> None:
    old = "from torchtitan.components.tools import Timer\n"
    plugin.commit({".gitignore": "outputs/\n"})
    plugin.write({"outputs/copy.py": old, "torchtitan_npu/outputs/copy.py": old})
    assert run("report", plugin) == 0
    assert run("adapt", plugin, "--allow-dirty") == 0
    assert "torchtitan.components.tools" in (plugin.path / "torchtitan_changes.md").read_text()
    assert (plugin.path / "outputs/copy.py").read_text() == old
    assert run("check", plugin) == 0


def test_second_run_has_nothing_to_do(plugin: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    run("adapt", plugin)
    head = plugin.git("rev-parse", "HEAD")
    capsys.readouterr()
    assert run("adapt", plugin) == 0
    assert plugin.git("rev-parse", "HEAD") == head
    assert "0 files adapted" in capsys.readouterr().out


def test_what_needs_a_person_is_listed_with_file_line_and_reason(
    plugin: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin.commit({"torchtitan_npu/star.py": "from torchtitan.components.tools import *\n\nprint(Timer)\n"})
    run("adapt", plugin)
    printed = capsys.readouterr().out
    assert "torchtitan_npu/star.py:1: from torchtitan.components.tools import *" in printed
    assert "what `import *` brings in has to be named first" in printed


def test_adapt_reminds_of_recording(plugin: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    run("adapt", plugin)
    assert "run `torchtitan-sync record`" in capsys.readouterr().out


def test_adapting_imports_neither_torch_nor_the_plugin(plugin: Repository) -> None:
    program = (
        "import sys; from torchtitan_sync.cli import main; "
        f"assert main(['adapt', '--repo', {str(plugin.path)!r}]) == 0; "
        "print(sorted({'torch', 'torch_npu', 'torchtitan', 'torchtitan_npu'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
