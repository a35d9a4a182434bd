"""A loss that is not a number stops every rank in its step, before the optimizer carries it into the weights.

Upstream looks at the loss of steps that are logged, on ranks that see one, and after the update.
"""

import torch
import torch.distributed as dist

from torchtitan_npu.errors import UserError


def check(losses: list[torch.Tensor], step: int) -> None:
    """Call on all ranks together. Sends a number a batch and reads the result on the host.

    Args:
        losses: of each batch that the step accumulates on this rank, one element each.
        step: number of the step.

    Raises:
        UserError: on every rank, if a loss of any is infinite or not a number.
    """
    own = torch.stack([loss.detach().float().reshape(()) for loss in losses])
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    everyone = own
    if ranks > 1:
        everyone = own.new_empty(ranks * len(losses))
        dist.all_gather_single(everyone, own)
    table = everyone.cpu().view(ranks, len(losses))
    bad = (~table.isfinite()).nonzero()
    if len(bad) == 0:
        return
    rank, batch = bad[0].tolist()
    others = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
    raise UserError(
        f"step {step}: the loss of rank {rank}, batch {batch + 1} of {len(losses)}{others}, is {table[rank, batch]};"
        " no weight was updated",
        "resume from the last checkpoint with a lower learning rate, or --training.mixed_precision_param float32;"
        " --debug.seed repeats the run",
    )
