"""torchtitan's Trainer with what an NPU run adds: the device's settings before, the summary after."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torchtitan.tools.logging import logger
from torchtitan.trainer import Trainer

from torchtitan_npu import finite, gradients, launches, summary
from torchtitan_npu.config.npu import NPUConfig
from torchtitan_npu.metrics import NPUMetricsProcessor, loss_rank

# The step whose launches are counted: the first ones make optimizer state and caches.
_COUNTED_STEP = 3


class NPUTrainer(Trainer):
    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        npu: NPUConfig = field(default_factory=NPUConfig)

    metrics_processor: NPUMetricsProcessor

    def __init__(self, config: Config) -> None:
        torch.npu.matmul.allow_hf32 = config.npu.hf32
        if config.npu.memory_fraction < 1:
            torch.npu.set_per_process_memory_fraction(config.npu.memory_fraction)
        self._trained_steps = 0
        self._launches: dict[str, int] | None = None
        self._losses: list[torch.Tensor] = []
        super().__init__(config)
        if config.npu.converters == "npu":
            gradients.only_sum(self.model_parts)
        if config.npu.check_loss:
            self.optimizers.register_step_pre_hook(lambda *_: finite.check(self._losses, self.model_parts, self.step))

    def forward_backward_step(self, **batch: Any) -> torch.Tensor:
        loss = super().forward_backward_step(**batch)
        self._losses.append(loss)
        return loss

    def train_step(self, data_iterator: Iterator) -> None:
        self._trained_steps += 1
        counted = self._trained_steps == min(_COUNTED_STEP, self.config.training.steps)
        before = launches.by_operator() if counted else None
        self._losses.clear()
        super().train_step(data_iterator)
        if self._trained_steps == 1 and self.config.npu.require_gradients:
            gradients.check(self.model_parts)
        if before is not None:
            after = launches.by_operator() or {}
            self._launches = {name: n - before.get(name, 0) for name, n in after.items() if n > before.get(name, 0)}

    def train(self) -> None:
        super().train()
        speaker = loss_rank(self.config.parallelism, torch.distributed.get_world_size())
        if torch.distributed.get_rank() == speaker and self.metrics_processor.history.losses:
            self._summarise()

    def _summarise(self) -> None:
        history = self.metrics_processor.history
        losses = list(history.losses.values())
        result = summary.Summary(
            steps=self.step,
            first_loss=losses[0],
            last_loss=losses[-1],
            validation_loss=next(reversed(history.validation_losses.values()), None),
            tokens_per_second=history.tokens_per_second,
            peak_hbm_bytes=history.peak_hbm_bytes,
            kernel_launches_per_step=None if self._launches is None else sum(self._launches.values()),
            losses=losses,
            validation_losses=history.validation_losses,
            learning_rates=list(history.learning_rates.values()),
            gradient_norms=list(history.gradient_norms.values()),
            launches_by_operator=self._launches,
        )
        folder = Path(self.config.dump_folder)
        summary.write(result, folder, list(history.losses))
        logger.info("\n".join(["Summary", *result.lines(), f"  {folder}/summary.json, {folder}/loss.png"]))
