"""Where symbols have gone: found, said how sure, and followed to what breaks behind."""

from pathlib import Path

from tests.torchtitan_sync.ranges import Files, analysed, graded, of_kind, places
from torchtitan_sync.model import Grade, Item

CLIP = '''\
def clip(parameters, limit, *, foreach=None):
    """Clip."""
    total = 0.0
    for parameter in parameters:
        total += abs(parameter) ** 2
    factor = limit / (total**0.5 + 1e-6)
    return [parameter * min(factor, 1.0) for parameter in parameters]
'''
METER = """\
class Meter:
    unit = "s"

    def __init__(self, name):
        self.name = name
        self.values = []

    def add(self, value):
        self.values.append(value)
        if len(self.values) > 100:
            self.values = self.values[-100:]
        return self.values[-1]

    def mean(self):
        known = [value for value in self.values if value is not None]
        if not known:
            return 0.0
        return sum(known) / len(known)
"""
CONFIG = """\
from dataclasses import dataclass, field


@dataclass
class Training:
    seq_len: int = 2048
    compile_mode: str = "default"
    steps: int = 10


@dataclass
class Compile:
    enable: bool = False


@dataclass
class JobConfig:
    training: Training = field(default_factory=Training)
    compile: Compile = field(default_factory=Compile)
"""
RUN_MODULE = "def run(steps):\n    for step in range(steps):\n        print(step)\n    return steps\n"
USE_CLIP = "from torchtitan.utils import clip\n\nclip([1.0], 2.0)\n"


def only(items: list[Item]) -> Item:
    assert len(items) == 1, [(item.kind, item.upstream_symbol, item.what) for item in items]
    return items[0]


def broken(folder: Path, old: Files, new: Files, code: str, config: str = "") -> list[Item]:
    return graded(analysed(folder, old, new, {"torchtitan_npu/use.py": code}, config=config), Grade.P0)


def test_a_symbol_that_moved_to_another_module(tmp_path: Path) -> None:
    new: Files = {"utils.py": "x = 1\n", "distributed/utils.py": "import math\n\n\n" + CLIP}
    item = only(broken(tmp_path, {"utils.py": CLIP}, new, USE_CLIP))
    assert (item.kind, item.moved_to) == ("symbol-moved", "torchtitan.distributed.utils.clip")
    assert item.confidence >= 0.9
    assert item.rename is not None and item.rename.new == item.moved_to
    assert places(item) == [("torchtitan_npu/use.py", 1)]


def test_a_symbol_that_is_still_exported_at_the_old_place_breaks_nothing(tmp_path: Path) -> None:
    new: Files = {"utils.py": "from torchtitan.clipping import clip\n", "clipping.py": CLIP}
    assert broken(tmp_path, {"utils.py": CLIP}, new, USE_CLIP) == []


def test_a_module_that_became_a_package_that_exports_the_same_breaks_nothing(tmp_path: Path) -> None:
    new: Files = {"utils.py": None, "utils/__init__.py": "from .clipping import *\n", "utils/clipping.py": CLIP}
    assert broken(tmp_path, {"utils.py": CLIP}, new, USE_CLIP) == []


def test_a_module_that_became_a_package_that_exports_nothing(tmp_path: Path) -> None:
    new: Files = {"utils.py": None, "utils/__init__.py": "", "utils/clipping.py": CLIP}
    item = only(broken(tmp_path, {"utils.py": CLIP}, new, USE_CLIP))
    assert item.moved_to == "torchtitan.utils.clipping.clip"


def test_a_file_that_was_renamed_with_edits(tmp_path: Path) -> None:
    edited = (CLIP + METER).replace("1e-6", "1e-8").replace("-100", "-200")
    new: Files = {"utils.py": None, "numerics.py": edited}
    item = only(broken(tmp_path, {"utils.py": CLIP + METER}, new, USE_CLIP))
    assert item.moved_to == "torchtitan.numerics.clip"
    assert any("git" in note for note in item.notes)


def test_an_imported_module_that_was_renamed(tmp_path: Path) -> None:
    code = "import torchtitan.utils\n\ntorchtitan.utils.clip([1.0], 2.0)\n"
    item = only(broken(tmp_path, {"utils.py": CLIP}, {"utils.py": None, "numerics.py": CLIP}, code))
    assert (item.kind, item.moved_to) == ("module-moved", "torchtitan.numerics")
    assert places(item) == [("torchtitan_npu/use.py", 1)]
    assert ("torchtitan_npu/use.py", 3) in [(use.file, use.line) for use in item.cascade]


def test_a_function_that_became_a_method(tmp_path: Path) -> None:
    method = "class Clipper:\n" + "".join(f"    {line}\n" if line else "\n" for line in CLIP.splitlines())
    new: Files = {"utils.py": method.replace("(parameters", "(self, parameters")}
    item = only(broken(tmp_path, {"utils.py": CLIP}, new, USE_CLIP))
    assert item.moved_to == "torchtitan.utils.Clipper.clip"


def test_a_class_that_was_split(tmp_path: Path) -> None:
    head, _, mean = METER.partition("    def mean")
    new: Files = {"utils.py": head + "\n\nclass Statistics:\n    def mean" + mean}
    code = "from torchtitan.utils import Meter\n\nmeter = Meter('a')\nmeter.add(1)\nmeter.mean()\n"
    item = only(broken(tmp_path, {"utils.py": METER}, new, code))
    assert (item.kind, item.moved_to) == ("attribute-moved", "torchtitan.utils.Statistics.mean")
    assert places(item) == [("torchtitan_npu/use.py", 5)]


def test_a_symbol_under_another_name(tmp_path: Path) -> None:
    new: Files = {"utils.py": CLIP.replace("clip", "clip_norm").replace("1e-6", "1e-5")}
    item = only(broken(tmp_path, {"utils.py": CLIP}, new, USE_CLIP))
    assert item.moved_to == "torchtitan.utils.clip_norm"
    assert 0.5 < item.confidence < 0.97


def test_a_field_that_was_renamed_in_its_class_is_one_cause_for_reads_and_keywords(tmp_path: Path) -> None:
    code = """\
from torchtitan.config import JobConfig, Training

Training(seq_len=1)


def f(config: JobConfig):
    return config.training.seq_len
"""
    new: Files = {"config.py": CONFIG.replace("seq_len", "sequence_length")}
    item = only(broken(tmp_path, {"config.py": CONFIG}, new, code))
    assert (item.kind, item.moved_to) == ("field-moved", "torchtitan.config.Training.sequence_length")
    assert [line for _, line in places(item)] == [3, 7]
    use = item.downstream[1]
    assert code.splitlines()[6][use.column : use.end_column] == "seq_len"


def test_a_field_that_went_to_another_section(tmp_path: Path) -> None:
    new: Files = {
        "config.py": CONFIG.replace('    compile_mode: str = "default"\n', "").replace(
            "    enable: bool = False\n", '    enable: bool = False\n    compile_mode: str = "default"\n'
        )
    }
    code = """\
from torchtitan.config import JobConfig


def f(config: JobConfig):
    return config.training.compile_mode
"""
    item = only(broken(tmp_path, {"config.py": CONFIG}, new, code))
    assert (item.kind, item.moved_to) == ("field-moved", "torchtitan.config.Compile.compile_mode")


def test_a_section_class_under_another_name_is_known_by_its_field(tmp_path: Path) -> None:
    new: Files = {
        "config.py": CONFIG.replace("class Compile", "class CompileConfig")
        .replace("compile: Compile", "compile: CompileConfig")
        .replace("=Compile)", "=CompileConfig)")
        .replace("enable: bool = False", "enable: bool = False\n    backend: str = 'inductor'\n    level: int = 3")
    }
    code = "from torchtitan.config import Compile\n\nCompile(enable=True)\n"
    item = only(broken(tmp_path, {"config.py": CONFIG}, new, code))
    assert item.moved_to == "torchtitan.config.CompileConfig"


def test_a_nested_config_is_never_matched_with_any_other_config(tmp_path: Path) -> None:
    part = """\
class {}:
    class Config:
        size: int = 1

    def __init__(self, config):
        self.config = config
"""
    old: Files = {"parts.py": part.format("Norm") + "\n\n" + part.format("Rope")}
    new: Files = {"parts.py": "class Norm:\n    pass\n\n\n" + part.format("Rope"), "more.py": part.format("Linear")}
    item = only(broken(tmp_path, old, new, "from torchtitan.parts import Norm\n\nNorm.Config()\n"))
    assert (item.kind, item.moved_to) == ("attribute-removed", "")


def test_a_tiny_property_is_not_matched_everywhere(tmp_path: Path) -> None:
    tiny = "class {}:\n    @property\n    def tp(self):\n        return 1\n"
    old: Files = {"dims.py": tiny.format("Dims")}
    new: Files = {"dims.py": "class Dims:\n    pass\n", "other.py": tiny.format("Other")}
    item = only(broken(tmp_path, old, new, "from torchtitan.dims import Dims\n\nDims().tp\n"))
    assert (item.kind, item.moved_to) == ("attribute-removed", "")


def test_a_declared_successor_is_followed(tmp_path: Path) -> None:
    old: Files = {"config.py": CONFIG}
    new: Files = {
        "config.py": "x = 1\n",
        "trainer.py": CONFIG.replace("JobConfig", "Everything").replace("steps", "count"),
    }
    code = """\
from torchtitan.config import JobConfig


def f(config: JobConfig):
    return config.training.steps
"""
    config = '\n[tool.torchtitan-sync.replaced]\n"torchtitan.config.JobConfig" = "torchtitan.trainer.Everything"\n'
    items = broken(tmp_path, old, new, code, config)
    job = next(item for item in items if item.upstream_symbol == "torchtitan.config.JobConfig")
    assert (job.moved_to, job.confidence) == ("torchtitan.trainer.Everything", 1.0)


def test_a_call_behind_a_move_is_checked_against_the_moved_function(tmp_path: Path) -> None:
    moved = CLIP.replace(", *, foreach=None", ", *, kind").replace('"""Clip."""', "print(kind)")
    new: Files = {"utils.py": "x = 1\n", "clipping.py": moved}
    code = "from torchtitan.utils import clip\n\nclip(\n    [1.0],\n    2.0,\n    foreach=True,\n)\n"
    items = {item.kind: item for item in broken(tmp_path, {"utils.py": CLIP}, new, code)}
    assert items["symbol-moved"].moved_to == "torchtitan.clipping.clip"
    assert places(items["parameter-removed"]) == [("torchtitan_npu/use.py", 6)]
    assert items["parameter-removed"].follows == "torchtitan.utils.clip"
    assert items["parameter-required"].follows == "torchtitan.utils.clip"


def test_every_bad_keyword_of_a_call_has_its_own_line(tmp_path: Path) -> None:
    old: Files = {"utils.py": "def f(a, *, alpha=1, beta=2):\n    return a\n"}
    code = "from torchtitan.utils import f\n\nf(\n    1,\n    alpha=2,\n    beta=3,\n)\n"
    items = broken(tmp_path, old, {"utils.py": "def f(a):\n    return a\n"}, code)
    assert sorted((item.upstream_symbol, places(item)[0][1]) for item in items) == [
        ("torchtitan.utils.f.alpha", 5),
        ("torchtitan.utils.f.beta", 6),
    ]


def test_a_removed_class_is_one_item_and_what_hangs_on_it_is_folded(tmp_path: Path) -> None:
    code = """\
from torchtitan.utils import Meter


class Mine(Meter):
    def add(self, value):
        return super().add(value)


def f(meter: Meter):
    meter.add(1)
    return meter.mean()
"""
    analysis = analysed(tmp_path, {"utils.py": METER}, {"utils.py": "x = 1\n"}, {"torchtitan_npu/use.py": code})
    item = only(graded(analysis, Grade.P0))
    assert (item.kind, places(item)) == ("symbol-removed", [("torchtitan_npu/use.py", 1)])
    assert {use.line for use in item.cascade} >= {5, 6, 10, 11}


def test_an_import_through_the_plugin_itself_is_folded_into_the_import_that_is_to_be_mended(tmp_path: Path) -> None:
    files: Files = {
        "torchtitan_npu/first.py": "from torchtitan.utils import clip\n",
        "torchtitan_npu/second.py": "from torchtitan_npu.first import clip\n",
    }
    analysis = analysed(tmp_path, {"utils.py": CLIP}, {"utils.py": "x = 1\n"}, files)
    item = only(graded(analysis, Grade.P0))
    assert places(item) == [("torchtitan_npu/first.py", 1)]
    assert [(use.file, use.line) for use in item.cascade] == [("torchtitan_npu/second.py", 1)]


def test_what_did_not_resolve_before_is_not_upstreams_doing(tmp_path: Path) -> None:
    code = "from torchtitan.utils import clip, no_such_thing\nimport torchtitan.nowhere\n"
    new: Files = {"utils.py": CLIP + "\nx = 1\n"}
    analysis = analysed(tmp_path, {"utils.py": CLIP}, new, {"torchtitan_npu/use.py": code})
    assert graded(analysis, Grade.P0) == []
    assert [(use.line, use.text) for use in analysis.unresolved_before] == [
        (1, code.splitlines()[0]),
        (2, code.splitlines()[1]),
    ]


def test_moved_symbols_are_in_the_table_of_moves(tmp_path: Path) -> None:
    new: Files = {"utils.py": "x = 1\n", "clipping.py": CLIP}
    analysis = analysed(tmp_path, {"utils.py": CLIP}, new, {"torchtitan_npu/use.py": USE_CLIP})
    assert [item.moved_to for item in analysis.moves] == ["torchtitan.clipping.clip"]
    assert of_kind(analysis, "symbol-moved") == analysis.moves


def test_a_namesake_that_moved_itself_is_not_where_a_function_went(tmp_path: Path) -> None:
    """Two models have a function of the same name. One went along with its module, the other was merged elsewhere."""
    other = CLIP.replace("factor = limit / (total**0.5 + 1e-6)", "factor = limit")
    old: Files = {"llama/infra/clip.py": CLIP, "flux/infra/clip.py": other, "dist.py": "x = 1\n"}
    new: Files = {
        "llama/infra/clip.py": None,
        "flux/infra/clip.py": None,
        "flux/clip.py": other,
        "dist.py": "x = 1\n\n\n" + CLIP.replace("def clip", "def clip_all"),
    }
    code = {"torchtitan_npu/use.py": USE_CLIP.replace("torchtitan.utils", "torchtitan.llama.infra.clip")}
    (item,) = graded(analysed(tmp_path, old, new, code), Grade.P0)
    assert item.moved_to == "torchtitan.dist.clip_all"


def test_a_module_named_in_a_string_is_found_in_what_its_folder_became(tmp_path: Path) -> None:
    """`m/infra/run.py` is `m/run.py` now: the string names a module that is there under another name only."""
    code = 'import importlib\n\nrun = importlib.import_module("torchtitan.m.infra.run")\n'
    new: Files = {"m/infra/run.py": None, "m/infra/plan.py": None, "m/run.py": RUN_MODULE, "m/plan.py": RUN_MODULE}
    old: Files = {"m/__init__.py": "", "m/infra/run.py": RUN_MODULE, "m/infra/plan.py": RUN_MODULE}
    (item,) = graded(analysed(tmp_path, old, new, {"torchtitan_npu/use.py": code}), Grade.P0)
    assert (item.kind, item.moved_to, places(item)) == (
        "module-moved",
        "torchtitan.m.run",
        [("torchtitan_npu/use.py", 3)],
    )


def test_a_new_definition_of_a_name_that_had_several_is_not_sure_to_be_the_successor(tmp_path: Path) -> None:
    other = "def clip(values, low, high):\n    for value in values:\n        yield max(low, min(high, value))\n"
    old: Files = {"utils.py": CLIP, "vision.py": other}
    new: Files = {"utils.py": "x = 1\n", "text.py": "def clip(text):\n    words = text.split()\n    return words[:9]\n"}
    (item, *_) = graded(analysed(tmp_path, old, new, {"torchtitan_npu/use.py": USE_CLIP}), Grade.P0)
    assert item.upstream_symbol == "torchtitan.utils.clip"
    assert not item.moved_to or item.confidence < 0.8
