"""RMSNorm on `npu_rms_norm`.

Replaces: `RMSNorm.Config`. Operator: torch_npu's `npu_rms_norm` (aclnnRmsNorm, aclnnRmsNormGrad). Constraints: the norm
is over the last dimension and has a weight of the input's dtype; without a weight upstream's own forward is used.
Saves: the composed norm's power, mean, addition, rsqrt and two multiplications, and their gradients.
"""

from dataclasses import dataclass

import torch
from torchtitan.config.override import derive, override
from torchtitan.models.common.nn_modules import RMSNorm


class NPURMSNorm(RMSNorm):
    @dataclass(kw_only=True, slots=True)
    class Config(RMSNorm.Config):
        pass

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.weight is None:
            return super().forward(x)
        return torch.ops.npu.npu_rms_norm(x, self.weight.to(x.dtype), self.eps)[0]


@override(target=RMSNorm.Config, description="npu_rms_norm", exact=True)
def rms_norm(config: RMSNorm.Config) -> NPURMSNorm.Config:
    return derive(config, NPURMSNorm.Config)
