"""Upstream from git: URLs, local clones, and what goes wrong with them."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.interrupts import interruptible
from tests.torchtitan_sync.repositories import Repository, plugin
from torchtitan_sync.model import Plugin, SyncError
from torchtitan_sync.upstream import open_range

BODY = "\n".join(f"line{i} = {i}" for i in range(40)) + "\n"


@pytest.fixture(autouse=True)
def temporary_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made, so that a test can see that they are gone."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.fixture
def upstream(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "upstream")


def history(upstream: Repository) -> list[str]:
    """Three commits: files, an edit, a move."""
    old = upstream.commit({"torchtitan/a.py": BODY, "torchtitan/b.py": "x = 1\n", "README.md": "é\n"}, "Start (#1)")
    edit = upstream.commit({"torchtitan/b.py": "x = 2\n"}, "Edit b (reverts #7) (#12)")
    moved = upstream.commit({"torchtitan/a.py": None, "torchtitan/c/a.py": BODY + "more = 1\n"}, "Move a")
    return [old, edit, moved]


def project(tmp_path: Path, url: str, commit: str, branch: str = "main") -> Plugin:
    return Plugin(plugin(tmp_path / "plugin", url, commit, branch=branch).path, "torchtitan_npu")


@pytest.mark.parametrize("remote", [True, False], ids=["URL", "clone"])
def test_range_has_files_contents_renames_and_history(tmp_path: Path, upstream: Repository, remote: bool) -> None:
    old, edit, moved = history(upstream)
    with open_range(project(tmp_path, upstream.url if remote else str(upstream.path), old)) as upstream_range:
        before, after = upstream_range.old, upstream_range.new
        assert (before.id, after.id, upstream_range.commit_count()) == (old, moved, 2)
        assert after.label == f"main ({moved[:9]})"
        assert sorted(after.files()) == ["README.md", "torchtitan/b.py", "torchtitan/c/a.py"]
        assert before.files()["README.md"] == after.files()["README.md"]
        assert before.read(["torchtitan/b.py", "README.md"]) == {
            "torchtitan/b.py": b"x = 1\n",
            "README.md": "é\n".encode(),
        }
        (rename,) = upstream_range.renames()
        assert (rename.old, rename.new) == ("torchtitan/a.py", "torchtitan/c/a.py")
        assert 0.9 < rename.similarity < 1
        (change,) = upstream_range.history()["torchtitan/b.py"]
        assert (change.commit.hash, change.commit.pr) == (edit, 12)
        assert upstream_range.read_blobs([change.old_blob, change.new_blob]) == {
            change.old_blob: b"x = 1\n",
            change.new_blob: b"x = 2\n",
        }
        (added,) = upstream_range.history()["torchtitan/c/a.py"]
        assert (added.old_blob, added.commit.pr) == ("", None)


def test_target_is_a_tag_a_branch_or_a_hash(tmp_path: Path, upstream: Repository) -> None:
    old, edit, moved = history(upstream)
    upstream.git("tag", "-a", "v1", "-m", "annotated", edit)
    upstream.git("branch", "next/a", edit)
    for url in (upstream.url, str(upstream.path)):
        for target, commit in (("v1", edit), ("next/a", edit), (edit, edit), (edit[:8], edit), ("main", moved)):
            with open_range(project(tmp_path / f"{url[:4]}-{target[:4]}", url, old), target=target) as upstream_range:
                assert upstream_range.new.id == commit


def test_row_may_name_a_tag_as_its_branch(tmp_path: Path, upstream: Repository) -> None:
    old, edit, _ = history(upstream)
    upstream.git("tag", "v0.2.2", edit)
    with open_range(project(tmp_path, upstream.url, old, branch="v0.2.2")) as upstream_range:
        assert upstream_range.new.id == edit


def test_clone_behind_its_remote_means_the_fetched_branch(tmp_path: Path, upstream: Repository) -> None:
    old, _, moved = history(upstream)
    clone = Repository(tmp_path / "clone")
    clone.git("fetch", "--quiet", upstream.url, "+refs/heads/*:refs/remotes/origin/*")
    clone.git("update-ref", "refs/heads/main", old)
    with open_range(project(tmp_path, str(clone.path), old)) as upstream_range:
        assert upstream_range.new.id == moved


def test_mirror_has_no_blobs_but_those_read_and_is_removed(
    tmp_path: Path, upstream: Repository, temporary_folders: Path
) -> None:
    old, _, _ = history(upstream)
    with open_range(project(tmp_path, upstream.url, old)) as upstream_range:
        blob = upstream_range.new.files()["torchtitan/b.py"]
        store = next(temporary_folders.glob("*/objects.git"))
        question = ["git", "-C", str(store), "cat-file", "-e", blob]
        assert subprocess.run(question, capture_output=True).returncode
        upstream_range.new.read(["torchtitan/b.py"])
        assert not subprocess.run(question, capture_output=True).returncode
    assert not list(temporary_folders.iterdir())


def test_mirror_is_removed_after_an_error(tmp_path: Path, upstream: Repository, temporary_folders: Path) -> None:
    history(upstream)
    with (
        pytest.raises(SyncError, match=r"the target 'nowhere' is not in .*: it names no branch, tag or commit there"),
        open_range(project(tmp_path, upstream.url, upstream.git("rev-parse", "main")), target="nowhere"),
    ):
        pass
    assert not list(temporary_folders.iterdir())


def test_mirror_is_removed_after_an_interrupt(tmp_path: Path, upstream: Repository, temporary_folders: Path) -> None:
    old, _, _ = history(upstream)
    program = """
        import sys, time
        from pathlib import Path
        from torchtitan_sync.model import Plugin
        from torchtitan_sync.upstream import open_range
        with open_range(Plugin(Path(sys.argv[1]), "torchtitan_npu")) as upstream_range:
            upstream_range.renames()
            print("open", flush=True)
            time.sleep(60)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(project(tmp_path, upstream.url, old).root)]
    environment = os.environ | {"TMPDIR": str(temporary_folders)}
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, preexec_fn=interruptible
    )
    assert child.stdout is not None and child.stdout.readline() == b"open\n"
    assert list(temporary_folders.iterdir())
    child.send_signal(signal.SIGINT)
    assert child.wait(timeout=30)
    assert not list(temporary_folders.iterdir())


def test_cache_is_kept_brought_up_to_date_and_enough_without_a_network(tmp_path: Path, upstream: Repository) -> None:
    old, _, _ = history(upstream)
    plugin_, cache = project(tmp_path, upstream.url, old), tmp_path / "cache"
    with open_range(plugin_, cache=cache) as upstream_range:
        upstream_range.new.read(["torchtitan/b.py"])
    newest = upstream.commit({"torchtitan/b.py": "x = 3\n"})
    with open_range(plugin_, cache=cache) as upstream_range:
        assert upstream_range.new.id == newest
        upstream_range.new.read(["torchtitan/b.py"])
    shutil.rmtree(upstream.path)
    with open_range(plugin_, cache=cache) as upstream_range:
        assert upstream_range.new.id == newest
        assert upstream_range.new.read(["torchtitan/b.py"]) == {"torchtitan/b.py": b"x = 3\n"}
        assert "was not reached" in upstream_range.notes[0]


def test_remote_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/absent"
    with (
        pytest.raises(SyncError, match=rf"(?s){url} cannot be reached: .*`torchtitan_repo_url`"),
        open_range(project(tmp_path, url, "a" * 40)),
    ):
        pass


def test_local_clone_needs_no_network_and_is_not_changed(tmp_path: Path, upstream: Repository) -> None:
    old, _, moved = history(upstream)
    upstream.git("config", "remote.origin.url", f"file://{tmp_path}/absent")
    before = {path: path.stat().st_mtime_ns for path in upstream.path.rglob("*")}
    with open_range(project(tmp_path, "https://example.invalid/x", old), upstream=str(upstream.path)) as upstream_range:
        assert upstream_range.new.id == moved
        upstream_range.renames()
        upstream_range.new.read(upstream_range.new.files())
    assert {path: path.stat().st_mtime_ns for path in upstream.path.rglob("*")} == before


def test_force_pushed_baseline_is_fetched_by_its_hash(tmp_path: Path, upstream: Repository) -> None:
    upstream.commit({"torchtitan/b.py": "x = 0\n"})
    old = upstream.commit({"torchtitan/b.py": "x = 1\n"})
    upstream.git("reset", "--quiet", "--hard", "HEAD~1")
    new = upstream.commit({"torchtitan/b.py": "x = 2\n"})
    with open_range(project(tmp_path, upstream.url, old)) as upstream_range:
        assert (upstream_range.old.id, upstream_range.new.id, upstream_range.commit_count()) == (old, new, 1)
        assert upstream_range.old.read(["torchtitan/b.py"]) == {"torchtitan/b.py": b"x = 1\n"}


def test_baseline_that_is_gone_everywhere_is_a_clear_error(tmp_path: Path, upstream: Repository) -> None:
    history(upstream)
    for where in (upstream.url, str(upstream.path)):
        with (
            pytest.raises(SyncError, match=r"policy\.md:7: the baseline 'a{40}' is not in .*force-pushed"),
            open_range(project(tmp_path / where[:4], where, "a" * 40)),
        ):
            pass


def test_shallow_clone_that_has_both_ends_works(tmp_path: Path, upstream: Repository) -> None:
    _, edit, moved = history(upstream)
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", "--depth=2", upstream.url, str(clone)], check=True)
    with open_range(project(tmp_path, str(clone), edit)) as upstream_range:
        assert (upstream_range.new.id, upstream_range.commit_count()) == (moved, 1)
        assert "shallow" in upstream_range.notes[0]


def test_shallow_clone_without_the_baseline_gets_it_from_its_origin(tmp_path: Path, upstream: Repository) -> None:
    old, _, moved = history(upstream)
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", "--depth=1", upstream.url, str(clone)], check=True)
    plugin_ = project(tmp_path, str(clone), old)
    with open_range(plugin_) as upstream_range:
        assert (upstream_range.old.id, upstream_range.new.id) == (old, moved)
        assert upstream_range.old.read(["torchtitan/a.py"]) == {"torchtitan/a.py": BODY.encode()}
    shutil.rmtree(upstream.path)
    with (
        pytest.raises(SyncError, match=r"it is a shallow clone.* fetch --unshallow"),
        open_range(plugin_),
    ):
        pass


def test_blob_that_is_missing_stops_only_its_reader(tmp_path: Path, upstream: Repository) -> None:
    old, _, _ = history(upstream)
    blob = upstream.git("rev-parse", "HEAD:torchtitan/c/a.py")
    (upstream.path / f".git/objects/{blob[:2]}/{blob[2:]}").unlink()
    with open_range(project(tmp_path, str(upstream.path), old)) as upstream_range:
        assert upstream_range.renames() == []
        assert upstream_range.new.read(["README.md"])
        assert upstream_range.read_blobs([blob]) == {}
        with pytest.raises(SyncError, match=r"1 upstream files at .* cannot be had, torchtitan/c/a\.py first"):
            upstream_range.new.read(["README.md", "torchtitan/c/a.py"])


def test_five_thousand_files_are_read_in_seconds(tmp_path: Path, upstream: Repository) -> None:
    files: dict[str, str | bytes | None] = {
        f"torchtitan/p{i // 100}/m{i}.py": f"{BODY}value = {i}\n".encode() for i in range(5000)
    }
    old = upstream.commit(files)
    upstream.git("mv", "torchtitan/p1", "torchtitan/q1")
    upstream.commit({})
    plugin_ = project(tmp_path, upstream.url, old)
    start = time.perf_counter()
    with open_range(plugin_) as upstream_range:
        assert len(upstream_range.new.read(upstream_range.new.files())) == 5000
        assert len(upstream_range.renames()) == 100
    assert time.perf_counter() - start < 10


@pytest.mark.parametrize("name", ["GIT_DIR", "GIT_INDEX_FILE"])
def test_variables_of_a_git_hook_do_not_reach_git(tmp_path: Path, upstream: Repository, name: str) -> None:
    old, _, moved = history(upstream)
    program = f"""
        from pathlib import Path
        from torchtitan_sync.model import Plugin
        from torchtitan_sync.upstream import open_range
        with open_range(Plugin(Path({str(project(tmp_path, upstream.url, old).root)!r}), "torchtitan_npu")) as found:
            print(found.new.id)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    environment = os.environ | {name: str(tmp_path / "elsewhere")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == moved, done.stderr
