"""`record`: the new baseline in the policy, the release table, and the summary that ends a sync."""

import datetime
import json
from pathlib import Path

import pytest

from tests.torchtitan_sync import moves_only
from tests.torchtitan_sync.repositories import Repository
from torchtitan_sync import cli
from torchtitan_sync.policy import Policy

DOCUMENT = "docs/community/versioning_policy.md"


@pytest.fixture
def repositories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Repository, Repository]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "Ada")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "ada@example.org")
    return moves_only.build(tmp_path)


def run(command: str, plugin: Repository, *options: str) -> int:
    return cli.main([command, "--repo", str(plugin.path), *options])


def test_row_gets_commit_day_and_range_with_main_points(repositories: tuple[Repository, Repository]) -> None:
    plugin, upstream = repositories
    old, new = upstream.git("rev-parse", "main~1"), upstream.git("rev-parse", "main")
    before = (plugin.path / DOCUMENT).read_text()
    assert run("record", plugin) == 0
    row = Policy(plugin.path / DOCUMENT).row("main")
    assert (row.commit, row.upstream_branch, row.url) == (new, "main", str(upstream.path))
    assert row.updated_at == datetime.date.today().isoformat()
    assert row.notes.startswith(f"{old[:9]} -> {new[:9]} (1 commit): ")
    assert " P0" in row.notes and "torchtitan.components.tools -> torchtitan.tools.timing" in row.notes
    changed = set((plugin.path / DOCUMENT).read_text().splitlines()) ^ set(before.splitlines())
    assert len(changed) == 2, "no other line of the page changes"
    assert run("check", plugin) == 0


def test_branch_changes_with_a_target_that_names_another(repositories: tuple[Repository, Repository]) -> None:
    plugin, upstream = repositories
    upstream.git("tag", "v0.3.0", "main")
    assert run("record", plugin, "--target", "v0.3.0", "--notes", "all of it") == 0
    row = Policy(plugin.path / DOCUMENT).row("main")
    assert (row.upstream_branch, row.commit) == ("v0.3.0", upstream.git("rev-parse", "main"))
    assert row.notes.endswith(": all of it")


def test_release_table_is_written_when_asked_for(repositories: tuple[Repository, Repository]) -> None:
    plugin, upstream = repositories
    new = upstream.git("rev-parse", "main")
    assert run("record", plugin, "--notes", "x", "--compat", "plugin=0.2.0", "torch=2.11.0") == 0
    first, second = Policy(plugin.path / DOCUMENT).releases()
    assert first == {"plugin": "0.2.0", "torchtitan": f"main ({new})", "torch": "2.11.0"}
    assert second == {"plugin": "0.1.0", "torchtitan": "0.2.2", "torch": "2.10.0"}


@pytest.mark.parametrize(("pair", "message"), [("plugin", "COLUMN=VALUE"), ("cann=9", "of the columns plugin, torch")])
def test_compat_that_does_not_fit_the_table_is_refused_and_nothing_written(
    repositories: tuple[Repository, Repository], capsys: pytest.CaptureFixture[str], pair: str, message: str
) -> None:
    plugin, _ = repositories
    before = (plugin.path / DOCUMENT).read_bytes()
    assert run("record", plugin, "--notes", "x", "--compat", "plugin=0.2.0", pair) == 2
    assert message in capsys.readouterr().err
    assert (plugin.path / DOCUMENT).read_bytes() == before


def test_summary_names_range_files_and_checks_of_the_whole_sync(
    repositories: tuple[Repository, Repository], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plugin, upstream = repositories
    old, new = upstream.git("rev-parse", "main~1"), upstream.git("rev-parse", "main")
    run("adapt", plugin)
    plugin.commit({"torchtitan_npu/by_hand.py": "x = 1\n"})
    run("verify", plugin)
    capsys.readouterr()
    assert run("record", plugin, "--json", str(tmp_path / "summary.json")) == 0
    printed = capsys.readouterr().out
    assert f"recorded in {DOCUMENT}: {old} -> {new}" in printed
    for name in ("torchtitan_npu/converters.py", "torchtitan_npu/by_hand.py", DOCUMENT):
        assert f"  {name}\n" in printed
    assert "  import: 6 passed, 0 failed\n" in printed
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["old"], summary["new"]) == (old, new)
    assert "torchtitan.components.tools -> torchtitan.tools.timing" in summary["notes"], "as it was before adapting"
    assert summary["checks"]["import"] == "6 passed, 0 failed"


def test_summary_says_when_nothing_was_checked(
    repositories: tuple[Repository, Repository], capsys: pytest.CaptureFixture[str]
) -> None:
    run("record", repositories[0], "--notes", "x")
    assert "checks: none was run" in capsys.readouterr().out


def test_nothing_to_record_when_up_to_date(
    repositories: tuple[Repository, Repository], capsys: pytest.CaptureFixture[str]
) -> None:
    plugin, upstream = repositories
    before = (plugin.path / DOCUMENT).read_bytes()
    assert run("record", plugin, "--target", upstream.git("rev-parse", "main~1")) == 0
    assert "already up to date" in capsys.readouterr().out
    assert (plugin.path / DOCUMENT).read_bytes() == before
