"""Patches, overrides and callbacks: five questions for each, since the break is in code that upstream never names."""

from pathlib import Path

from tests.torchtitan_sync.ranges import Files, analysed, graded, of_kind, places
from torchtitan_sync.model import Grade

LOSS = "def mse(pred, label):\n    return sum((a - b) ** 2 for a, b in zip(pred, label))\n"
RUN = "from torchtitan import loss\n\n\ndef go(batch):\n    return loss.mse(batch, batch)\n"
PATCH = """\
from torchtitan import loss


def mine(pred, label):
    return 0


loss.mse = mine
"""
HERE = ("torchtitan_npu/use.py", 8)


def run(folder: Path, new: Files, code: str = PATCH, old: Files | None = None):
    return analysed(folder, old or {"loss.py": LOSS, "run.py": RUN}, new, {"torchtitan_npu/use.py": code})


def test_a_target_that_is_gone_is_silent_where_an_assignment_still_succeeds(tmp_path: Path) -> None:
    new: Files = {"loss.py": "x = 1\n", "run.py": "def go(batch):\n    return 0\n"}
    (item,) = graded(run(tmp_path, new), Grade.P0)
    assert (item.kind, item.upstream_symbol, places(item)) == ("silent", "torchtitan.loss.mse", [HERE])


def test_a_target_that_is_only_a_re_export_now_is_silent(tmp_path: Path) -> None:
    new: Files = {
        "loss.py": "from torchtitan.losses.base import mse\n",
        "losses/base.py": LOSS,
        "run.py": RUN.replace("import loss", "import losses").replace("loss.mse", "losses.base.mse"),
    }
    (item,) = graded(run(tmp_path, new), Grade.P0)
    assert (item.kind, item.moved_to, places(item)) == ("silent", "torchtitan.losses.base.mse", [HERE])


def test_a_target_that_upstream_no_longer_uses_is_silent(tmp_path: Path) -> None:
    (item,) = graded(run(tmp_path, {"run.py": "def go(batch):\n    return 0\n"}), Grade.P0)
    assert (item.kind, places(item)) == ("silent", [HERE])
    assert "no longer uses" in item.what


def test_a_new_keyword_at_the_call_breaks_a_replacement_without_kwargs(tmp_path: Path) -> None:
    new: Files = {
        "loss.py": LOSS.replace("(pred, label)", "(pred, label, reduce=None)"),
        "run.py": RUN.replace("(batch, batch)", "(batch, batch, reduce=1)"),
    }
    (item,) = graded(run(tmp_path, new), Grade.P0)
    assert (item.kind, places(item)) == ("patch-signature", [HERE])
    assert "reduce=" in item.what


def test_a_new_keyword_that_no_call_passes_breaks_nothing(tmp_path: Path) -> None:
    new: Files = {"loss.py": LOSS.replace("(pred, label)", "(pred, label, reduce=None)")}
    assert graded(run(tmp_path, new), Grade.P0) == []


def test_a_replacement_with_kwargs_takes_new_keywords(tmp_path: Path) -> None:
    new: Files = {
        "loss.py": LOSS.replace("(pred, label)", "(pred, label, reduce=None)"),
        "run.py": RUN.replace("(batch, batch)", "(batch, batch, reduce=1)"),
    }
    code = PATCH.replace("(pred, label)", "(pred, label, **kwargs)")
    assert graded(run(tmp_path, new, code), Grade.P0) == []


def test_a_new_import_by_value_may_miss_the_patch(tmp_path: Path) -> None:
    new: Files = {"eval.py": "from torchtitan.loss import mse\n\n\ndef check(x):\n    return mse(x, x)\n"}
    (item,) = of_kind(run(tmp_path, new), "patch-by-value")
    assert item.grade == Grade.P1
    assert "torchtitan.eval" in item.what
    assert places(item) == [HERE]


def test_the_code_under_a_patch_that_changed_is_shown_with_its_difference(tmp_path: Path) -> None:
    (item,) = of_kind(run(tmp_path, {"loss.py": LOSS.replace("** 2", "** 4")}), "patched-changed")
    assert item.grade == Grade.P1
    assert "** 4" in item.detail


def test_a_patched_method_that_is_gone_is_silent(tmp_path: Path) -> None:
    old: Files = {
        "t.py": "class T:\n    def go(self):\n        return self.one()\n\n    def one(self):\n        return 1\n"
    }
    new: Files = {"t.py": "class T:\n    def go(self):\n        return 1\n"}
    code = "from torchtitan.t import T\n\n\ndef mine(self):\n    return 2\n\n\nT.one = mine\n"
    (item,) = graded(run(tmp_path, new, code, old), Grade.P0)
    assert (item.kind, item.upstream_symbol, places(item)) == ("silent", "torchtitan.t.T.one", [HERE])


def test_a_monkeypatched_target_that_is_gone_raises(tmp_path: Path) -> None:
    code = """\
from unittest import mock

import torchtitan.loss


def test():
    with mock.patch.object(torchtitan.loss, "mse"):
        pass
"""
    new: Files = {"loss.py": "x = 1\n", "run.py": "def go(batch):\n    return 0\n"}
    (item,) = graded(run(tmp_path, new, code), Grade.P0)
    assert (item.kind, places(item)) == ("patch-target-gone", [("torchtitan_npu/use.py", 7)])


def test_a_base_method_that_gained_steps_is_p1_for_its_override(tmp_path: Path) -> None:
    old: Files = {
        "t.py": "class T:\n    def go(self):\n        return self.one()\n\n    def one(self):\n        return 1\n"
    }
    new: Files = {"t.py": old["t.py"].replace("        return 1\n", "        self.seen = True\n        return 1\n")}  # type: ignore[union-attr]
    code = "from torchtitan.t import T\n\n\nclass Mine(T):\n    def one(self):\n        return 2\n"
    (item,) = of_kind(run(tmp_path, new, code, old), "overridden-changed")
    assert (item.grade, places(item)) == (Grade.P1, [("torchtitan_npu/use.py", 5)])


def test_a_new_abstract_method_of_an_abstract_base_stops_construction(tmp_path: Path) -> None:
    base = "from abc import ABC, abstractmethod\n\n\nclass Base(ABC):\n    @abstractmethod\n    def load(self): ...\n"
    new: Files = {"base.py": base + "\n    @abstractmethod\n    def save(self, path): ...\n"}
    code = "from torchtitan.base import Base\n\n\nclass Mine(Base):\n    def load(self):\n        return 1\n"
    (item,) = of_kind(run(tmp_path, new, code, {"base.py": base}), "abstract-method")
    assert (item.grade, places(item)) == (Grade.P0, [("torchtitan_npu/use.py", 4)])


def test_a_method_that_subclasses_should_now_have_needs_a_look(tmp_path: Path) -> None:
    base = "class Base:\n    def load(self):\n        return 1\n"
    new: Files = {"base.py": base + "\n    def save(self):\n        raise NotImplementedError\n"}
    code = "from torchtitan.base import Base\n\n\nclass Mine(Base):\n    def load(self):\n        return 1\n"
    (item,) = of_kind(run(tmp_path, new, code, {"base.py": base}), "abstract-added")
    assert (item.grade, places(item)) == (Grade.P2, [("torchtitan_npu/use.py", 4)])


FIELDS = """\
from dataclasses import dataclass


@dataclass
class C:
    tokens: int = 1
    kind: str = "a"
"""
SUBCLASS = """\
from dataclasses import dataclass

from torchtitan.c import C


@dataclass
class Mine(C):
    tokens: int = 5
"""


def test_an_overridden_default_of_a_field_that_is_gone_is_silent(tmp_path: Path) -> None:
    new: Files = {"c.py": FIELDS.replace("    tokens: int = 1\n", "")}
    (item,) = graded(run(tmp_path, new, SUBCLASS, {"c.py": FIELDS}), Grade.P0)
    assert (item.kind, places(item)) == ("silent", [HERE])


COUNT = """\
def count(groups):
    total = 0
    for group in groups:
        total += group.size
        if group.last:
            break
    return total
"""


def test_a_copy_of_upstream_code_that_changed_upstream_is_p1(tmp_path: Path) -> None:
    new: Files = {"u.py": COUNT.replace("total = 0\n", "total = 0\n    groups = sorted(groups)\n")}
    code = COUNT.replace("total = 0\n", "total = 0\n    print('mine')\n")
    (item,) = of_kind(run(tmp_path, new, code, {"u.py": COUNT}), "copied-changed")
    assert (item.grade, item.upstream_symbol) == (Grade.P1, "torchtitan.u.count")


CONFIG = """\
from dataclasses import dataclass


@dataclass
class TextConfig:
    processor: object
"""
IMAGES = """\
from dataclasses import dataclass


class Images:
    @dataclass
    class Config:
        processor: object

    def __init__(self, config: Config):
        self._config = config

    def go(self, sample):
        return self._config.processor(sample, patch=1)
"""
CALLBACK = """\
from torchtitan.text import TextConfig


def process(sample):
    return sample


TEXT = TextConfig(processor=process)
"""


def test_a_field_of_the_same_name_in_another_class_is_another_callback(tmp_path: Path) -> None:
    old: Files = {"text.py": CONFIG, "run.py": "def go(config):\n    return config.processor('a')\n"}
    assert graded(run(tmp_path, {"images.py": IMAGES}, CALLBACK, old), Grade.P0) == []


def test_a_callback_that_upstream_passes_on_is_found_at_the_object_that_holds_it(tmp_path: Path) -> None:
    reader = """\
from torchtitan.text import TextConfig


class Reader:
    def __init__(self, config: TextConfig):
        self.processor = config.processor

    def go(self, sample):
        return self.processor(sample{more})
"""
    old: Files = {"text.py": CONFIG, "run.py": reader.format(more="")}
    new: Files = {"run.py": reader.format(more=", patch=1"), "images.py": IMAGES}
    (item,) = graded(run(tmp_path, new, CALLBACK, old), Grade.P0)
    assert (item.kind, places(item)) == ("callback-signature", [("torchtitan_npu/use.py", 4)])
    assert "run.py:9" in item.what


def test_a_re_export_through_which_upstream_still_goes_is_patched_as_before(tmp_path: Path) -> None:
    new: Files = {"loss.py": "from torchtitan.losses.base import mse\n", "losses/base.py": LOSS}
    assert graded(run(tmp_path, new), Grade.P0) == []


def test_who_goes_by_a_re_export_that_is_patched_is_named(tmp_path: Path) -> None:
    new: Files = {
        "loss.py": "from torchtitan.losses.base import mse\n",
        "losses/base.py": LOSS,
        "eval.py": "from torchtitan.losses.base import mse\n\n\ndef check(x):\n    return mse(x, x)\n",
    }
    (item,) = of_kind(run(tmp_path, new), "patch-by-value")
    assert (item.grade, item.suggestion) == (Grade.P1, "patch torchtitan.losses.base.mse as well")
    assert "torchtitan.eval" in item.what


BUILT: Files = {
    "base.py": (
        "class Built:\n    class Config:\n        def build(self, **kwargs):\n            return None\n\n"
        "    def __init__(self, config):\n        pass\n"
    ),
    "run.py": "from torchtitan.base import Built\n\n\ndef go(config: Built.Config):\n    return config.build()\n",
}
BUILT_NEW: Files = {"run.py": str(BUILT["run.py"]).replace("build()", "build(parts=[1])")}


def test_a_constructor_that_a_config_calls_has_to_take_what_build_is_given(tmp_path: Path) -> None:
    code = (
        "from torchtitan.base import Built\n\n\nclass Mine(Built):\n    class Config(Built.Config):\n        pass\n\n"
        "    def __init__(self, config):\n        super().__init__(config)\n"
    )
    (item,) = graded(run(tmp_path, BUILT_NEW, code, BUILT), Grade.P0)
    assert (item.kind, places(item)) == ("override-signature", [("torchtitan_npu/use.py", 8)])


def test_a_class_without_a_config_of_its_own_is_not_built_by_its_base_class_config(tmp_path: Path) -> None:
    code = (
        "from torchtitan.base import Built\n\n\nclass Mine(Built):\n"
        "    def __init__(self, config):\n        super().__init__(config)\n"
    )
    assert graded(run(tmp_path, BUILT_NEW, code, BUILT), Grade.P0) == []


def test_attributes_that_a_replaced_constructor_sets_are_the_plugins_own(tmp_path: Path) -> None:
    old: Files = {
        "t.py": "class T:\n    def __init__(self, name):\n        self.name = name\n        self.size = 1\n\n"
        "    def show(self):\n        return self.name\n"
    }
    new: Files = {
        "t.py": "class T:\n    def __init__(self, name):\n        pass\n\n    def show(self):\n        return ''\n"
    }
    code = """\
from torchtitan.t import T


def init(self, name):
    self.name = name


def show(self):
    return self.name, self.size


T.__init__ = init
T.show = show
"""
    (item,) = graded(run(tmp_path, new, code, old), Grade.P0)
    assert (item.upstream_symbol, places(item)) == ("torchtitan.t.T.size", [("torchtitan_npu/use.py", 9)])


def test_a_config_of_which_only_the_root_is_known_can_be_any(tmp_path: Path) -> None:
    root = "class Root:\n    class Config:\n        def build(self, **kwargs):\n            return None\n"
    base = (
        "from torchtitan.root import Root\n\n\nclass Built(Root):\n    class Config(Root.Config):\n        pass\n\n"
        "    def __init__(self, config, parts):\n        pass\n"
    )
    code = (
        "from torchtitan.base import Built\n\n\nclass Mine(Built):\n    class Config(Built.Config):\n        pass\n\n"
        "    def __init__(self, config, parts):\n        pass\n"
    )
    new: Files = {
        "run.py": "from torchtitan.root import Root\n\n\ndef go(other: Root.Config):\n    return other.build()\n"
    }
    analysis = run(tmp_path, new, code, {"root.py": root, "base.py": base, "run.py": "x = 1\n"})
    assert graded(analysis, Grade.P0) == []
