"""Your own replacement of an upstream module, next to the NPU preset: RMSNorm computed in float32.

    PYTHONPATH=. torchtitan-npu train --module llama3 --config llama3_debugmodel --training.steps 5 \\
        --training.seq_len 256 --training.local_batch_size 2 \\
        --npu.reference_parts norm --override.imports examples.own_override.float32_norm

Two overrides may not claim one node, so the preset's own norm is left out with `--npu.reference_parts norm`.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torchtitan.config import derive, override
from torchtitan.models.common.nn_modules import RMSNorm


class Float32Norm(RMSNorm):
    @dataclass(kw_only=True, slots=True)
    class Config(RMSNorm.Config):
        pass

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x.float(), self.normalized_shape, self.weight.float(), self.eps).to(x.dtype)


@override(target=RMSNorm.Config, description="RMSNorm in float32")
def float32_norm(config: RMSNorm.Config) -> Float32Norm.Config:
    return derive(config, Float32Norm.Config)
