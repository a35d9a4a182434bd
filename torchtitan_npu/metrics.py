"""Upstream's metrics processor, keeping what the summary of a run needs."""

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.config import ParallelismConfig
from torchtitan.config.override import derive, override

# Pipeline schedules whose last stage is where the first is.
_ROUND_TRIPS = ("ZBVZeroBubble", "DualPipeV")


def loss_rank(parallelism: ParallelismConfig, world_size: int) -> int:
    """The rank that logs: the first that sees the loss, which with pipelines is where the last stage is."""
    stages = parallelism.pipeline_parallel_degree
    if stages == 1 or parallelism.pipeline_parallel_schedule in _ROUND_TRIPS:
        return 0
    return world_size // stages * (stages - 1)


@dataclass
class History:
    """What was logged, step by step."""

    losses: dict[int, float] = field(default_factory=dict)
    validation_losses: dict[int, float] = field(default_factory=dict)
    learning_rates: dict[int, float] = field(default_factory=dict)
    gradient_norms: dict[int, float] = field(default_factory=dict)
    peak_hbm_bytes: int = 0
    timed_tokens: int = 0
    timed_seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float | None:
        return self.timed_tokens / self.timed_seconds if self.timed_seconds else None


class NPUMetricsProcessor(MetricsProcessor):
    @dataclass(kw_only=True, slots=True)
    class Config(MetricsProcessor.Config):
        pass

    def __init__(self, config: Config, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        # Upstream has no peak figure for Ascend devices and would report a utilisation of an A100's. It reports none
        # where a peak does not apply, which it takes from this field.
        self.has_quantization = True
        self.history = History()

    def log(
        self,
        step: int,
        global_avg_loss: float,
        global_max_loss: float,
        grad_norm: float,
        extra_metrics: dict[str, Any] | None = None,
    ) -> None:
        history = self.history
        if history.losses:  # the first interval holds start-up and warm-up
            history.timed_seconds += time.perf_counter() - self.time_last_log
            ranks_with_own_tokens = self.parallel_dims.world_size // self.parallel_dims.non_data_parallel_size
            history.timed_tokens += self.ntokens_since_last_log * ranks_with_own_tokens
        history.losses[step] = global_avg_loss
        history.gradient_norms[step] = grad_norm
        rates = [value for name, value in (extra_metrics or {}).items() if name.startswith("lr")]
        if rates:
            history.learning_rates[step] = rates[0]
        self._note_peak()
        super().log(step, global_avg_loss, global_max_loss, grad_norm, extra_metrics)

    def log_validation(self, loss: float, step: int, extra_metrics: dict[str, Any] | None = None) -> None:
        self.history.validation_losses[step] = loss
        self._note_peak()
        super().log_validation(loss, step, extra_metrics)

    def _note_peak(self) -> None:
        # Upstream resets the peak each time it logs, so the run's peak is the largest of them.
        self.history.peak_hbm_bytes = max(self.history.peak_hbm_bytes, torch.npu.max_memory_reserved())


@override(target=MetricsProcessor.Config, description="keeps the run's history", exact=True)
def npu_metrics(config: MetricsProcessor.Config) -> NPUMetricsProcessor.Config:
    return derive(config, NPUMetricsProcessor.Config)
