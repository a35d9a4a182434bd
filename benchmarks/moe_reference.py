"""Upstream's experts with torch_npu's loop over the experts replaced by one grouped product: a second reference."""

from dataclasses import dataclass

import torch
from torchtitan.config.override import derive, override
from torchtitan.models.common.moe import GroupedExperts

from torchtitan_npu.converters.grouped_linear import grouped_linear


class OneProduct(GroupedExperts):
    @dataclass(kw_only=True, slots=True)
    class Config(GroupedExperts.Config):
        pass

    def _grouped_mm(self, *, A: torch.Tensor, B_t: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        return grouped_linear(A, B_t.transpose(-2, -1), torch.diff(offs, prepend=offs.new_zeros(1)))


@override(target=GroupedExperts.Config, description="one grouped product", exact=True)
def one_product(config: GroupedExperts.Config) -> OneProduct.Config:
    return derive(config, OneProduct.Config)
