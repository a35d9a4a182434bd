"""Upstream's validator, which also gives the loss of multi-token prediction what it needs.

Replaces: `Validator.Config`. Upstream's training loop passes the positions to the loss, its validator does not, and
`MTPLoss` raises without them. Other losses are called as upstream calls them.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torchtitan.components.validate import Validator
from torchtitan.config.override import derive, override
from torchtitan.models.deepseek_v3.mtp import MTPLoss


class NPUValidator(Validator):
    @dataclass(kw_only=True, slots=True)
    class Config(Validator.Config):
        pass

    def __init__(self, config: Config, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self._positions: torch.Tensor | None = None
        loss = kwargs["loss_fn"]
        if isinstance(loss, MTPLoss):
            self.loss_fn = lambda predictions, labels: loss(predictions, labels, positions=self._positions)

    def post_dataloading_process(
        self, input_dict: dict[str, torch.Tensor], labels: torch.Tensor, model_parts: list[torch.nn.Module]
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
        inputs, labels, extra = super().post_dataloading_process(input_dict, labels, model_parts)
        self._positions = extra.get("positions")
        return inputs, labels, extra


@override(target=Validator.Config, description="positions for the loss of multi-token prediction", exact=True)
def npu_validator(config: Validator.Config) -> NPUValidator.Config:
    return derive(config, NPUValidator.Config)
