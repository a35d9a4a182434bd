"""A loss or a gradient that is not a number stops every rank in its step, before the optimizer carries it into weights.

Upstream looks at the loss of steps that are logged, on ranks that see one, and after the update; at gradients never.
"""

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import nn

from torchtitan_npu.errors import UserError
from torchtitan_npu.shards import local

_FIX = (
    "resume from the last checkpoint with a lower learning rate, or --training.mixed_precision_param float32;"
    " --debug.seed repeats the run"
)


def check(losses: list[torch.Tensor], model_parts: Iterable[nn.Module], step: int) -> None:
    """Call on all ranks together, with clipped gradients. Sends a few numbers and reads the result on the host.

    Clipping multiplies all gradients by one factor, which an infinite norm makes 0 and one that is not a number NaN:
    the gradients of one parameter tell whether all have to be looked at.

    Args:
        losses: of each batch that the step accumulates on this rank, one element each.
        model_parts: whose gradients have been clipped.
        step: number of the step.

    Raises:
        UserError: on every rank, if a loss or a gradient of any is infinite or not a number.
    """
    first = next(_gradients(model_parts), None)
    numbers = [*losses, torch.ones_like(losses[0]) if first is None else first.abs().sum()]
    table = _of_all_ranks(torch.stack([number.detach().to(losses[0].device).float().reshape(()) for number in numbers]))
    bad = (~table[:, :-1].isfinite()).nonzero()
    if len(bad):
        rank, batch = bad[0].tolist()
        others = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        raise UserError(
            f"step {step}: the loss of rank {rank}, batch {batch + 1} of {len(losses)}{others}, is"
            f" {table[rank, batch]}; no weight was updated",
            _FIX,
        )
    clipped = table[:, -1]
    if (clipped.isfinite() & (clipped > 0)).all():
        return
    sums = [grad.abs().sum().float() for grad in _gradients(model_parts)]
    own = torch.stack(sums).sum() if sums else clipped.new_zeros(())
    ranks = (~_of_all_ranks(own.to(losses[0].device).reshape(1))[:, 0].isfinite()).nonzero().flatten().tolist()
    if ranks:
        raise UserError(
            f"step {step}: gradients of rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} are infinite"
            " or not numbers, while all losses are finite; no weight was updated",
            _FIX,
        )


def _gradients(model_parts: Iterable[nn.Module]) -> Iterator[torch.Tensor]:
    """This rank's gradients, those without elements left out."""
    grads = (parameter.grad for part in model_parts for parameter in part.parameters())
    return (own for grad in grads if grad is not None and (own := local(grad)).numel())


def _of_all_ranks(own: torch.Tensor) -> torch.Tensor:
    """A row a rank, on the host."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    everyone = own
    if ranks > 1:
        everyone = own.new_empty(ranks * len(own))
        dist.all_gather_single(everyone, own)
    return everyone.cpu().view(ranks, len(own))
