"""The report keeps what a maintainer wrote; JSON and SARIF have the agreed form; witnesses show breaks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torchtitan_sync.ranges import Files
from tests.torchtitan_sync.repositories import Repository, plugin
from torchtitan_sync import cli, grades, standins
from torchtitan_sync.model import Grade

MSE = "def mse(a, b):\n    return torch.mean((a - b) ** 2)\n"
OLD: Files = {
    "torchtitan/__init__.py": "",
    "torchtitan/loss.py": f"import torch\n\n\n{MSE}\n\ndef l1(a):\n    return a\n",
    "torchtitan/dims.py": "class Dims:\n    def __init__(self):\n        self.tp = 1\n",
}
NEW: Files = {
    "torchtitan/loss.py": "import torch\n\n\ndef l1(a, scale):\n    return a * scale\n",
    "torchtitan/losses.py": f"import torch\n\n\n{MSE}",
    "torchtitan/dims.py": "class Dims:\n    def __init__(self):\n        self.cp = []\n",
}
CODE = "from torchtitan.loss import l1, mse\nfrom torchtitan.dims import Dims\n\nl1(2)\nDims().tp\n"


class Sync:
    def __init__(self, folder: Path) -> None:
        self.upstream = Repository(folder / "upstream")
        self.first = self.upstream.commit(OLD, "First")
        self.upstream.commit(NEW, "Move the losses (#12)")
        self.plugin = plugin(
            folder / "plugin", self.upstream.url, self.first, {"torchtitan_npu/converters/use.py": CODE}
        )
        self.report = self.plugin.path / "torchtitan_changes.md"
        self._cache = folder / "cache"

    def run(self, command: str, *options: object) -> int:
        where = ["--repo", self.plugin.path, "--upstream", self.upstream.path, "--cache", self._cache]
        return cli.main([command, *map(str, [*where, *options])])


@pytest.fixture
def sync(tmp_path: Path) -> Sync:
    return Sync(tmp_path)


def test_the_report_says_what_changed_where_and_who_did_it(sync: Sync) -> None:
    assert sync.run("report") == 0
    text = sync.report.read_text()
    for part in (
        "commits between: 1",
        "## P0: raises, or silently stops working",
        "**`torchtitan.loss.mse`** symbol moved or renamed: `mse` is now `torchtitan.losses.mse`",
        "Move the losses (#12)",
        "`torchtitan_npu/converters/use.py:1` `from torchtitan.loss import l1, mse`",
        "suggested: from torchtitan.losses import mse",
        "- (a)\n  + (a, scale)",
        "| `torchtitan.loss.mse` | `torchtitan.losses.mse` | moved |",
        "| torchtitan | 1 | 2 | 0 |",
        "### converters",
        "## Dependencies (P2)",
    ):
        assert part in text


def test_running_again_keeps_ticks_and_notes(sync: Sync) -> None:
    sync.run("report")
    lines = sync.report.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if "torchtitan.loss.mse" in line and "- [ ]" in line)
    lines[at] = lines[at].replace("- [ ]", "- [x]")
    lines.insert(at + 1, "  > Ask Ada first.")
    area = next(i for i, line in enumerate(lines) if "- [ ] `torchtitan_npu/converters/use.py`" in line)
    lines[area] = lines[area].replace("- [ ]", "- [x]")
    sync.report.write_text("\n".join([*lines, "Some thoughts.", ""]))
    sync.run("report")
    text = sync.report.read_text()
    assert "- [x] **`torchtitan.loss.mse`**" in text
    assert text.count("> Ask Ada first.") == 1
    assert "- [x] `torchtitan_npu/converters/use.py`" in text
    assert text.rstrip().endswith("Some thoughts.")
    again = sync.report.read_text()
    sync.run("report")
    assert sync.report.read_text() == again


def test_what_is_done_keeps_its_notes_under_no_longer_found(sync: Sync) -> None:
    sync.run("report")
    text = sync.report.read_text()
    head = next(line for line in text.splitlines() if "torchtitan.loss.mse" in line and "- [ ]" in line)
    sync.report.write_text(text.replace(head, f"{head}\n  > Done with #5."))
    sync.plugin.write({"torchtitan_npu/converters/use.py": CODE.replace("l1, mse", "l1")})
    sync.run("report")
    gone = sync.report.read_text().partition("## No longer found")[2]
    assert "torchtitan.loss.mse" in gone and "> Done with #5." in gone


def test_json_has_the_agreed_fields(sync: Sync, tmp_path: Path) -> None:
    sync.run("report", "--json", tmp_path / "changes.json")
    items = json.loads((tmp_path / "changes.json").read_text())
    (item,) = [item for item in items if item["upstream_symbol"] == "torchtitan.loss.mse"]
    assert item["id"] and item["suggestion"]
    assert {key: item[key] for key in ("grade", "kind", "upstream_file", "moved_to", "downstream")} == {
        "grade": "P0",
        "kind": "symbol-moved",
        "upstream_file": "torchtitan/loss.py",
        "moved_to": "torchtitan.losses.mse",
        "downstream": [
            {"file": "torchtitan_npu/converters/use.py", "line": 1, "text": "from torchtitan.loss import l1, mse"}
        ],
    }
    assert 0.5 < item["confidence"] <= 1
    (commit,) = item["commits"]
    assert (commit["subject"], commit["pr"], len(commit["hash"])) == ("Move the losses (#12)", 12, 40)


def test_sarif_points_at_the_name(sync: Sync, tmp_path: Path) -> None:
    sync.run("report", "--sarif", tmp_path / "changes.sarif")
    log = json.loads((tmp_path / "changes.sarif").read_text())
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    rules = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert rules == set(grades.TABLE)
    (result,) = [r for r in run["results"] if "torchtitan.loss.mse" in r["message"]["text"]]
    assert (result["ruleId"], result["level"]) == ("symbol-moved", "error")
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "torchtitan_npu/converters/use.py"
    assert place["region"] == {"startLine": 1, "startColumn": 33, "endColumn": 36}
    assert CODE.splitlines()[0][32:35] == "mse"


def test_check_prints_a_table_and_writes_nothing(sync: Sync, capsys: pytest.CaptureFixture[str]) -> None:
    before = sync.plugin.git("status", "--porcelain")
    assert sync.run("check") == 1
    out = capsys.readouterr().out
    assert "P0" in out and "torchtitan.losses.mse" in out
    assert "torchtitan_npu/converters/use.py:1: from torchtitan.loss import l1, mse" in out
    assert sync.plugin.git("status", "--porcelain") == before


def test_check_of_a_synced_plugin_says_so(sync: Sync, capsys: pytest.CaptureFixture[str]) -> None:
    assert sync.run("check", "--target", sync.upstream.git("rev-parse", "HEAD~1")) == 0
    assert "already up to date" in capsys.readouterr().out


def test_check_gives_json_on_standard_output(sync: Sync, capsys: pytest.CaptureFixture[str]) -> None:
    sync.run("check", "--json", "-")
    assert {item["grade"] for item in json.loads(capsys.readouterr().out)} >= {"P0"}


def test_a_witness_passes_on_the_old_upstream_and_fails_on_the_new(sync: Sync, tmp_path: Path) -> None:
    """Without torch: upstream's imports of other packages are stood in for."""
    sync.run("report", "--witness", tmp_path / "witnesses", "--json", tmp_path / "changes.json")
    items = json.loads((tmp_path / "changes.json").read_text())
    broken = [item for item in items if item["grade"] == "P0"]
    assert {item["kind"] for item in broken} == {"symbol-moved", "parameter-required", "attribute-removed"}
    assert all(any(note.startswith("shown by") for note in item["notes"]) for item in broken)
    scripts = sorted(path.name for path in (tmp_path / "witnesses").glob("witness_*.py"))
    assert len(scripts) == 3
    for commit, passes in (("HEAD~1", True), ("HEAD", False)):
        tree = tmp_path / commit
        sync.upstream.git("worktree", "add", "--quiet", "--detach", str(tree), commit)
        command = [sys.executable, "run.py", str(tree), "torchtitan", *scripts]
        done = subprocess.run(command, cwd=tmp_path / "witnesses", capture_output=True, text=True, check=True)
        results = json.loads(done.stdout.splitlines()[-1])
        assert [not error for error in results.values()] == [passes] * 3


def test_a_hit_whose_witness_does_not_fail_is_lowered(
    sync: Sync, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchtitan_sync import witness

    monkeypatch.setattr(witness, "script", lambda item, upstream: "assert True\n")
    sync.run("report", "--witness", tmp_path / "witnesses", "--json", tmp_path / "changes.json")
    items = json.loads((tmp_path / "changes.json").read_text())
    assert not [item for item in items if item["grade"] == "P0"]
    lowered = [item for item in items if item["kind"] == "witness-failed"]
    assert len(lowered) == 3 and all(item["grade"] == "P2" for item in lowered)
    assert all("passes on the new upstream" in " ".join(item["notes"]) for item in lowered)


def test_the_table_of_grades_covers_each_grade() -> None:
    assert {kind.grade for kind in grades.TABLE.values()} == set(Grade)


def test_a_witness_imports_functions_whose_decorators_add_methods(tmp_path: Path) -> None:
    """`torch.library.custom_op` gives the functions it decorates methods that modules call when they are imported."""
    code = (
        "import torch\n\n\n@torch.library.custom_op('a::b', mutates_args=())\ndef op(x):\n    return x\n\n\n"
        "@op.register_fake\ndef _(x):\n    return x\n\n\n"
        "class T:\n    @torch.compile\n    def size(self):\n        return 3\n"
    )
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/__init__.py").write_text(code)
    (tmp_path / "witness.py").write_text(
        "import inspect, pkg\nassert list(inspect.signature(pkg.op).parameters) == ['x']\nassert pkg.T().size() == 3\n"
    )
    command = [sys.executable, "-I", standins.__file__, str(tmp_path), "pkg", str(tmp_path / "witness.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == {str(tmp_path / "witness.py"): ""}


def test_files_that_do_not_parse_are_named_again_and_again(sync: Sync, capsys: pytest.CaptureFixture[str]) -> None:
    (sync.plugin.path / "torchtitan_npu/bad.py").write_text("def f(:\n")
    for _ in range(2):  # also where the result is kept
        sync.run("check")
        assert "does not parse them: torchtitan_npu/bad.py" in " ".join(capsys.readouterr().out.split())
    sync.run("report")
    assert "does not parse them: torchtitan_npu/bad.py" in sync.report.read_text()


def test_a_file_that_cannot_be_written_is_named(sync: Sync, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sync.run("check", "--json", tmp_path / "gone/changes.json") == 2
    assert "gone/changes.json" in capsys.readouterr().err


def test_a_script_gets_an_empty_list_where_nothing_is_to_be_done(
    sync: Sync, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sync.run("check", "--json", "-", "--target", sync.first) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == [] and "already up to date" in printed.err
