"""Selective activation checkpointing that knows the NPU operators.

Replaces: `SelectiveAC.Config`. Upstream keeps the outputs of its own attention, top-k and communication operators and
recomputes the rest; without this entry the NPU attention would be computed twice, the router could choose other experts
the second time, and the host would wait for the token counts once more. Saves: these, once a layer in backward.
"""

from dataclasses import dataclass

import torch
from torchtitan.config.override import derive, override
from torchtitan.distributed.activation_checkpoint import SelectiveAC

from torchtitan_npu.converters import attention, dispatch, router  # noqa: F401  they register the operators


class NPUSelectiveAC(SelectiveAC):
    @dataclass(kw_only=True, slots=True)
    class Config(SelectiveAC.Config):
        pass

    def get_save_ops(self) -> set:
        ours = torch.ops.torchtitan_npu
        return super().get_save_ops() | {
            ours.attention.default,
            ours.ring_attention.default,
            ours.gating_top_k.default,
            ours.counts_on_host.default,
        }


@override(target=SelectiveAC.Config, description="keeps what the NPU attention, router and dispatcher give", exact=True)
def selective_checkpoint(config: SelectiveAC.Config) -> NPUSelectiveAC.Config:
    return derive(config, NPUSelectiveAC.Config)
