"""Upstream from PyPI: wheels and source archives, in a folder or through pip, and beside a git history."""

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.torchtitan_sync.repositories import Repository, plugin
from torchtitan_sync import releases
from torchtitan_sync.model import Plugin, SyncError
from torchtitan_sync.upstream import open_range

OLD = {
    "torchtitan/__init__.py": "",
    "torchtitan/a.py": "x = 1\n",
    "torchtitan/gone.py": "def f():\n    return 12\n" * 9,
}
NEW = {
    "torchtitan/__init__.py": "",
    "torchtitan/a.py": "x = 2\n",
    "torchtitan/tools/new.py": "def f():\n    return 12\n" * 9,
}


def wheel(folder: Path, version: str, files: dict[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"torchtitan-{version}-py3-none-any.whl"
    metadata = f"Metadata-Version: 2.1\nName: torchtitan\nVersion: {version}\nRequires-Dist: torch>=2.9\n"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(f"torchtitan-{version}.dist-info/METADATA", metadata)
        archive.writestr(f"torchtitan-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"torchtitan-{version}.dist-info/RECORD", "")
    return path


def source_archive(folder: Path, version: str, files: dict[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"torchtitan-{version}.tar.gz"
    everything = files | {"pyproject.toml": "[project]\n", "PKG-INFO": "", "torchtitan.egg-info/SOURCES.txt": ""}
    with tarfile.open(path, "w:gz") as archive:
        for name, content in everything.items():
            member = tarfile.TarInfo(f"torchtitan-{version}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content.encode()))
    return path


def project(tmp_path: Path, commit: str, url: str = "https://example.invalid/torchtitan") -> Plugin:
    return Plugin(plugin(tmp_path / "plugin", url, commit).path, "torchtitan_npu")


@pytest.mark.parametrize("make", [wheel, source_archive])
def test_two_releases_in_a_folder_need_neither_git_nor_a_network(tmp_path: Path, make: type) -> None:
    folder = tmp_path / "wheels"
    make(folder, "0.9.0", OLD)
    make(folder, "0.10.0", NEW)
    with open_range(project(tmp_path, "pypi:0.9.0"), upstream=str(folder)) as upstream_range:
        assert (upstream_range.old.id, upstream_range.new.id) == ("pypi:0.9.0", "pypi:0.10.0"), "the newest by default"
        assert set(OLD) | {releases.METADATA} <= set(upstream_range.old.files())
        assert upstream_range.new.read(["torchtitan/a.py"]) == {"torchtitan/a.py": b"x = 2\n"}
        ((rename),) = upstream_range.renames()
        assert (rename.old, rename.new, rename.similarity) == ("torchtitan/gone.py", "torchtitan/tools/new.py", 1)
        assert (upstream_range.commit_count(), upstream_range.history()) == (None, {})
        assert not [path for path in upstream_range.new.files() if "info/" in path]


def test_equal_files_have_equal_ids_in_a_release_and_in_git(tmp_path: Path) -> None:
    upstream = Repository(tmp_path / "upstream")
    upstream.commit(dict(NEW) | {"docs/a.md": "docs\n", "pyproject.toml": "[project]\n"})
    path = wheel(tmp_path / "cache/releases", "0.9.0", OLD)
    with open_range(
        project(tmp_path, "pypi:0.9.0"), upstream=str(upstream.path), target="main", cache=tmp_path / "cache"
    ) as upstream_range:
        old, new = upstream_range.old.files(), upstream_range.new.files()
        assert path.exists() and old["torchtitan/__init__.py"] == new["torchtitan/__init__.py"]
        assert "docs/a.md" not in new, "a wheel has no docs: they are not new"
        assert "pyproject.toml" in new, "what upstream depends on is still seen"


@pytest.mark.parametrize("marked_by", ["tag", "branch"])
def test_commits_since_a_release_are_found_through_its_tag_or_branch(tmp_path: Path, marked_by: str) -> None:
    upstream = Repository(tmp_path / "upstream")
    released = upstream.commit(dict(OLD), "Release")
    if marked_by == "tag":
        upstream.git("tag", "v0.9.0")
    else:
        upstream.git("switch", "--quiet", "--create", "release/0.9")
        upstream.commit({"torchtitan/a.py": "x = 9\n"}, "A fix after the release")
        upstream.git("switch", "--quiet", "main")
    edit = upstream.commit({"torchtitan/a.py": "x = 2\n"}, "Edit a (#5)")
    wheel(tmp_path / "cache/releases", "0.9.0", OLD)
    for where in (upstream.url, str(upstream.path)):
        plugin_ = project(tmp_path / where[:4], "pypi:0.9.0", where)
        with open_range(plugin_, cache=tmp_path / "cache") as upstream_range:
            assert upstream_range.commit_count() == 1
            assert [change.commit.hash for change in upstream_range.history()["torchtitan/a.py"]] == [edit]
            assert upstream.git("rev-parse", f"{edit}~1") == released
            assert upstream_range.notes == []


def test_release_that_no_folder_has_is_named_with_those_it_has(tmp_path: Path) -> None:
    folder = tmp_path / "wheels"
    wheel(folder, "0.9.0", OLD)
    plugin_ = project(tmp_path, "pypi:0.9.1")
    with (
        pytest.raises(SyncError, match=r"no wheel or source archive of torchtitan 0\.9\.1 \(it has 0\.9\.0\)"),
        open_range(plugin_, upstream=str(folder)),
    ):
        pass


def test_commit_is_not_looked_for_among_releases(tmp_path: Path) -> None:
    folder = tmp_path / "wheels"
    wheel(folder, "0.9.0", OLD)
    plugin_ = project(tmp_path, "a" * 40)
    with pytest.raises(SyncError, match="there are only releases"), open_range(plugin_, upstream=str(folder)):
        pass


def test_version_that_is_no_version_is_refused_before_anything_is_downloaded(tmp_path: Path) -> None:
    with (
        pytest.raises(SyncError, match="names no version"),
        open_range(project(tmp_path, "pypi:newest"), upstream="pypi", target="pypi:0.3.0"),
    ):
        pass


def test_broken_archive_is_named(tmp_path: Path) -> None:
    path = wheel(tmp_path, "0.9.0", OLD)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(SyncError, match="not a readable archive"):
        releases.read(path)


def test_pip_downloads_a_release_from_the_index_it_is_set_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "wheels"
    path = wheel(index, "0.9.0", OLD)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    found = releases.get("torchtitan", "0.9.0", tmp_path / "kept", tmp_path / "work")
    assert found.read_bytes() == path.read_bytes()
    wheel(index, "0.10.0", NEW)
    assert releases.newest("torchtitan", tmp_path / "newest") == "0.10.0"


def test_release_that_cannot_be_had_says_what_to_do_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(releases, "_INDEX", "http://127.0.0.1:9/pypi")
    with pytest.raises(SyncError, match=r"(?s)torchtitan 99\.0 cannot be had: .*give --upstream FOLDER"):
        releases.get("torchtitan", "99.0", tmp_path / "kept", tmp_path / "work")


def test_release_that_was_had_once_needs_no_index_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, first = tmp_path / "kept", tmp_path / "first"
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel(first, "0.9.0", OLD).parent))
    path = releases.get("torchtitan", "0.9.0", kept, tmp_path / "work")
    monkeypatch.setattr(releases, "_download", pytest.fail)
    assert releases.get("torchtitan", "0.9.0", kept, tmp_path / "work") == path
    assert [file.name for file in kept.iterdir()] == [path.name]


def test_release_is_had_also_where_nothing_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel(tmp_path / "wheels", "0.9.0", OLD).parent))
    (tmp_path / "file").write_text("")
    found = releases.get("torchtitan", "0.9.0", tmp_path / "file" / "kept", tmp_path / "work")
    assert found.parent == tmp_path / "work"
