"""Grades P1 to P4, what is not worth saying, and the kinds of fault that people have reported."""

from pathlib import Path

import pytest

from tests.torchtitan_sync.ranges import Files, analysed, graded, of_kind, places
from torchtitan_sync.model import Grade

LOADER = '''\
"""Loads."""
import os


def _check(path):
    if not os.path.exists(path):
        raise ValueError(path)


def load(path: str, mode="r"):
    """Load a file."""
    _check(path)
    return open(path, mode).read()


def _private(x):
    return x


class Queue:
    """Holds."""

    def pop(self, wait=1.0):
        return wait
'''
USE = """\
from torchtitan.loader import Queue, load

load("a")
Queue().pop()
"""


def run(folder: Path, new: str, code: str = USE, old: str = LOADER, **others: str):
    files: Files = {"loader.py": old}
    return analysed(folder, files, {"loader.py": new, **others}, {"torchtitan_npu/use.py": code})


def worth_a_look(analysis) -> list[str]:
    return [f"{item.kind} {item.upstream_symbol}" for item in analysis.items if item.grade <= Grade.P2]


def test_formatting_hints_docstrings_and_comments_are_no_changes(tmp_path: Path) -> None:
    new = (
        LOADER.replace("path: str", "path: os.PathLike[str] | str")
        .replace('"""Load a file."""', '"""Load a whole file\n\n    into memory.\n    """')
        .replace("    _check(path)\n", "\n    # First things first.\n    _check(\n        path,\n    )\n")
        .replace('mode="r"', "mode='r'")
        .replace('"""Holds."""', '"""Holds things."""')
    )
    assert worth_a_look(run(tmp_path, new)) == []


def test_private_helpers_that_nobody_touches_are_no_changes(tmp_path: Path) -> None:
    new = LOADER.replace("    return x\n", "    return x + 1\n") + "\n\ndef _another():\n    return 2\n"
    analysis = run(tmp_path, new)
    assert worth_a_look(analysis) == []


def test_what_is_not_used_is_counted_and_not_listed(tmp_path: Path) -> None:
    code = "from torchtitan.loader import load\n\nload('a')\n"
    analysis = run(tmp_path, LOADER.partition("class Queue")[0].rstrip() + "\n", code)
    assert graded(analysis, Grade.P0) == []
    assert analysis.unaffected == 1


def test_code_that_the_plugin_calls_and_that_changed_needs_a_look(tmp_path: Path) -> None:
    (item,) = of_kind(run(tmp_path, LOADER.replace(".read()", ".read().strip()")), "used-changed")
    assert (item.grade, item.upstream_symbol, places(item)) == (
        Grade.P2,
        "torchtitan.loader.load",
        [("torchtitan_npu/use.py", 3)],
    )
    assert "+    return open(path, mode).read().strip()" in item.detail


def test_a_default_that_changed_where_the_plugin_passes_nothing(tmp_path: Path) -> None:
    (item,) = of_kind(run(tmp_path, LOADER.replace("wait=1.0", "wait=2.0")), "default-changed")
    assert (item.grade, item.upstream_symbol) == (Grade.P2, "torchtitan.loader.Queue.pop.wait")
    assert "1.0" in item.what and "2.0" in item.what


def test_a_default_that_changed_where_the_plugin_passes_its_own_is_no_change(tmp_path: Path) -> None:
    code = USE.replace("pop()", "pop(wait=3)")
    assert of_kind(run(tmp_path, LOADER.replace("wait=1.0", "wait=2.0"), code), "default-changed") == []


def test_a_result_with_another_number_of_values_raises_where_it_is_unpacked(tmp_path: Path) -> None:
    old = "def split(x):\n    return x, 1\n"
    code = "from torchtitan.loader import split\n\na, b = split(1)\n"
    (item,) = graded(run(tmp_path, "def split(x):\n    return x, 1, 2\n", code, old), Grade.P0)
    assert (item.kind, places(item)) == ("return-arity", [("torchtitan_npu/use.py", 3)])


def test_a_result_of_another_type_is_p1(tmp_path: Path) -> None:
    old = "class A:\n    pass\n\n\nclass B:\n    pass\n\n\ndef make() -> A:\n    return A()\n"
    code = "from torchtitan.loader import make\n\nthing = make()\n"
    new = old.replace("-> A", "-> B").replace("return A()", "return B()")
    (item,) = of_kind(run(tmp_path, new, code, old), "return-changed")
    assert item.grade == Grade.P1


def test_an_argument_with_a_layout_suffix_cannot_be_decided(tmp_path: Path) -> None:
    old = "def attend(x, mask):\n    return x\n"
    code = "from torchtitan.loader import attend\n\nattend(1, 2)\n"
    (item,) = of_kind(run(tmp_path, "def attend(x_BLD, mask):\n    return x_BLD\n", code, old), "meaning")
    assert item.grade == Grade.P2
    assert any("layout" in note for note in item.notes)


def test_a_method_that_became_a_plain_attribute_is_another_meaning(tmp_path: Path) -> None:
    old = "class Dims:\n    def mesh(self):\n        return 1\n"
    new = "class Dims:\n    @property\n    def mesh(self):\n        return 1\n"
    code = "from torchtitan.loader import Dims\n\nDims().mesh()\n"
    (item,) = of_kind(run(tmp_path, new, code, old), "meaning")
    assert places(item) == [("torchtitan_npu/use.py", 3)]


def test_a_changed_exception_is_reported_where_the_plugin_expects_the_old_one(tmp_path: Path) -> None:
    code = """\
from torchtitan.loader import load


def f():
    try:
        return load("a")
    except ValueError:
        return None
"""
    new = LOADER.replace("raise ValueError", "raise LookupError")
    (item,) = of_kind(run(tmp_path, new, code), "raises-changed")
    assert (item.grade, places(item)) == (Grade.P1, [("torchtitan_npu/use.py", 7)])
    assert "LookupError" in item.what


def test_an_exception_class_below_the_old_one_is_still_caught(tmp_path: Path) -> None:
    code = "import pytest\n\nfrom torchtitan.loader import load\n\nwith pytest.raises(ValueError):\n    load('a')\n"
    new = "class BadPath(ValueError):\n    pass\n\n\n" + LOADER.replace("raise ValueError", "raise BadPath")
    assert of_kind(run(tmp_path, new, code), "raises-changed") == []


def test_a_changed_exception_under_pytest_raises(tmp_path: Path) -> None:
    code = "import pytest\n\nfrom torchtitan.loader import load\n\nwith pytest.raises(ValueError):\n    load('a')\n"
    new = "class BadPath(Exception):\n    pass\n\n\n" + LOADER.replace("raise ValueError", "raise BadPath")
    (item,) = of_kind(run(tmp_path, new, code), "raises-changed")
    assert places(item) == [("torchtitan_npu/use.py", 5)]


def test_a_package_that_upstream_came_to_import(tmp_path: Path) -> None:
    (item,) = of_kind(run(tmp_path, LOADER.replace("import os\n", "import os\n\nimport triton\n")), "third-party")
    assert (item.grade, item.upstream_symbol) == (Grade.P2, "triton")
    assert "was not needed" in item.what


def test_a_name_of_a_known_package_that_upstream_came_to_import(tmp_path: Path) -> None:
    old = "import torch\n\n\ndef f():\n    return torch.ones(1)\n"
    new = "import torch\nfrom torch.special import entr\n\n\ndef f():\n    return torch.ones(1)\n"
    (item,) = of_kind(run(tmp_path, new, "from torchtitan.loader import f\n", old), "third-party")
    assert item.upstream_symbol == "torch.special.entr"


def test_a_guarded_import_needs_no_package(tmp_path: Path) -> None:
    new = LOADER.replace(
        "import os\n", "import os\n\ntry:\n    import triton\nexcept ImportError:\n    triton = None\n"
    )
    assert of_kind(run(tmp_path, new), "third-party") == []


def test_a_deprecation_is_said(tmp_path: Path) -> None:
    new = LOADER.replace("    _check(path)\n", '    print("deprecated: use fetch")\n    _check(path)\n')
    analysis = run(tmp_path, new)
    (item,) = [item for item in analysis.items if item.upstream_symbol == "torchtitan.loader.load"]
    assert item.kind == "used-changed" or item.kind == "deprecated"
    assert any("deprecated" in text for text in [item.kind, *item.notes])


def test_models_documents_and_dependencies_have_their_grades(tmp_path: Path) -> None:
    old: Files = {"loader.py": LOADER, "models/old/model.py": "x = 1\n", "models/same/model.py": "x = 1\n"}
    new: Files = {
        "models/new/model.py": "x = 1\n",
        "models/same/model.py": "x = 2\n",
        "models/old/model.py": None,
        "../docs/use.md": "New.\n",
        "../pyproject.toml": '[project]\nname = "t"\nrequires-python = ">=3.12"\ndependencies = ["torch>=2.15"]\n',
    }
    old["../pyproject.toml"] = '[project]\nname = "t"\nrequires-python = ">=3.10"\ndependencies = ["torch>=2.14"]\n'
    analysis = analysed(tmp_path, old, new, {"torchtitan_npu/use.py": USE})
    kinds = {(item.grade.name, item.kind, item.upstream_symbol) for item in analysis.items}
    assert kinds == {
        ("P3", "model-added", "torchtitan.models.new"),
        ("P3", "model-changed", "torchtitan.models.same"),
        ("P3", "model-removed", "torchtitan.models.old"),
        ("P4", "other", "docs"),
        ("P2", "dependency", "Python"),
        ("P2", "dependency", "torch"),
    }


def test_a_change_is_reported_once_at_its_highest_grade(tmp_path: Path) -> None:
    code = """\
from torchtitan import loader


def mine(path, mode="r"):
    return ""


loader.load("x")
loader.load = mine
"""
    analysis = run(tmp_path, LOADER.replace(".read()", ".read().strip()"), code)
    (item,) = [item for item in analysis.items if item.upstream_symbol == "torchtitan.loader.load"]
    assert (item.kind, item.grade) == ("patched-changed", Grade.P1)


def test_216_failures_of_one_cause_are_one_item(tmp_path: Path) -> None:
    """As in vllm-project/vllm-ascend#8856, on a smaller scale."""
    files: Files = {
        f"torchtitan_npu/part_{n}.py": "from torchtitan_npu.base import load\n\nload('a')\n" for n in range(20)
    }
    files["torchtitan_npu/base.py"] = "from torchtitan.loader import load\n"
    analysis = analysed(tmp_path, {"loader.py": LOADER}, {"loader.py": "x = 1\n"}, files)
    (item,) = graded(analysis, Grade.P0)
    assert places(item) == [("torchtitan_npu/base.py", 1)]
    assert len(item.cascade) >= 20


def test_a_field_that_is_still_accepted_and_ignored_at_the_old_place_is_reported_with_its_new_home(
    tmp_path: Path,
) -> None:
    """As in AMD-AGI/Primus#935: the old flag parsed, and nothing read it."""
    config = """\
from dataclasses import dataclass, field


@dataclass
class Model:
    flash: bool = True
    name: str = "a"


@dataclass
class Attention:
    heads: int = 8


@dataclass
class JobConfig:
    model: Model = field(default_factory=Model)
    attention: Attention = field(default_factory=Attention)
"""
    new = config.replace("    flash: bool = True\n", "").replace(
        "heads: int = 8", "heads: int = 8\n    flash: bool = True"
    )
    toml = '[model]\nname = "b"\nflash = false\n'
    files: Files = {"torchtitan_npu/run.toml": toml}
    analysis = analysed(tmp_path, {"config/__init__.py": config}, {"config/__init__.py": new}, files)
    (item,) = graded(analysis, Grade.P0)
    assert (item.kind, item.moved_to) == ("field-moved", "torchtitan.config.Attention.flash")
    assert places(item) == [("torchtitan_npu/run.toml", 3)]


def test_an_attribute_that_may_be_set_under_a_computed_name_cannot_be_decided(tmp_path: Path) -> None:
    old = "class Args:\n    def __init__(self):\n        self.dim = 1\n"
    new = "class Args:\n    def __init__(self, *all):\n        for one in all:\n            setattr(self, one, 1)\n"
    code = "from torchtitan.loader import Args\n\nArgs().dim\n"
    analysis = run(tmp_path, new, code, old)
    (item,) = of_kind(analysis, "meaning")
    assert (item.grade, item.upstream_symbol) == (Grade.P2, "torchtitan.loader.Args.dim")
    assert "computed name" in item.what


MOE = """\
def _run_experts(x, quantized=False):
    if quantized:
        x = x.quantize()
    return x * 2


def _unrelated(x):
    return x


class MoE:
    def forward(self, x):
        return self.shared(x) + _run_experts(x)

    def shared(self, x):
        return x
"""


def test_shared_code_behind_a_used_class_that_another_path_changed(tmp_path: Path) -> None:
    """As in pytorch/torchtitan#1531: made for one quantised path, it broke every model that shares the helper."""
    code = "from torchtitan.moe import MoE\n\n\nclass Mine(MoE):\n    def shared(self, x):\n        return x + 1\n"
    changed = MOE.replace("    if quantized:\n", "    x = x.pad(16)\n    if quantized:\n")
    changed = changed.replace("def _unrelated(x):\n    return x\n", "def _unrelated(x):\n    return -x\n")
    subject = "[mxfp8] Pad the groups of tokens (#1517)"
    mine: Files = {"torchtitan_npu/use.py": code}
    analysis = analysed(tmp_path, {"moe.py": MOE}, {"moe.py": changed}, mine, subject=subject)
    (item,) = [item for item in analysis.items if item.grade <= Grade.P2]
    assert (item.kind, item.upstream_symbol) == ("used-changed", "torchtitan.moe._run_experts")
    assert places(item) == [("torchtitan_npu/use.py", 1)]
    assert "+x = x.pad(16)" in item.detail.replace(" " * 4, "")
    assert [(commit.subject, commit.pr) for commit in item.commits] == [(subject, 1517)]


REQUIRED = '[project]\nname = "t"\nrequires-python = ">=3.10"\ndependencies = ["torch>=2.{}", "rich>=13"]\n'


@pytest.mark.parametrize(
    ("pin", "fits"), [("torch==2.14.0", False), ("torch>=2.12,<2.15", False), ("torch>=2.14", True), ("torch", True)]
)
def test_a_requirement_of_the_plugin_that_the_new_upstream_rules_out(tmp_path: Path, pin: str, fits: bool) -> None:
    """As in jax-ml/jax#21383: the message says which version to install, before anything fails to start."""
    old: Files = {"a.py": "x = 1\n", "../pyproject.toml": REQUIRED.format(14)}
    mine: Files = {"torchtitan_npu/use.py": "from torchtitan.a import x\n", "requirements.txt": f"rich\n{pin}\n"}
    analysis = analysed(tmp_path, old, {"../pyproject.toml": REQUIRED.format(15)}, mine)
    (item,) = of_kind(analysis, "dependency")
    assert (item.grade, item.upstream_symbol) == (Grade.P2, "torch")
    assert places(item) == ([] if fits else [("requirements.txt", 2)])
    assert ("torch>=2.15" in item.suggestion) is not fits


REGISTRY = """\
from torchtitan.nets import Deep, Wide

NETS = {"small": Deep, "large": Wide}


def get(name):
    return NETS[name]
"""
NETS = "class Deep:\n    layers = 8\n\n\nclass Wide:\n    width = 99\n"


def test_a_key_of_a_registry_that_means_another_class_cannot_be_decided(tmp_path: Path) -> None:
    code = 'from torchtitan.registry import NETS, get\n\nNETS["small"]\nget("small")\nget("large")\n'
    new: Files = {"registry.py": REGISTRY.replace('"small": Deep', '"small": Wide')}
    analysis = analysed(tmp_path, {"registry.py": REGISTRY, "nets.py": NETS}, new, {"torchtitan_npu/use.py": code})
    (item,) = of_kind(analysis, "meaning")
    assert (item.grade, item.upstream_symbol) == (Grade.P2, "torchtitan.registry.NETS.small")
    assert places(item) == [("torchtitan_npu/use.py", 3), ("torchtitan_npu/use.py", 4)]
    assert "`torchtitan.nets.Wide` now" in item.what


def test_a_key_of_a_registry_whose_class_moved_means_the_same(tmp_path: Path) -> None:
    code = 'from torchtitan.registry import get\n\nget("small")\n'
    new: Files = {"registry.py": REGISTRY.replace("nets", "models.nets"), "nets.py": None, "models/nets.py": NETS}
    analysis = analysed(tmp_path, {"registry.py": REGISTRY, "nets.py": NETS}, new, {"torchtitan_npu/use.py": code})
    assert of_kind(analysis, "meaning") == []
