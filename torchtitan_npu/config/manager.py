"""torchtitan's ConfigManager, giving every config the NPU fields and defaults that exist on this machine.

Defaults are changed before the command line is parsed: a flag the user gives always wins.
"""

import dataclasses
import sys
from typing import Any

from torchtitan.config import ConfigManager
from torchtitan.config.override import derive
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.tools.logging import logger
from torchtitan.trainer import Trainer

from torchtitan_npu import unserved
from torchtitan_npu.config import presets
from torchtitan_npu.data import dataset
from torchtitan_npu.data.layout import PreparedData
from torchtitan_npu.errors import UserError
from torchtitan_npu.train import NPUTrainer


class NPUConfigManager(ConfigManager):
    def __init__(self, prepared: PreparedData) -> None:
        super().__init__()
        self.prepared = prepared

    def parse_args(self, args: list[str] | None = None) -> Any:
        config = super().parse_args(args)
        presets.apply(config)
        return config

    def _load_config(self, args: list[str]) -> tuple[object, list[str]]:
        try:
            loaded, rest = super()._load_config(args)
        except (ValueError, ImportError) as error:
            fix = unserved.what_helps(str(error)) or "torchtitan-npu configs lists every module and config"
            raise UserError(str(error), fix) from error
        if type(loaded) is not Trainer.Config:
            raise UserError(
                f"this config builds {type(loaded).__qualname__}, a trainer of its own, not torchtitan's Trainer",
                "choose a language model's config; torchtitan-npu configs lists them",
            )
        config = derive(loaded, NPUTrainer.Config)
        # Graph capture is a CUDA feature upstream turns on by default.
        config.training.disable_cuda_graphs = True
        config.metrics.disable_color_printing = not sys.stdout.isatty()
        self._use_prepared(config, rest)
        return config, rest

    def _use_prepared(self, config: NPUTrainer.Config, args: list[str]) -> None:
        """Fill in tokenizer, training and validation text where no flag names them."""
        if not self.prepared.complete():
            return
        used = []
        if not _names(args, "hf_assets_path"):
            config.hf_assets_path = str(self.prepared.tokenizer)
            used.append("tokenizer")
        if isinstance(config.dataloader, HuggingFaceTextDataLoader.Config) and not _names(args, "dataloader.dataset"):
            config.dataloader = _pointed_at(config.dataloader, self.prepared.train)
            used.append("training text")
        validation = config.validator.dataloader
        if isinstance(validation, HuggingFaceTextDataLoader.Config) and not _names(args, "validator.dataloader"):
            config.validator.dataloader = _pointed_at(validation, self.prepared.held_out)
            used.append("validation text")
        if used:
            logger.info(f"Using {', '.join(used)} from {self.prepared.root} (made by torchtitan-npu prepare)")


def _pointed_at(loader: HuggingFaceTextDataLoader.Config, path: Any) -> HuggingFaceTextDataLoader.Config:
    return dataclasses.replace(loader, dataset=dataset.NAME, dataset_path=str(path))


def _names(args: list[str], flag: str) -> bool:
    """Whether a flag, or one below it, was given; tyro takes dashes for underscores."""
    return any(argument.lstrip("-").replace("-", "_").startswith(flag) for argument in args if argument[:2] == "--")
