"""AdamW with few launches: small parameters together, large ones on the fused operator.

Replaces: `OptimizersContainer.Config`, for optimizers named AdamW with `implementation fused`, upstream's default;
other optimizers and implementations stay torch's. Operators: `_fused_adamw_` (aclnnApplyAdamWV2), which torch_npu
launches once for each parameter, and once more to take 1 from its step count; and torch's `_foreach` operators, one
launch for some 24 to 50 parameters each. The first moves the fewest bytes, the second needs the fewest launches, so
that a parameter's size decides. Constraints: parameters that join have float32 weights, gradients and state, since the
`_foreach` operators round after each of their steps; amsgrad and maximize are served by both. State, hyperparameters
and checkpoints are those of `torch.optim.AdamW`: a checkpoint of either resumes with the other.
Saves: two launches for each small parameter (norms, biases, routers, small matrices), for some eight in all.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim import AdamW
from torchtitan.components.optimizer import OptimizersContainer
from torchtitan.config.override import derive, override

from torchtitan_npu.shards import local

# Elements up to which launches cost more than bytes: the `_foreach` operators move some 50 bytes an element more, so
# that two launches of 5 us each weigh as much as 200,000 to 300,000 elements at 1 to 1.6 TB/s; a cautious part of that.
SMALL = 1 << 16


class NPUAdamW(AdamW):
    """`torch.optim.AdamW`, of which the small parameters of a fused group are updated together."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._counts: dict[torch.Tensor, int] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._counts = {}  # a checkpoint was loaded

    def _init_group(self, group: dict[str, Any], params: list, *lists: list) -> bool:
        """torch's step collects here what it passes to the operator; small parameters are updated and left out."""
        has_complex = super()._init_group(group, params, *lists)
        if group["fused"] and not isinstance(group["lr"], torch.Tensor) and not hasattr(self, "grad_scale"):
            small = [i for i, row in enumerate(zip(params, *lists[:3], strict=True)) if _joins(*row)]
            joined = [[kept[i] for i in small] for kept in lists if kept]
            self._update_together(group, [params[i] for i in small], joined)
            taken = set(small)
            for kept in (params, *lists):
                kept[:] = [value for i, value in enumerate(kept) if i not in taken]
        return has_complex

    def _update_together(self, group: dict[str, Any], params: list[torch.Tensor], lists: list) -> None:
        if not params:
            return
        steps = lists[-1]
        unknown = [i for i, param in enumerate(params) if param not in self._counts]
        if unknown:  # the first step, or the first after a checkpoint: the one time the host reads them
            counts = torch.stack([steps[i] for i in unknown]).tolist()
            self._counts |= {params[i]: int(count) for i, count in zip(unknown, counts, strict=True)}
        together = defaultdict(list)
        for i, param in enumerate(params):
            self._counts[param] += 1
            together[self._counts[param]].append(i)
        torch._foreach_add_(steps, 1)
        for count, rows in together.items():
            # Each rank its own part: all that is done is element by element.
            weights, grads, *state = ([local(kept[i]) for i in rows] for kept in (params, *lists[:-1]))
            _update(group, count, weights, grads, *state)


def _joins(param: torch.Tensor, grad: torch.Tensor, *state: torch.Tensor) -> bool:
    if param.device.type != "npu" or any(tensor.dtype != torch.float32 for tensor in (param, grad, *state)):
        return False
    if isinstance(param, DTensor) and (not isinstance(grad, DTensor) or grad.placements != param.placements):
        return False
    return 0 < local(param).numel() <= SMALL


def _update(
    group: dict[str, Any],
    count: int,
    weights: list[torch.Tensor],
    grads: list[torch.Tensor],
    first: list[torch.Tensor],
    second: list[torch.Tensor],
    largest: list[torch.Tensor] | None = None,
) -> None:
    """One step of AdamW, in place.

    Args:
        group: the hyperparameters.
        count: number of this step, from 1.
        weights, grads: float32.
        first, second: running averages of the gradients and of their squares.
        largest: the largest second moments so far, with amsgrad.
    """
    (beta1, beta2), rate = group["betas"], group["lr"]
    if group["maximize"]:
        grads = torch._foreach_neg(grads)
    if group["weight_decay"]:
        torch._foreach_mul_(weights, 1 - rate * group["weight_decay"])
    torch._foreach_lerp_(first, grads, 1 - beta1)
    torch._foreach_mul_(second, beta2)
    torch._foreach_addcmul_(second, grads, grads, 1 - beta2)
    if largest is not None:
        torch._foreach_maximum_(largest, second)
    # The bias correction of the second moment is taken out of the root, which saves a pass over it.
    correction = (1 - beta2**count) ** 0.5
    divisor = torch._foreach_sqrt(second if largest is None else largest)
    torch._foreach_add_(divisor, group["eps"] * correction)
    torch._foreach_addcdiv_(weights, first, divisor, value=-rate * correction / (1 - beta1**count))


class NPUOptimizers(OptimizersContainer):
    @dataclass(kw_only=True, slots=True)
    class Config(OptimizersContainer.Config):
        pass

    @staticmethod
    def _resolve_optimizer_factory(name: str) -> Any:
        return NPUAdamW if name == "AdamW" else OptimizersContainer._resolve_optimizer_factory(name)


@override(target=OptimizersContainer.Config, description="_fused_adamw_, _foreach", exact=True)
def fused_adamw(config: OptimizersContainer.Config) -> NPUOptimizers.Config:
    return derive(config, NPUOptimizers.Config)
