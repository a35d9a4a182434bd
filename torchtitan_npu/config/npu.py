"""The fields that torchtitan's configuration gains on an NPU: `--npu.*`."""

from dataclasses import dataclass, field
from typing import Literal

PresetName = Literal["npu", "reference", "none"]


@dataclass(kw_only=True, slots=True)
class HcclConfig:
    """Set before the first collective; left alone where None, so that the environment's own value counts."""

    connect_timeout_seconds: int | None = None
    """How long ranks wait for each other when a communicator is made (HCCL_CONNECT_TIMEOUT)."""

    exec_timeout_seconds: int | None = None
    """How long a collective waits for a rank that does not come (HCCL_EXEC_TIMEOUT)."""

    buffer_mb: int | None = None
    """Size of a communicator's buffer in MiB (HCCL_BUFFSIZE)."""

    deterministic: bool = False
    """Sum in a fixed order, so that a rerun gives the same bits (HCCL_DETERMINISTIC)."""

    def __post_init__(self) -> None:
        smallest = {"connect_timeout_seconds": 1, "exec_timeout_seconds": 0, "buffer_mb": 1}
        for name, least in smallest.items():
            if (value := getattr(self, name)) is not None and value < least:
                raise ValueError(f"npu.hccl.{name} must be at least {least}, got {value}")

    def environment(self) -> dict[str, str]:
        values = {
            "HCCL_CONNECT_TIMEOUT": self.connect_timeout_seconds,
            "HCCL_EXEC_TIMEOUT": self.exec_timeout_seconds,
            "HCCL_BUFFSIZE": self.buffer_mb,
            "HCCL_DETERMINISTIC": "true" if self.deterministic else None,
        }
        return {name: str(value) for name, value in values.items() if value is not None}


@dataclass(kw_only=True, slots=True)
class NPUConfig:
    converters: PresetName = "npu"
    """npu: fused NPU operators. reference: attention as mask, matmul, softmax and the rest as upstream has it, to
    compare with. none: upstream's modules unchanged (its attention has no NPU kernel)."""

    reference_parts: list[str] = field(default_factory=list)
    """Parts that preset reference serves although the preset is another: attention, norm, rope, swiglu, experts,
    router, dispatch, loss, optimizer. To find out which converter a difference comes from."""

    context_parallel: Literal["auto", "ulysses", "all_gather", "ring"] = "auto"
    """How ranks attend that share rows (--parallelism.context_parallel_degree). ulysses: they trade tokens for heads.
    all_gather: each gets all keys and values. ring: keys and values travel from rank to rank (causal attention without
    window or sinks). auto: ulysses where the ranks divide the heads, else all_gather."""

    hf32: bool = False
    """Let float32 matrix products use the cube unit's 19-bit HF32 inputs: faster, less exact."""

    memory_fraction: float = 1.0
    """Share of the device's memory this process may take."""

    require_gradients: bool = True
    """Stop after the first step if a trainable parameter got no gradient, which an operator made for inference causes
    (torch only warns of it). Turn off for a model that leaves parameters unused on purpose."""

    check_loss: bool = True
    """Stop every rank in the step whose loss or gradients are not finite, before the weights are updated. Costs two
    numbers sent and read a step; without it upstream's check of the loss of logged steps is left, after the update."""

    hccl: HcclConfig = field(default_factory=HcclConfig)

    def __post_init__(self) -> None:
        if not 0 < self.memory_fraction <= 1:
            raise ValueError(f"npu.memory_fraction must be above 0 and at most 1, got {self.memory_fraction}")
