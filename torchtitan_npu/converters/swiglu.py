"""The feed-forward's activation on `npu_swiglu`.

Replaces: `FeedForward.Config`. Operator: torch_npu's `npu_swiglu` (aclnnSwiGlu, aclnnSwiGluGrad), which takes gate and
up projection side by side. Constraints: the two projections have the same width. The parameters stay w1, w2 and w3, so
checkpoints and sharding are upstream's. Saves: one element-wise launch forward, and in backward one launch in place of
the gradients of silu and of the product.
"""

from dataclasses import dataclass

import torch
from torchtitan.config.override import derive, override
from torchtitan.models.common.feed_forward import FeedForward


class NPUFeedForward(FeedForward):
    @dataclass(kw_only=True, slots=True)
    class Config(FeedForward.Config):
        pass

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate_up = torch.cat((self.w1(x), self.w3(x)), dim=-1)
        return self.w2(torch.ops.npu.npu_swiglu(gate_up, -1))


@override(target=FeedForward.Config, description="npu_swiglu", exact=True)
def swiglu(config: FeedForward.Config) -> NPUFeedForward.Config:
    return derive(config, NPUFeedForward.Config)
