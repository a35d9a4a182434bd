"""Which parallel layouts a model and a batch allow: checked before anything is built.

Upstream builds meshes and schedules on every rank and lets torch fail there, in a page of stack a rank. Ranks, heads,
experts, layers and microbatches are known before that.
"""

from typing import Any

from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class
from torchtitan.models.common.attention import BaseAttention
from torchtitan.models.common.moe import GroupedExperts

from torchtitan_npu.errors import UserError

_PREFIX = "parallelism."

# Schedules that begin with as many microbatches as there are stages; these have one stage a rank, and two.
_FILLED = {"1f1b": 1, "dualpipev": 2}
# Schedules whose microbatches go round in groups of about as many as there are ranks.
_ROUNDS = ("interleaved1f1b", "interleavedzerobubble")


def _refuse(name: str, degree: int, why: str, allowed: list[int]) -> None:
    flag = f"{_PREFIX}{name}"
    raise UserError(f"{flag} {degree} {why}", f"--{flag} {' or '.join(map(str, allowed))}")


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def check_heads(config: Any) -> None:
    """
    Raises:
        UserError: tensor parallelism over ranks that do not divide a layer's query or key/value heads.
    """
    ranks = config.parallelism.tensor_parallel_degree
    for fqn, layer, *_ in config.model_spec.model.traverse(BaseAttention.Config):
        heads = layer.n_heads
        shared = getattr(layer, "n_kv_heads", None) or heads
        if heads % ranks or shared % ranks:
            listed = f"{heads} query and {shared} key/value heads"
            allowed = [divisor for divisor in _divisors(shared) if heads % divisor == 0]
            _refuse("tensor_parallel_degree", ranks, f"does not divide the {listed} of {fqn}", allowed)


def check_experts(config: Any, world_size: int) -> None:
    """
    Args:
        world_size: ranks of the run, which the other degrees divide.

    Raises:
        UserError: expert parallelism over ranks that divide neither the ranks of a pipeline stage and replica, nor a
            layer's experts.
    """
    parallelism = config.parallelism
    ranks = parallelism.expert_parallel_degree
    outer = parallelism.pipeline_parallel_degree * parallelism.data_parallel_replicate_degree
    sharing = world_size // outer
    experts = [(fqn, layer.num_experts) for fqn, layer, *_ in config.model_spec.model.traverse(GroupedExperts.Config)]
    allowed = [degree for degree in _divisors(sharing) if all(number % degree == 0 for _, number in experts)]
    for fqn, number in experts:
        if number % ranks:
            _refuse("expert_parallel_degree", ranks, f"does not divide the {number} experts of {fqn}", allowed)
    if sharing % ranks:
        why = f"does not divide the {sharing} ranks of data shards, context and tensor parallelism together"
        _refuse("expert_parallel_degree", ranks, why, allowed)


def check_pipeline(config: Any) -> None:
    """
    Raises:
        UserError: an unknown schedule, more stages than layers, or microbatches that the schedule cannot arrange.
    """
    parallelism = config.parallelism
    ranks, batch = parallelism.pipeline_parallel_degree, config.training.local_batch_size
    if ranks == 1 or parallelism.pipeline_parallel_schedule_csv:
        return
    schedule = parallelism.pipeline_parallel_schedule
    try:
        single = issubclass(get_schedule_class(schedule), PipelineScheduleSingle)
    except ValueError as error:
        flag = f"{_PREFIX}pipeline_parallel_schedule"
        raise UserError(f"{flag}: {error}", f"--{flag} 1F1B or Interleaved1F1B, for example") from error
    size = parallelism.pipeline_parallel_microbatch_size  # divides the batch, which upstream checks
    _check_layers(config, ranks, stages=ranks if single else 2 * ranks)
    _check_microbatches(schedule, ranks, batch // size, size)


def _check_layers(config: Any, ranks: int, stages: int) -> None:
    parallelism = config.parallelism
    if parallelism.module_fqns_per_model_part or parallelism.pipeline_parallel_layers_per_stage is not None:
        return  # stages that the user cuts are counted by upstream
    layers = len(config.model_spec.model.layers)
    ends = parallelism.pipeline_parallel_first_stage_less_layers, parallelism.pipeline_parallel_last_stage_less_layers
    if layers + sum(ends) < stages:
        most = (layers + sum(ends)) * ranks // stages
        raise UserError(
            f"{_PREFIX}pipeline_parallel_degree {ranks}: {parallelism.pipeline_parallel_schedule} makes {stages} stages"
            f" of a model of {layers} layers, of which embedding and head count for {sum(ends)} more",
            f"--{_PREFIX}pipeline_parallel_degree {most} at most, or a model of more layers",
        )


def _check_microbatches(schedule: str, ranks: int, microbatches: int, size: int) -> None:
    where = f"{_PREFIX}pipeline_parallel_schedule {schedule}"
    least = ranks * _FILLED.get(schedule.lower(), 0)
    if microbatches < least:
        raise UserError(
            f"{where} needs {least} microbatches for {ranks} ranks, and has {microbatches}"
            f" (rows of training.local_batch_size / pipeline_parallel_microbatch_size {size})",
            f"--training.local_batch_size {least * size}"
            + (" or more" if size == 1 else f", or a smaller --{_PREFIX}pipeline_parallel_microbatch_size"),
        )
    rounds = max(1, microbatches // ranks)
    if schedule.lower() in _ROUNDS and microbatches % rounds:
        raise UserError(
            f"{where} cannot share {microbatches} microbatches out to {rounds} rounds of {ranks} ranks",
            f"--training.local_batch_size {rounds * ranks * size}, for example",
        )
