"""Rows cut into a contiguous chunk for each rank, document offsets left whole."""

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torchtitan.models.common.attention import VarlenMetadata


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
        # The order of tokens within a row is kept: no balancing.
        without = {name: value for name, value in extra_kwargs.items() if name != "attention_masks"}
        inputs, labels, cut = original(inputs, labels, without, cp_mesh, device, None, None)
        return inputs, labels, {**cut, "attention_masks": masks}

    return prepare
