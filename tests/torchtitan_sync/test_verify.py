"""`verify`: what it finds on the target upstream, and that nothing of its place stays behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.interrupts import interruptible
from tests.torchtitan_sync.repositories import Repository, plugin
from torchtitan_sync import cli, settings, verify

OLD: dict[str, str | bytes | None] = {
    "torchtitan/__init__.py": "",
    "torchtitan/base.py": """\
        class Base:
            limit: int

            def __init__(self) -> None:
                self.count = 0

            def step(self, batch):
                return batch


        def build(name, *, size=1):
            return name, size
        """,
    "assets/version.txt": "0.9.1\n",
}
GOOD = """\
    from torchtitan import base
    from torchtitan.base import Base, build


    class Ours(Base):
        def step(self, batch):
            return self.count, Base.limit

    made = build("x", size=2)
    """


@pytest.fixture(autouse=True)
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # of the pytest that `verify` starts: it starts faster


def repositories(
    tmp_path: Path, new: dict[str, str | bytes | None], files: dict[str, str | bytes | None]
) -> Repository:
    upstream = Repository(tmp_path / "upstream")
    old = upstream.commit(dict(OLD))
    upstream.commit(dict(new), "New (#2)")
    return plugin(tmp_path / "plugin", str(upstream.path), old, files)


def checks(tmp_path: Path, repository: Repository, *options: str) -> dict[str, dict]:
    report = tmp_path / "verify.json"
    cli.main(["verify", "--repo", str(repository.path), "--json", str(report), *options])
    return {check["name"]: check for check in json.loads(report.read_text())}


def test_plugin_that_fits_passes_every_check(tmp_path: Path) -> None:
    repository = repositories(tmp_path, {"torchtitan/new.py": ""}, {"torchtitan_npu/a.py": GOOD})
    assert cli.main(["verify", "--repo", str(repository.path)]) == 0
    found = checks(tmp_path, repository)
    assert {name: (c["passed"], c["failed"]) for name, c in found.items() if name != "P0 left"} == {
        "import": (2, 0),
        "subclass": (1, 0),
        "signature": (2, 0),
        "attribute": (4, 0),
    }


def test_import_that_fails_names_the_plugins_line(tmp_path: Path) -> None:
    repository = repositories(tmp_path, {"torchtitan/base.py": None}, {"torchtitan_npu/a.py": GOOD})
    problem = checks(tmp_path, repository)["import"]["problems"][0]
    assert "torchtitan_npu.a: ImportError: cannot import name 'base' from 'torchtitan'" in problem
    assert "line 1 of a.py" in problem


def test_third_party_module_that_is_not_installed_is_not_upstreams_doing(tmp_path: Path) -> None:
    source = "import a_module_that_nobody_has\nfrom torchtitan.base import Base\n"
    repository = repositories(tmp_path, {"torchtitan/new.py": ""}, {"torchtitan_npu/a.py": source})
    found = checks(tmp_path, repository)["import"]
    assert (found["passed"], found["failed"], found["skipped"]) == (1, 0, 1)
    assert "a_module_that_nobody_has" in found["notes"][0]


def test_attribute_used_in_a_function_is_resolved_without_calling_it(tmp_path: Path) -> None:
    source = "from torchtitan import base\n\n\ndef f():\n    return base.build, base.absent\n"
    repository = repositories(tmp_path, {"torchtitan/new.py": ""}, {"torchtitan_npu/a.py": source})
    assert checks(tmp_path, repository)["attribute"]["problems"] == [
        "torchtitan_npu/a.py:5: torchtitan.base.absent: torchtitan.base has no absent"
    ]


def test_function_may_have_the_name_of_a_module_beside_it(tmp_path: Path) -> None:
    new: dict[str, str | bytes | None] = {
        "torchtitan/config/__init__.py": "from torchtitan.config.override import override\n",
        "torchtitan/config/override.py": "def override():\n    pass\n\n\ndef derive():\n    pass\n",
    }
    source = "from torchtitan.config import override\nfrom torchtitan.config.override import derive\n\nderive()\n"
    repository = repositories(tmp_path, new, {"torchtitan_npu/a.py": source})
    found = checks(tmp_path, repository)
    assert (found["attribute"]["passed"], found["attribute"]["failed"]) == (2, 0)
    assert found["signature"]["passed"] == 1


def test_guarded_use_is_not_checked(tmp_path: Path) -> None:
    source = "try:\n    from torchtitan.base import absent\nexcept ImportError:\n    absent = None\n"
    repository = repositories(tmp_path, {"torchtitan/new.py": ""}, {"torchtitan_npu/a.py": source})
    found = checks(tmp_path, repository)
    assert all(check["failed"] == 0 for check in found.values())


def test_call_and_override_that_do_not_take_what_upstream_wants_fail(tmp_path: Path) -> None:
    new = str(OLD["torchtitan/base.py"]).replace("step(self, batch)", "step(self, batch, labels)")
    new = new.replace("size=1", "shape=1")
    repository = repositories(
        tmp_path, {"torchtitan/base.py": new}, {"torchtitan_npu/a.py": GOOD.replace("made =", "def f(): return")}
    )
    problems = checks(tmp_path, repository)["signature"]["problems"]
    assert any("Ours.step: upstream calls it with self, batch, labels: too many positional" in p for p in problems)
    assert any("a.py:9: torchtitan.base.build(...): got an unexpected keyword argument 'size'" in p for p in problems)


def test_declared_targets_are_resolved(tmp_path: Path) -> None:
    source = """\
        from dataclasses import dataclass

        @dataclass
        class Patch:
            target: str

        _WHERE = "torchtitan.base"
        PATCHES = (Patch(f"{_WHERE}.build"), Patch(f"{_WHERE}.gone"))
        """
    repository = repositories(tmp_path, {"torchtitan/new.py": ""}, {"torchtitan_npu/a.py": source})
    found = checks(tmp_path, repository)["declared"]
    assert found["passed"] == 1
    assert found["problems"] == ["torchtitan_npu/a.py (PATCHES): torchtitan.base.gone: torchtitan.base has no gone"]


def test_uncommitted_changes_are_verified_too(tmp_path: Path) -> None:
    repository = repositories(tmp_path, {"torchtitan/base.py": None}, {"torchtitan_npu/a.py": GOOD})
    repository.write({"torchtitan_npu/a.py": "x = 1\n", "torchtitan_npu/b.py": "y = 2\n"})
    found = checks(tmp_path, repository)["import"]
    assert (found["passed"], found["failed"]) == (3, 0)


def test_upstream_has_its_version_in_the_environment(tmp_path: Path) -> None:
    source = "import importlib.metadata\nassert importlib.metadata.version('torchtitan') == '0.9.1'\n"
    repository = repositories(tmp_path, {"torchtitan/new.py": ""}, {"torchtitan_npu/a.py": source})
    assert checks(tmp_path, repository)["import"]["failed"] == 0


def test_only_tests_that_touch_affected_files_run(tmp_path: Path) -> None:
    files: dict[str, str | bytes | None] = {
        "torchtitan_npu/a.py": "def f():\n    from torchtitan.base import build\n    return build('x')\n",
        "torchtitan_npu/b.py": "from torchtitan_npu.a import f\n",
        "torchtitan_npu/c.py": "",
        "tests/test_b.py": "from torchtitan_npu import b\n\ndef test_b():\n    assert b.f() == ('x', 1)\n",
        "tests/test_c.py": "import torchtitan_npu.c\n\ndef test_c():\n    assert False\n",
    }
    new = str(OLD["torchtitan/base.py"]).replace("build", "build_it")
    repository = repositories(tmp_path, {"torchtitan/base.py": new}, files)
    loaded = settings.load(repository.path)
    assert verify.affected_tests(loaded, {"torchtitan_npu/a.py"}) == ["tests/test_b.py"]
    found = checks(tmp_path, repository, "--tests")["tests"]
    assert (found["passed"], found["failed"]) == (0, 1)
    assert "test_b" in found["problems"][0]


def test_module_that_ends_the_process_is_reported(tmp_path: Path) -> None:
    repository = repositories(tmp_path, {"torchtitan/new.py": ""}, {"torchtitan_npu/a.py": "import os\nos._exit(7)\n"})
    assert checks(tmp_path, repository)["import"]["problems"] == ["the interpreter ended with code 7: "]


def test_nothing_stays_behind_also_after_an_interrupt(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    source = f"import time\nopen({str(tmp_path / 'started')!r}, 'w').close()\ntime.sleep(60)\n"
    repository = repositories(tmp_path, {"torchtitan/new.py": ""}, {"torchtitan_npu/a.py": source})
    command = [sys.executable, "-m", "torchtitan_sync.cli", "verify", "--repo", str(repository.path)]
    environment = os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": str(Path(__file__).parents[2])}
    child = subprocess.Popen(
        command,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=interruptible,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    assert child.wait(timeout=30) == 130
    assert list(temporary.iterdir()) == []
    assert len(repository.git("worktree", "list").splitlines()) == 1
    assert repository.git("status", "--porcelain") == ""
