"""The versioning policy: what is read from it, what stops the run, and what writing leaves as it was."""

import re
from pathlib import Path

import pytest

from tests.torchtitan_sync.repositories import POLICY, Repository
from torchtitan_sync.model import SyncError
from torchtitan_sync.policy import Policy, current_branch, release_of

HASH = "73a0e6979dd10b6b1904098eb3c8f62c18ab87ce"
URL = "https://github.com/pytorch/torchtitan"


def document(tmp_path: Path, text: str) -> Policy:
    path = tmp_path / "versioning_policy.md"
    path.write_bytes(text.encode())
    return Policy(path)


def english(commit: str = HASH, branch: str = "main", url: str = URL) -> str:
    return POLICY.format(url=url, branch=branch, commit=commit)


def test_row_of_the_branch_is_read(tmp_path: Path) -> None:
    row = document(tmp_path, english()).row("main")
    assert (row.url, row.upstream_branch, row.commit, row.notes, row.line) == (URL, "main", HASH, "first", 7)


@pytest.mark.parametrize(
    "heading", ["## 分支同步表", "### 2. 分支同步表（Branch sync table）", "# BRANCH SYNC TABLE ##"]
)
def test_section_may_be_named_in_chinese_or_english(tmp_path: Path, heading: str) -> None:
    text = english().replace("## Branch sync table", heading)
    text = "本政策见 `分支同步表`。\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n\n" + text
    assert document(tmp_path, text).row("main").commit == HASH


def test_table_in_a_code_block_is_an_example(tmp_path: Path) -> None:
    example = "## Branch sync table\n\n```\n| torchtitan_npu_branch | x |\n| --- | --- |\n| main | y |\n```\n\n"
    text = english().replace("## Branch sync table\n\n", example)
    assert document(tmp_path, text).row("main").commit == HASH


def test_columns_may_come_in_any_order_and_with_others_between(tmp_path: Path) -> None:
    text = f"""\
## 分支同步表

| who | torchtitan_commit | torchtitan_npu_branch | torchtitan_branch | torchtitan_repo_url |
| :-- | :---: | --- | --- | --: |
| me | {HASH} | `release/1` | v0.2.2 | <{URL}> |
"""
    row = document(tmp_path, text).row("release/1")
    assert (row.commit, row.upstream_branch, row.url, row.updated_at) == (HASH, "v0.2.2", URL, "")


def test_missing_row_names_the_branch_and_the_cells(tmp_path: Path) -> None:
    with pytest.raises(SyncError, match=r"no row .* `feature/x`.*`torchtitan_commit`"):
        document(tmp_path, english()).row("feature/x")


@pytest.mark.parametrize("column", ["torchtitan_repo_url", "torchtitan_branch", "torchtitan_commit"])
def test_empty_cell_is_named(tmp_path: Path, column: str) -> None:
    cells = {"torchtitan_repo_url": URL, "torchtitan_branch": "main", "torchtitan_commit": HASH} | {column: ""}
    text = english(cells["torchtitan_commit"], cells["torchtitan_branch"], cells["torchtitan_repo_url"])
    with pytest.raises(SyncError, match=rf"versioning_policy\.md:7: fill in the cell `{column}`.*`main`"):
        document(tmp_path, text).row("main")


@pytest.mark.parametrize("cell", [f"{HASH}, v0.2.2 tag", f"[{HASH}](https://x)", "v0.2.2", "main", "pypi:", "TBD", "-"])
def test_commit_that_is_not_a_plain_hash_is_refused(tmp_path: Path, cell: str) -> None:
    with pytest.raises(SyncError, match=r"fill in the cell `torchtitan_commit`.*" + re.escape(cell)):
        document(tmp_path, english(cell)).row("main")


def test_release_is_a_baseline(tmp_path: Path) -> None:
    commit = document(tmp_path, english("pypi:0.3.0rc1")).row("main").commit
    assert release_of(commit) == "0.3.0rc1"
    assert release_of(HASH) is None


def test_two_rows_for_a_branch_are_refused(tmp_path: Path) -> None:
    row = f"| main | {URL} | main | {HASH} | 2026-01-02 | first |\n"
    with pytest.raises(SyncError, match="lines 7, 8 are all for the branch `main`"):
        document(tmp_path, english().replace(row, row * 2)).row("main")


def test_missing_column_table_and_document_are_named(tmp_path: Path) -> None:
    with pytest.raises(SyncError, match="lacks the column `torchtitan_commit`"):
        document(tmp_path, english().replace("torchtitan_commit", "commit")).row("main")
    with pytest.raises(SyncError, match="no table in a section '分支同步表'"):
        document(tmp_path, "# Nothing\n").row("main")
    with pytest.raises(SyncError, match=r"absent\.md does not exist"):
        Policy(tmp_path / "absent.md")


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_only_the_cells_that_are_set_change(tmp_path: Path, newline: str, mark: str) -> None:
    text = mark + english().replace("\n", newline)
    policy = document(tmp_path, text)
    policy.set_cells(policy.row("main").line, {"torchtitan_commit": "a" * 40, "notes": "x | y\nz"})
    policy.save()
    assert policy.path.read_bytes().decode() == text.replace(HASH, "a" * 40).replace("| first |", "| x \\| y z |")
    assert Policy(policy.path).row("main").notes == "x \\| y z"


def test_release_is_added_on_top_or_changed_in_place(tmp_path: Path) -> None:
    policy = document(tmp_path, english())
    policy.set_release({"plugin": "0.2.0", "torchtitan": "0.3.0"})
    policy.set_release({"plugin": "0.1.0", "torchtitan": "0.2.3"})
    policy.save()
    assert Policy(policy.path).releases() == [
        {"plugin": "0.2.0", "torchtitan": "0.3.0", "torch": "2.10.0"},
        {"plugin": "0.1.0", "torchtitan": "0.2.3", "torch": "2.10.0"},
    ]


def test_branch_is_the_one_checked_out(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "plugin")
    assert current_branch(repository.path) == "main", "also before the first commit"
    repository.commit({"a": "1"})
    repository.git("switch", "--quiet", "--create", "feature/a")
    assert current_branch(repository.path) == "feature/a"


def test_branch_of_a_detached_head_is_the_only_one_there(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "plugin")
    repository.commit({"a": "1"})
    repository.git("switch", "--quiet", "--detach")
    assert current_branch(repository.path) == "main"
    repository.git("branch", "other")
    with pytest.raises(SyncError, match="no branch is checked out"):
        current_branch(repository.path)


def test_folder_outside_git_is_named(tmp_path: Path) -> None:
    with pytest.raises(SyncError, match="not a git repository"):
        current_branch(tmp_path)


def test_own_policy_says_what_this_repository_is_pinned_to() -> None:
    root = Path(__file__).parents[2]
    row = Policy(root / "docs/community/versioning_policy.md").row("main")
    version = release_of(row.commit)
    assert f'"torchtitan=={version}"' in (root / "pyproject.toml").read_text()


def test_a_hash_in_capitals_is_the_same_commit(tmp_path: Path) -> None:
    assert document(tmp_path, english(HASH.upper())).row("main").commit == HASH
