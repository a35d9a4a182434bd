"""The facts that are written down in more than one place agree, and the package carries what it needs."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def exact(extra: str) -> dict[str, str]:
    """The exactly pinned packages of an extra."""
    return dict(item.split("==") for item in EXTRAS[extra] if "==" in item)


def name(requirement: str) -> str:
    return re.split(r"[=<>~]", requirement)[0]


def table(heading: str) -> list[dict[str, str]]:
    """The first table below a heading of the versioning policy, a dictionary a row."""
    text = (ROOT / "docs/community/versioning_policy.md").read_text()
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


def test_the_release_table_says_what_the_extras_pin():
    (row,) = [row for row in table("Release compatibility table") if row["framework-adapter"] == PROJECT["version"]]
    assert exact("train") == {key: row[key] for key in ("torch", "torch_npu", "torchtitan")}


def test_the_branch_sync_table_has_the_baseline():
    (row,) = [row for row in table("Branch sync table") if row["torchtitan_npu_branch"] == "main"]
    assert list(row) == [
        "torchtitan_npu_branch",
        "torchtitan_repo_url",
        "torchtitan_branch",
        "torchtitan_commit",
        "updated_at",
        "notes",
    ]
    assert row["torchtitan_commit"] == f"pypi:{exact('train')['torchtitan']}"
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", row["updated_at"])


def test_constraints_agree_with_the_extras_and_are_complete():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    constraints = dict(line.split("==") for line in lines if "==" in line)
    assert exact("train").items() <= constraints.items()
    assert exact("emulator").items() <= constraints.items()
    assert {name(item) for item in EXTRAS["train"]} <= constraints.keys()


def test_a_jax_or_sync_user_installs_neither_torch_nor_torchtitan():
    for extra in ("jax", "sync"):
        assert not {"torch", "torch_npu", "torchtitan"} & {name(item) for item in EXTRAS[extra]}


def test_no_base_dependencies():
    assert "dependencies" not in PROJECT


@pytest.mark.parametrize("package", ["torchtitan_npu", "torchao_npu", "xla_npu", "torchtitan_sync"])
def test_nothing_imports_the_emulator(package):
    for path in (ROOT / package).glob("**/*.py"):
        assert not re.search(r"^\s*(import|from) cann_emulator", path.read_text(), re.MULTILINE), path


def test_every_make_target_in_the_documents_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in ("README.md", "CONTRIBUTING.md", *(ROOT / "docs").glob("**/*.md")):
        used = set(re.findall(r"(?:^|`)make ([a-z-]+)", (ROOT / path).read_text(), re.MULTILINE))
        assert used <= targets, path


def test_every_link_in_the_documents_leads_somewhere():
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("**/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path}: {target}"
