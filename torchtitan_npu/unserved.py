"""What upstream's configs may ask for and an NPU cannot do, as data: refused before anything is built.

Each entry is a Config class of upstream's, why it is not served, and what to use instead. `torchtitan-npu train` looks
for these classes in the model's config.
"""

import importlib
import re
from dataclasses import dataclass
from typing import Any

from torchtitan_npu.errors import UserError


@dataclass(frozen=True)
class Unserved:
    target: str
    """Upstream's Config class."""
    why: str
    instead: str


_DISPATCHERS = "torchtitan.models.common.token_dispatcher"
_DIST_GEMM = "torchtitan.models.common.dist_gemm"
_STANDARD = (
    "a config with moe_comm_backend standard, such as deepseek_v3_debugmodel or qwen3_moe_debug: its all-to-all"
    " dispatcher is served by NPU operators"
)
_NO_FUSION = "the config without it: --parallelism.tensor_parallel_degree serves the plain layers"

UNSERVED = (
    Unserved(f"{_DISPATCHERS}.DeepEPTokenDispatcher.Config", "DeepEP's kernels are CUDA's", _STANDARD),
    Unserved(f"{_DISPATCHERS}.HybridEPTokenDispatcher.Config", "HybridEP's kernels are CUDA's", _STANDARD),
    Unserved(f"{_DISPATCHERS}.MinimalAsyncEPTokenDispatcher.Config", "its kernels are Triton's for CUDA", _STANDARD),
    Unserved(f"{_DISPATCHERS}.TorchAOTokenDispatcher.Config", "its padding is for CUDA's FP8 kernels", _STANDARD),
    Unserved(f"{_DIST_GEMM}.AllGatherFusedQKVLinear.Config", "dist_gemm needs CUDA's symmetric memory", _NO_FUSION),
    Unserved(f"{_DIST_GEMM}.AllGatherFusedFeedForward.Config", "dist_gemm needs CUDA's symmetric memory", _NO_FUSION),
    Unserved(f"{_DIST_GEMM}.RowParallelLinear.Config", "dist_gemm needs CUDA's symmetric memory", _NO_FUSION),
)

# Upstream's own overrides are kernels of Triton and Helion.
_UPSTREAM_OVERRIDES = "torchtitan.overrides."

# What upstream says of a config that it cannot even load here, and what helps.
_NOT_LOADED = (
    (
        r"torchao|NVFP4|MXFP8|float8",
        "the same config without the quantisation, such as llama3_debugmodel or deepseek_v3_debugmodel",
    ),
    (r"Hopper|Blackwell", "the same config with flex or varlen attention, such as qwen3_debugmodel"),
    (r"torchvision|config_registry", "pip install torchvision, which upstream's vision models import"),
)


def check(config: Any) -> None:
    """
    Raises:
        UserError: the model, or an override the user or the config names, has no NPU counterpart.
    """
    model = config.model_spec.model
    for entry in UNSERVED:
        module, name, _ = entry.target.rsplit(".", 2)
        wanted = getattr(importlib.import_module(module), name).Config
        place = next((fqn for fqn, *_ in model.traverse(wanted)), None)
        if place is not None:
            raise UserError(f"{place} is {name}, which the NPU does not serve: {entry.why}", entry.instead)
    for declared in config.override.imports:
        override = declared if isinstance(declared, str) else declared[0]
        if override.startswith(_UPSTREAM_OVERRIDES):
            raise UserError(
                f"override {override} is made of Triton, Helion or CUDA kernels",
                "leave it out: preset npu serves the same parts with NPU operators",
            )


def what_helps(reason: str) -> str | None:
    """What to do about a config that upstream refused to load for `reason`."""
    return next((fix for pattern, fix in _NOT_LOADED if re.search(pattern, reason, re.IGNORECASE)), None)
