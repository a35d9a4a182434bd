"""The mixture-of-experts layer in another order: shared experts run while tokens travel to the routed ones."""

from collections.abc import Callable

import torch
from torchtitan.models.common.moe import MoE

from torchtitan_npu.converters.dispatch import NPUAllToAllDispatcher


def overlap_shared_experts(original: Callable) -> Callable:
    """`MoE.forward`; a traced one is upstream's, which the compiler orders itself."""

    def forward(self: MoE, x_BLD: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            return original(self, x_BLD)
        scores_BLK, experts_BLK, scores_BLE = self.router(x_BLD, self.expert_bias_E)
        chosen_BLE = torch.zeros_like(scores_BLE, dtype=torch.bool).scatter_(-1, experts_BLK, True)
        counts_E = chosen_BLE.sum(dim=(0, 1))
        if self.training:  # twice with recomputation, for which upstream's bias update halves them
            with torch.no_grad():
                self.tokens_per_expert_E.add_(counts_E)

        shared = _Once(self.shared_experts, x_BLD)
        dispatcher = self.routed_experts.token_dispatcher
        if isinstance(dispatcher, NPUAllToAllDispatcher):
            dispatcher.meanwhile = shared.run
        out_BLD = self.routed_experts(x_BLD, scores_BLK, experts_BLK, counts_E)
        shared.run()
        return out_BLD if shared.result is None else out_BLD + shared.result

    return forward


class _Once:
    """A module's result, computed when first asked for; None without a module."""

    def __init__(self, module: torch.nn.Module | None, x: torch.Tensor) -> None:
        self.module, self.x = module, x
        self.result: torch.Tensor | None = None

    def run(self) -> None:
        if self.module is not None and self.result is None:
            self.result = self.module(self.x)
