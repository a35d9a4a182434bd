"""Selective activation checkpointing that knows the NPU attention.

Replaces: `SelectiveAC.Config`. Upstream keeps the outputs of its own attention operators and recomputes the rest;
without this entry the NPU attention would be computed twice. Saves: one attention a layer in backward.
"""

from dataclasses import dataclass

import torch
from torchtitan.config.override import derive, override
from torchtitan.distributed.activation_checkpoint import SelectiveAC

from torchtitan_npu.converters import attention  # noqa: F401  registers the operator


class NPUSelectiveAC(SelectiveAC):
    @dataclass(kw_only=True, slots=True)
    class Config(SelectiveAC.Config):
        pass

    def get_save_ops(self) -> set:
        return super().get_save_ops() | {torch.ops.torchtitan_npu.attention.default}


@override(target=SelectiveAC.Config, description="keeps the NPU attention's output", exact=True)
def selective_checkpoint(config: SelectiveAC.Config) -> NPUSelectiveAC.Config:
    return derive(config, NPUSelectiveAC.Config)
