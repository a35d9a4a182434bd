"""A generated upstream that only moves and renames, and a plugin that uses it through every idiom that can follow."""

from pathlib import Path

from tests.torchtitan_sync.repositories import Repository, plugin

Files = dict[str, str | bytes | None]

TOOLS = '''\
"""Tools."""

from dataclasses import dataclass, field


def clip_norm(parameters, max_norm, *, foreach=None):
    """Clip the norm of gradients."""
    total = 0.0
    for parameter in parameters:
        total += abs(parameter) ** 2
    scale = max_norm / (total**0.5 + 1e-6)
    return [parameter * min(scale, 1.0) for parameter in parameters]


class Timer:
    """Measures."""

    unit = "s"

    def __init__(self, name: str) -> None:
        self.name = name
        self.started = 0

    def start(self) -> None:
        self.started += 1

    def stop(self) -> int:
        self.started -= 1
        return self.started
'''

CONFIG = '''\
"""Configuration."""

from dataclasses import dataclass, field


@dataclass
class Training:
    seq_len: int = 128
    steps: int = 10
    clip: float = 1.0


@dataclass
class JobConfig:
    training: Training = field(default_factory=Training)
    dump_folder: str = "out"
'''

TRAIN = '''\
"""Training."""

from torchtitan.components.tools import Timer, clip_norm
from torchtitan.config import JobConfig


class Trainer:
    def __init__(self, config: JobConfig) -> None:
        self.config = config
        self.timer = Timer("step")

    def train_step(self, batch):
        self.timer.start()
        values = clip_norm(batch, self.config.training.clip)
        self.timer.stop()
        return values
'''

ARGS = "    dim: int = 16\n    n_layers: int = 2\n    n_heads: int = 4\n"

BEFORE: Files = {
    "torchtitan/__init__.py": "",
    "torchtitan/components/tools.py": TOOLS,
    "torchtitan/config/__init__.py": "from torchtitan.config.job_config import JobConfig, Training\n",
    "torchtitan/config/job_config.py": CONFIG,
    "torchtitan/train.py": TRAIN,
    "torchtitan/models/llama/args.py": "class ModelArgs:\n" + ARGS,
}

# A file moves with edits, a symbol between modules, a module becomes a package; a class, a function, a parameter, a
# field and an attribute get new names.
AFTER: Files = {
    "torchtitan/components/tools.py": None,
    "torchtitan/tools/timing.py": TOOLS[: TOOLS.index("def clip_norm")] + TOOLS[TOOLS.index("class Timer") :],
    "torchtitan/distributed/clipping.py": "def clip_grad_norm"
    + TOOLS[TOOLS.index("def clip_norm") + len("def clip_norm") : TOOLS.index("class Timer")].rstrip()
    + "\n",
    "torchtitan/config/job_config.py": CONFIG.replace("seq_len", "sequence_length"),
    "torchtitan/train.py": None,
    "torchtitan/train/__init__.py": "from torchtitan.train.trainer import Trainer\n",
    "torchtitan/train/trainer.py": TRAIN.replace(
        "from torchtitan.components.tools import Timer, clip_norm",
        "from torchtitan.distributed.clipping import clip_grad_norm\nfrom torchtitan.tools.timing import Timer",
    ).replace("clip_norm(batch", "clip_grad_norm(batch"),
    "torchtitan/models/llama/args.py": None,
    "torchtitan/models/llama/model.py": ("class LlamaArgs:\n" + ARGS),
}

PLUGIN: Files = {
    "torchtitan_npu/converters.py": '''\
"""Uses upstream's tools."""

import torchtitan.components.tools as tools  # the module
from torchtitan.components.tools import (
    Timer,  # measures
    clip_norm,
)
from torchtitan.config import JobConfig


def convert(config: JobConfig) -> list:
    timer = Timer(name="convert")
    timer.start()
    print(tools.Timer.unit, config.training.seq_len)  # seq_len
    return clip_norm([1.0], max_norm=config.training.clip)
''',
    "torchtitan_npu/patches.py": """\
import torchtitan.components.tools


def apply() -> None:
    torchtitan.components.tools.Timer.stop = lambda self: 0
""",
    "torchtitan_npu/models.py": b"from torchtitan.models.llama.args import ModelArgs\r\n\r\n\r\n"
    b"class NpuArgs(ModelArgs):  # ours\r\n    fused: bool = True\r\n",
    "torchtitan_npu/train.py": """\
from torchtitan.train import Trainer


class NpuTrainer(Trainer):
    def train_step(self, batch):
        return super().train_step(batch)
""",
    "torchtitan_npu/configs/debug.toml": b"[training]\r\nseq_len = 64  # short\r\nsteps = 2\r\n",
    "scripts/run.sh": "torchrun -m torchtitan.train --training.seq_len 64 --training.steps 2  # seq_len\n",
    "tests/test_timer.py": """\
from unittest import mock


def test_timer() -> None:
    with mock.patch("torchtitan.components.tools.Timer.start") as start:
        assert not start.called
""",
}


def build(tmp_path: Path) -> tuple[Repository, Repository]:
    """The plugin, synced to the first commit, and its upstream at the second."""
    upstream = Repository(tmp_path / "upstream")
    old = upstream.commit(dict(BEFORE), "Before (#1)")
    upstream.commit(dict(AFTER), "Move and rename (#2)")
    return plugin(tmp_path / "plugin", str(upstream.path), old, dict(PLUGIN)), upstream
