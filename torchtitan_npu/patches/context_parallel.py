"""Rows cut into chunks for each rank, document offsets left whole."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torchtitan.models.common.attention import VarlenAttention, VarlenMetadata
from torchtitan.models.common.decoder import Decoder


def keep_offsets(original: Callable) -> Callable:
    def prepare(
        inputs: torch.Tensor,
        labels: torch.Tensor,
        extra_kwargs: dict[str, Any],
        cp_mesh: DeviceMesh,
        device: torch.device,
        load_balancer_type: str | None = "headtail",
        ptrr_mask_key: str | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
        masks = extra_kwargs.get("attention_masks")
        if not isinstance(masks, VarlenMetadata):
            return original(inputs, labels, extra_kwargs, cp_mesh, device, load_balancer_type, ptrr_mask_key)
        without = {name: value for name, value in extra_kwargs.items() if name != "attention_masks"}
        inputs, labels, cut = original(inputs, labels, without, cp_mesh, device, load_balancer_type, None)
        return inputs, labels, {**cut, "attention_masks": masks}

    return prepare


def allow_packed_rows(original: Callable) -> Callable:
    def update_from_config(self: Decoder.Config, *, config: Any, **kwargs: Any) -> None:
        if isinstance(getattr(self.first_attention, "inner_attention", None), VarlenAttention.Config):
            # The degree is looked at for the refusal alone: sharding is declared for all axes, used or not. Upstream's
            # own varlen module, where a preset leaves it in place, is refused again once it is built.
            config = copy.copy(config)
            config.parallelism = copy.copy(config.parallelism)
            config.parallelism.context_parallel_degree = 1
        original(self, config=config, **kwargs)

    return update_from_config
