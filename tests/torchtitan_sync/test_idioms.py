"""Every way in which a plugin refers to upstream: each is found, at its line, when upstream changes."""

import textwrap
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.torchtitan_sync.ranges import Files, analysed
from torchtitan_sync.model import Grade

LOSS = """\
def mse(pred, label, *, weight=1.0):
    total = 0.0
    for a, b in zip(pred, label):
        total += weight * (a - b) ** 2
    return total / len(pred)


def scale(value):
    return value * 2
"""
CONFIG = """\
from dataclasses import dataclass, field


@dataclass
class Training:
    seq_len: int = 128
    steps: int = 10


@dataclass
class JobConfig:
    training: Training = field(default_factory=Training)
    name: str = "job"
"""
NO_SEQ_LEN = CONFIG.replace("    seq_len: int = 128\n", "")
TRAINER = """\
from torchtitan.dims import ParallelDims


class Trainer:
    parallel_dims: ParallelDims

    def __init__(self, config):
        self.parallel_dims = dims = self.init_distributed()
        self.step = 0

    def init_distributed(self):
        return ParallelDims(1)

    def train(self):
        return self.train_step(1)

    def train_step(self, batch):
        return batch
"""
DIMS = """\
class ParallelDims:
    def __init__(self, dp):
        self.dp = dp

    @property
    def world_mesh(self):
        return [self.dp]
"""


@dataclass(frozen=True)
class Case:
    """The plugin's file, whose line with `# <-` has to be found."""

    name: str
    old: Files
    new: Files
    code: str
    kind: str
    symbol: str
    file: str = "torchtitan_npu/use.py"
    grade: Grade = Grade.P0
    others: Files = field(default_factory=dict)


GONE: Files = {"loss.py": "def scale(value):\n    return value * 2\n"}

SPEC = """\
from dataclasses import dataclass
from typing import Callable


@dataclass
class Spec:
    parallelize_fn: Callable
"""
REGISTRY = """\
_supported_models = frozenset(["llama3", "llama4"])


def get_spec(name):
    if name in _supported_models:
        return name
    raise ValueError(name)
"""
MESH = """\
class Dims:
    def build(self):
        return init(("pp", "dp_cp", "tp"))

    @property
    def world_mesh(self):
        return self.build()

    def get_mesh(self, name):
        return self.build()[name]
"""
RUN_CONFIG = """\
from torchtitan.config import JobConfig


def go(config: JobConfig):
    return config


go(JobConfig())
"""

CASES = [
    Case(
        "import as",
        {"loss.py": LOSS},
        GONE,
        """\
        import torchtitan.loss as loss

        def f():
            return loss.mse([1], [2])  # <-
        """,
        "symbol-removed",
        "torchtitan.loss.mse",
    ),
    Case(
        "from import",
        {"loss.py": LOSS},
        GONE,
        "from torchtitan.loss import mse  # <-\n",
        "symbol-removed",
        "torchtitan.loss.mse",
    ),
    Case(
        "relative names of a re-export",
        {"loss.py": LOSS, "components/__init__.py": "from ..loss import mse\n"},
        {"components/__init__.py": "", **GONE},
        "from torchtitan.components import mse  # <-\n",
        "symbol-removed",
        "torchtitan.loss.mse",
    ),
    Case(
        "folder without __init__",
        {"tools/log.py": "def init():\n    pass\n"},
        {"tools/log.py": "level = 1\n"},
        "from torchtitan.tools.log import init  # <-\n",
        "symbol-removed",
        "torchtitan.tools.log.init",
    ),
    Case(
        "private name outside __all__",
        {"loss.py": "__all__ = ['mse']\n" + LOSS + "\n\ndef _apply(x):\n    return x\n"},
        {"loss.py": "__all__ = ['mse']\n" + LOSS},
        "from torchtitan.loss import _apply  # <-\n",
        "symbol-removed",
        "torchtitan.loss._apply",
    ),
    Case(
        "removed module",
        {"loss.py": LOSS, "ft.py": "x = 1\n"},
        {"ft.py": None},
        "import torchtitan.ft  # <-\n",
        "module-removed",
        "torchtitan.ft",
    ),
    Case(
        "getattr string",
        {"loss.py": LOSS},
        GONE,
        """\
        import torchtitan.loss

        f = getattr(torchtitan.loss, "mse")  # <-
        """,
        "symbol-removed",
        "torchtitan.loss.mse",
    ),
    Case(
        "getattr with a default is handled by the plugin",
        {"loss.py": LOSS},
        GONE,
        """\
        import torchtitan.loss

        f = getattr(torchtitan.loss, "mse", None)  # <-
        """,
        "guarded-missing",
        "torchtitan.loss.mse",
        grade=Grade.P1,
    ),
    Case(
        "import under try",
        {"loss.py": LOSS},
        GONE,
        """\
        try:
            from torchtitan.loss import mse  # <-
        except ImportError:
            mse = None
        """,
        "guarded-missing",
        "torchtitan.loss.mse",
        grade=Grade.P1,
    ),
    Case(
        "TYPE_CHECKING import",
        {"loss.py": LOSS},
        GONE,
        """\
        from __future__ import annotations
        from typing import TYPE_CHECKING

        if TYPE_CHECKING:
            from torchtitan.loss import mse  # <-
        """,
        "typing-missing",
        "torchtitan.loss.mse",
        grade=Grade.P2,
    ),
    Case(
        "dotted string of mock.patch",
        {"loss.py": LOSS},
        GONE,
        """\
        from unittest import mock

        def test():
            with mock.patch("torchtitan.loss.mse"):  # <-
                pass
        """,
        "symbol-removed",
        "torchtitan.loss.mse",
    ),
    Case(
        "dotted string in a table",
        {"loss.py": LOSS},
        GONE,
        """\
        TARGETS = {
            "a": "torchtitan.loss.mse",  # <-
        }
        """,
        "symbol-removed",
        "torchtitan.loss.mse",
    ),
    Case(
        "setattr of a module's function",
        {"loss.py": LOSS, "train.py": "from torchtitan import loss\n\n\ndef f():\n    return loss.mse([1], [1])\n"},
        GONE,
        """\
        import torchtitan.loss

        def mine(pred, label, *, weight=1.0):
            return 0

        setattr(torchtitan.loss, "mse", mine)  # <-
        """,
        "silent",
        "torchtitan.loss.mse",
    ),
    Case(
        "assignment to a module's function",
        {"loss.py": LOSS, "train.py": "from torchtitan import loss\n\n\ndef f():\n    return loss.mse([1], [1])\n"},
        GONE,
        """\
        from torchtitan import loss

        loss.mse = lambda *args: 0  # <-
        """,
        "silent",
        "torchtitan.loss.mse",
    ),
    Case(
        "attribute chain from an annotation",
        {"config.py": CONFIG},
        {"config.py": NO_SEQ_LEN},
        """\
        from torchtitan.config import JobConfig

        def f(config: JobConfig) -> int:
            return config.training.seq_len  # <-
        """,
        "field-removed",
        "torchtitan.config.Training.seq_len",
    ),
    Case(
        "attribute chain through an instance attribute of upstream",
        {"dims.py": DIMS, "trainer.py": TRAINER},
        {"dims.py": DIMS.replace("world_mesh", "meshes").replace("[self.dp]", "dict(dp=self.dp, pp=1, tp=2)")},
        """\
        from torchtitan.trainer import Trainer

        def f(trainer: Trainer):
            return trainer.parallel_dims.world_mesh  # <-
        """,
        "attribute-removed",
        "torchtitan.dims.ParallelDims.world_mesh",
    ),
    Case(
        "attribute of an object that was constructed",
        {"dims.py": DIMS},
        {"dims.py": DIMS.replace("self.dp", "self.degree")},
        """\
        from torchtitan.dims import ParallelDims

        dims = ParallelDims(1)
        print(dims.dp)  # <-
        """,
        "attribute-moved",
        "torchtitan.dims.ParallelDims.dp",
    ),
    Case(
        "enum member that was renamed",
        {"state.py": "from enum import Enum\n\n\nclass State(Enum):\n    IDLE = 1\n    BUSY = 2\n"},
        {"state.py": "from enum import Enum\n\n\nclass State(Enum):\n    IDLE = 1\n    RUNNING = 2\n"},
        """\
        from torchtitan.state import State

        def f(state):
            return state is State.BUSY  # <-
        """,
        "attribute-moved",
        "torchtitan.state.State.BUSY",
    ),
    Case(
        "keyword of a dataclass's constructor",
        {"config.py": CONFIG},
        {"config.py": NO_SEQ_LEN},
        """\
        from torchtitan.config import Training

        training = Training(
            steps=1,
            seq_len=4,  # <-
        )
        """,
        "field-removed",
        "torchtitan.config.Training.seq_len",
    ),
    Case(
        "inherited field of a nested Config",
        {
            "config.py": CONFIG
            + "\n\nclass Part:\n    @dataclass(kw_only=True)\n    class Config(Training):\n        x: int = 1\n"
        },
        {
            "config.py": NO_SEQ_LEN
            + "\n\nclass Part:\n    @dataclass(kw_only=True)\n    class Config(Training):\n        x: int = 1\n"
        },
        """\
        from torchtitan.config import Part

        config = Part.Config(
            seq_len=1,  # <-
        )
        """,
        "field-removed",
        "torchtitan.config.Training.seq_len",
    ),
    Case(
        "dataclasses.replace",
        {"config.py": CONFIG},
        {"config.py": NO_SEQ_LEN},
        """\
        import dataclasses

        from torchtitan.config import Training

        def f(training: Training):
            return dataclasses.replace(
                training,
                seq_len=2,  # <-
            )
        """,
        "field-removed",
        "torchtitan.config.Training.seq_len",
    ),
    Case(
        "keyword of a function",
        {"loss.py": LOSS},
        {"loss.py": LOSS.replace(", *, weight=1.0", "").replace("weight * ", "")},
        """\
        from torchtitan.loss import mse

        mse(
            [1],
            [2],
            weight=3,  # <-
        )
        """,
        "parameter-removed",
        "torchtitan.loss.mse.weight",
    ),
    Case(
        "keyword through functools.partial",
        {"loss.py": LOSS},
        {"loss.py": LOSS.replace(", *, weight=1.0", "").replace("weight * ", "")},
        """\
        import functools

        from torchtitan.loss import mse

        half = functools.partial(mse, weight=0.5)  # <-
        """,
        "parameter-removed",
        "torchtitan.loss.mse.weight",
    ),
    Case(
        "newly required parameter",
        {"loss.py": LOSS},
        {"loss.py": LOSS.replace("(pred, label, *", "(pred, label, mask, *")},
        """\
        from torchtitan.loss import mse

        mse([1], [2])  # <-
        """,
        "parameter-required",
        "torchtitan.loss.mse.mask",
    ),
    Case(
        "changed positional order",
        {"loss.py": LOSS},
        {"loss.py": LOSS.replace("(pred, label", "(label, pred")},
        """\
        from torchtitan.loss import mse

        mse([1], [2])  # <-
        """,
        "parameter-order",
        "torchtitan.loss.mse",
    ),
    Case(
        "subclass that overrides a method which is gone",
        {"dims.py": DIMS, "trainer.py": TRAINER},
        {
            "trainer.py": TRAINER.replace("def train_step(self, batch)", "def advance(self)").replace(
                "self.train_step(1)", "0"
            )
        },
        """\
        from torchtitan.trainer import Trainer

        class Mine(Trainer):
            def train_step(self, batch):  # <-
                return batch + 1
        """,
        "silent",
        "torchtitan.trainer.Trainer.train_step",
    ),
    Case(
        "override that upstream calls with a new keyword",
        {"dims.py": DIMS, "trainer.py": TRAINER},
        {
            "trainer.py": TRAINER.replace("(self, batch)", "(self, batch, last=False)").replace(
                "step(1)", "step(1, last=True)"
            )
        },
        """\
        from torchtitan.trainer import Trainer

        class Mine(Trainer):
            def train_step(self, batch):  # <-
                return batch + 1
        """,
        "override-signature",
        "torchtitan.trainer.Trainer.train_step",
    ),
    Case(
        "super() call of a method that takes less",
        {"dims.py": DIMS, "trainer.py": TRAINER},
        {
            "trainer.py": TRAINER.replace("(self, batch)", "(self)")
            .replace("step(1)", "step()")
            .replace("return batch", "return 0")
        },
        """\
        from torchtitan.trainer import Trainer

        class Mine(Trainer):
            def other(self, batch):
                return super().train_step(batch)  # <-
        """,
        "parameter-removed",
        "torchtitan.trainer.Trainer.train_step",
    ),
    Case(
        "decorator",
        {"hooks.py": "def register(name):\n    return lambda function: function\n"},
        {"hooks.py": "NAMES = []\n"},
        """\
        from torchtitan import hooks

        @hooks.register("a")  # <-
        def f():
            pass
        """,
        "symbol-removed",
        "torchtitan.hooks.register",
    ),
    Case(
        "key of a registry",
        {"models.py": 'configs = {"debug": 1, "8B": 2}\n'},
        {"models.py": 'configs = {"debug": 1}\n'},
        """\
        from torchtitan.models import configs

        big = configs["8B"]  # <-
        """,
        "key-removed",
        "torchtitan.models.configs.8B",
    ),
    Case(
        "name in a registry that a function looks into",
        {"models.py": REGISTRY},
        {"models.py": REGISTRY.replace(', "llama4"', "")},
        """\
        from torchtitan.models import get_spec

        spec = get_spec("llama4")  # <-
        """,
        "key-removed",
        "torchtitan.models._supported_models.llama4",
    ),
    Case(
        "dimension of a mesh that is no longer named",
        {"dims.py": MESH},
        {"dims.py": MESH.replace('"dp_cp", ', "")},
        """\
        from torchtitan.dims import Dims

        def f(dims: Dims):
            return dims.world_mesh["dp_cp"]  # <-
        """,
        "meaning",
        "torchtitan.dims.Dims['dp_cp']",
        grade=Grade.P2,
    ),
    Case(
        "dimension that a method is asked for",
        {"dims.py": MESH},
        {"dims.py": MESH.replace('"dp_cp", ', "")},
        """\
        from torchtitan.dims import Dims

        def f(dims: Dims):
            return dims.get_mesh("dp_cp")  # <-
        """,
        "meaning",
        "torchtitan.dims.Dims['dp_cp']",
        grade=Grade.P2,
    ),
    Case(
        "model that a script runs",
        {"models/llama4/model.py": "x = 1\n", "models/llama3/model.py": "x = 1\n"},
        {"models/llama4/model.py": None},
        "torchrun -m train --module llama4 # <-\n",
        "key-removed",
        "torchtitan.models.llama4",
        file="scripts/run.sh",
    ),
    Case(
        "model that a TOML file names",
        {"models/llama4/model.py": "x = 1\n", "models/llama3/model.py": "x = 1\n"},
        {"models/llama4/model.py": None},
        '[model]\nname = "llama4" # <-\n',
        "key-removed",
        "torchtitan.models.llama4",
        file="torchtitan_npu/debug.toml",
    ),
    Case(
        "attribute of a class that was imported under another name",
        {"dims.py": DIMS},
        {"dims.py": DIMS.replace("world_mesh", "mesh_of_world_and_all").replace("[self.dp]", "1")},
        """\
        from torchtitan.dims import ParallelDims as Dims

        class Mine(Dims):
            def f(self):
                return self.world_mesh  # <-
        """,
        "attribute-moved",
        "torchtitan.dims.ParallelDims.world_mesh",
    ),
    Case(
        "isinstance narrows",
        {"dims.py": DIMS},
        {"dims.py": DIMS.replace("self.dp", "self.degree")},
        """\
        from torchtitan.dims import ParallelDims

        def f(thing):
            if isinstance(thing, ParallelDims):
                return thing.dp  # <-
        """,
        "attribute-moved",
        "torchtitan.dims.ParallelDims.dp",
    ),
    Case(
        "parameters of a patch have the target's types",
        {
            "config.py": CONFIG,
            "run.py": RUN_CONFIG,
        },
        {"config.py": NO_SEQ_LEN},
        """\
        from torchtitan import run

        def mine(config):
            return config.training.seq_len  # <-

        run.go = mine
        """,
        "field-removed",
        "torchtitan.config.Training.seq_len",
    ),
    Case(
        "callback that upstream calls with a new keyword",
        {
            "spec.py": SPEC,
            "run.py": "def go(spec, model):\n    return spec.parallelize_fn(model)\n",
        },
        {"run.py": "def go(spec, model):\n    return spec.parallelize_fn(model, dump_folder='x')\n"},
        """\
        from torchtitan.spec import Spec

        def parallelize(model):  # <-
            return model

        spec = Spec(parallelize_fn=parallelize)
        """,
        "callback-signature",
        "torchtitan.spec.Spec.parallelize_fn",
    ),
    Case(
        "patched function that upstream calls with a new keyword",
        {"loss.py": LOSS, "run.py": "from torchtitan import loss\n\n\ndef go():\n    return loss.mse([1], [2])\n"},
        {
            "loss.py": LOSS.replace("weight=1.0", "weight=1.0, fast=False"),
            "run.py": "from torchtitan import loss\n\n\ndef go():\n    return loss.mse([1], [2], fast=True)\n",
        },
        """\
        from torchtitan import loss

        def mine(pred, label, *, weight=1.0):
            return 0

        loss.mse = mine  # <-
        """,
        "patch-signature",
        "torchtitan.loss.mse",
    ),
    Case(
        "functools.wraps around a function whose code changed",
        {"loss.py": LOSS},
        {"loss.py": LOSS.replace("/ len(pred)", "")},
        """\
        import functools

        from torchtitan.loss import mse

        @functools.wraps(mse)  # <-
        def mine(*args):
            return 0
        """,
        "wrapped-changed",
        "torchtitan.loss.mse",
        grade=Grade.P1,
    ),
    Case(
        "sys.modules injection of a module that is gone",
        {"fused.py": "def f():\n    return 1\n"},
        {"fused.py": None},
        """\
        import sys

        import torchtitan_npu.mine as mine

        sys.modules["torchtitan.fused"] = mine  # <-
        """,
        "silent",
        "torchtitan.fused",
        others={"torchtitan_npu/mine.py": "x = 1\n"},
    ),
    Case(
        "command-line flag in a script",
        {"config/__init__.py": CONFIG},
        {"config/__init__.py": NO_SEQ_LEN},
        "#!/bin/sh\ntrain --training.steps 3 \\\n  --training.seq_len 64 # <-\n",
        "field-removed",
        "torchtitan.config.Training.seq_len",
        file="scripts/run.sh",
    ),
    Case(
        "command-line flag in a document, with dashes",
        {"config/__init__.py": CONFIG},
        {"config/__init__.py": NO_SEQ_LEN},
        "Use `train --training.seq-len 64`. # <-\n",
        "field-removed",
        "torchtitan.config.Training.seq_len",
        file="docs/use.md",
    ),
    Case(
        "TOML key",
        {"config/__init__.py": CONFIG},
        {"config/__init__.py": NO_SEQ_LEN},
        "[training]\nsteps = 2\nseq_len = 64 # <-\n",
        "field-removed",
        "torchtitan.config.Training.seq_len",
        file="torchtitan_npu/train_configs/debug.toml",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_found_at_its_line(case: Case, tmp_path: Path) -> None:
    code = textwrap.dedent(case.code)
    line = next(number for number, text in enumerate(code.splitlines(), 1) if "# <-" in text)
    analysis = analysed(tmp_path, case.old, case.new, {case.file: code, **case.others})
    found = [
        item
        for item in analysis.items
        if item.grade <= Grade.P2 and (case.file, line) in {(u.file, u.line) for u in item.downstream}
    ]
    assert (case.kind, case.symbol) in {(item.kind, item.upstream_symbol) for item in found}
    item = next(item for item in found if item.kind == case.kind)
    assert item.grade == case.grade
    assert [commit.pr for commit in item.commits] == [7]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_unchanged_upstream_breaks_nothing(case: Case, tmp_path: Path) -> None:
    analysis = analysed(tmp_path, case.old, {"unrelated.py": "x = 1\n"}, {case.file: case.code, **case.others})
    assert [item.upstream_symbol for item in analysis.items if item.grade <= Grade.P2] == []
