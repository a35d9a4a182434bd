"""Files are parsed once, a large upstream is no trouble, and odd files do not stop a run."""

import time
from pathlib import Path

import pytest

from tests.torchtitan_sync.ranges import Files, analysed, graded, places
from tests.torchtitan_sync.repositories import Repository, plugin
from torchtitan_sync import impact, memory, parallel, settings, sources, tables, upstream
from torchtitan_sync.model import Grade, Plugin, SyncError

CODE = "from torchtitan.part_7 import value_7\n"


def test_an_outline_comes_back_from_disk_as_it_was(tmp_path: Path) -> None:
    source = Path(tables.__file__).read_bytes() + b"\n\nclass Args(Args):\n    x: int = 1\n"
    first = tables.Cache(tmp_path / "outlines.sqlite")
    made = first.tables({"blob": source})["blob"]
    first.save()
    second = tables.Cache(tmp_path / "outlines.sqlite")
    assert second.load(["blob"]) == set()
    assert second.get("blob") == made


def test_a_file_is_parsed_once_for_both_sides_and_never_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    build = tables.build
    monkeypatch.setattr(tables, "build", lambda source: parsed.append(source) or build(source))
    old: Files = {"loss.py": "def mse():\n    return 'unchanged'\n", "a.py": "x = 1\n"}
    mine: Files = {"torchtitan_npu/use.py": "from torchtitan.a import x\n"}
    analysed(tmp_path, old, {"a.py": "y = 1\n"}, mine)
    assert sum(b"unchanged" in source for source in parsed) == 1
    parsed.clear()
    settled = settings.load(tmp_path / "plugin")
    (tmp_path / "plugin/torchtitan_npu/use.py").write_text("from torchtitan.a import x  # edited\n")
    with upstream.open_range(settled, target=None, upstream=str(tmp_path / "upstream"), cache=None) as changes:
        impact.analyse(changes, settled, tmp_path / "cache")
    assert [source for source in parsed if b"edited" not in source] == []


def _sources(count: int) -> dict[str, bytes]:
    return {str(n): b"def f(x=%d):\n    return [x]\n\n\nclass C%d:\n    y: int = 1\n" % (n, n) for n in range(count)}


def test_outlines_made_in_two_processes_are_those_made_in_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = _sources(250)
    made = parallel.each(tables._row, sources)
    assert made.keys() == sources.keys()
    two = tables.Cache(tmp_path / "two.sqlite")
    together = two.tables(sources)
    two.save()
    monkeypatch.setattr(parallel, "each", lambda work, sources: {})
    assert together == tables.Cache(None).tables(sources)
    assert tables.Cache(tmp_path / "two.sqlite").load(sources) == set()


def test_where_no_process_can_be_started_one_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no semaphores here")

    monkeypatch.setattr(parallel, "ProcessPoolExecutor", refuse)
    sources = _sources(250)
    assert tables.Cache(None).tables(sources).keys() == sources.keys()


def test_a_damaged_cache_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/outlines.sqlite").write_bytes(b"not a database" * 100)
    mine: Files = {"torchtitan_npu/use.py": "from torchtitan.a import x\n"}
    assert len(graded(analysed(tmp_path, {"a.py": "x = 1\n"}, {"a.py": "y = []\n"}, mine), Grade.P0)) == 1


def test_an_analysis_is_kept_until_anything_that_went_in_changes(tmp_path: Path) -> None:
    mine: Files = {"torchtitan_npu/use.py": "from torchtitan.a import x\n"}
    made = analysed(tmp_path, {"a.py": "x = 1\n"}, {"a.py": "y = []\n"}, mine)
    (file,) = (tmp_path / "cache/results").glob("*.json")
    assert memory.recall(file.parent, file.stem) == made
    settled = settings.load(tmp_path / "plugin")
    (tmp_path / "plugin/torchtitan_npu/use.py").write_text("print()\n")
    with upstream.open_range(settled, target=None, upstream=str(tmp_path / "upstream"), cache=None) as changes:
        assert graded(impact.analyse(changes, settled, tmp_path / "cache"), Grade.P0) == []


def test_five_thousand_files(tmp_path: Path) -> None:
    files: Files = {f"torchtitan/part_{n}.py": f"def value_{n}(x):\n    return x + {n}\n" for n in range(5000)}
    repository = Repository(tmp_path / "upstream")
    first = repository.commit({"torchtitan/__init__.py": "", **files}, "Many")
    repository.commit(
        {f"torchtitan/part_{n}.py": f"def other_{n}():\n    return []\n" for n in range(0, 5000, 7)}, "Some"
    )
    downstream = plugin(tmp_path / "plugin", repository.url, first, {"torchtitan_npu/use.py": CODE})
    settled = settings.load(downstream.path)
    times = []
    for _ in range(2):
        start = time.process_time()
        with upstream.open_range(settled, target=None, upstream=str(repository.path), cache=None) as changes:
            analysis = impact.analyse(changes, settled, tmp_path / "cache")
        times.append(time.process_time() - start)
    assert [item.upstream_symbol for item in graded(analysis, Grade.P0)] == ["torchtitan.part_7.value_7"]
    assert times[0] < 15 and times[1] < 2


def test_windows_line_ends_on_both_sides(tmp_path: Path) -> None:
    old = "def mse(a):\n    return a\n".replace("\n", "\r\n").encode()
    new = "def l2(x, y):\n    return [x, y]\n".replace("\n", "\r\n").encode()
    code = "import os\n\nfrom torchtitan.loss import mse\n".replace("\n", "\r\n").encode()
    (item,) = graded(analysed(tmp_path, {"loss.py": old}, {"loss.py": new}, {"torchtitan_npu/use.py": code}), Grade.P0)
    assert places(item) == [("torchtitan_npu/use.py", 3)]
    assert item.downstream[0].text == "from torchtitan.loss import mse"


def test_line_ends_alone_are_no_change(tmp_path: Path) -> None:
    text = "def mse(a):\n    return a\n"
    new: Files = {"loss.py": text.replace("\n", "\r\n").encode()}
    analysis = analysed(
        tmp_path, {"loss.py": text}, new, {"torchtitan_npu/use.py": "from torchtitan.loss import mse\n\nmse(1)\n"}
    )
    assert [item.upstream_symbol for item in analysis.items if item.grade <= Grade.P2] == []


def test_files_that_are_no_python_are_passed_over(tmp_path: Path) -> None:
    mine: Files = {
        "torchtitan_npu/use.py": "from torchtitan.a import x\n",
        "torchtitan_npu/template.py": "def {{ name }}(:\n",
    }
    old: Files = {"a.py": "x = 1\n", "broken.py": "def f(:\n"}
    assert len(graded(analysed(tmp_path, old, {"a.py": "y = []\n", "broken.py": "def g(:\n"}, mine), Grade.P0)) == 1


def test_a_link_that_leads_round_in_a_circle_is_not_followed(tmp_path: Path) -> None:
    package = tmp_path / "torchtitan_npu"
    package.mkdir()
    (package / "use.py").write_text("import torchtitan\n")
    (package / "loop").symlink_to(tmp_path, target_is_directory=True)
    assert list(sources.read(Plugin(tmp_path, "torchtitan_npu")).contents) == ["torchtitan_npu/use.py"]


def test_names_in_other_scripts_and_columns_behind_them(tmp_path: Path) -> None:
    mine: Files = {"torchtitan_npu/use.py": 'import torchtitan.a\n\nprint("升腾", torchtitan.a.x)\n'}
    (item,) = graded(analysed(tmp_path, {"a.py": "x = 1\n"}, {"a.py": "y = []\n"}, mine), Grade.P0)
    (use,) = item.downstream
    assert 'print("升腾", torchtitan.a.x)'[use.column : use.end_column] == "x"


def test_a_plugin_of_another_name_in_a_src_folder(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "upstream")
    first = repository.commit({"torchtitan/__init__.py": "", "torchtitan/a.py": "x = 1\n"}, "First")
    repository.commit({"torchtitan/a.py": "y = []\n"}, "Second")
    downstream = plugin(
        tmp_path / "plugin", repository.url, first, {"src/titan_tpu/use.py": "from torchtitan.a import x\n"}
    )
    project = '[tool.torchtitan-sync]\npackage = "titan_tpu"\ndocument = "docs/community/versioning_policy.md"\n'
    downstream.commit({"pyproject.toml": project, "src/titan_tpu/__init__.py": ""})
    settled = settings.load(downstream.path)
    with upstream.open_range(settled, target=None, upstream=str(repository.path), cache=None) as changes:
        (item,) = graded(impact.analyse(changes, settled, tmp_path / "cache"), Grade.P0)
    assert places(item) == [("src/titan_tpu/use.py", 1)]


@pytest.mark.parametrize(
    ("project", "says"),
    [
        ('[tool.torchtitan-sync]\npackge = "x"\n', "has no key 'packge'"),
        ("[tool.torchtitan-sync]\npackage = 3\n", "must be a str"),
        ('[tool.torchtitan-sync]\npackage = "nowhere"\n', "no folder nowhere"),
        ("[tool", "not valid TOML"),
    ],
)
def test_a_wrong_setting_says_what_is_wrong(tmp_path: Path, project: str, says: str) -> None:
    (tmp_path / "pyproject.toml").write_text(project)
    with pytest.raises(SyncError, match=says):
        settings.load(tmp_path)
