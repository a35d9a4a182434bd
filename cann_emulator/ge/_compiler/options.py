"""The options of Graph Engine: which names are known, and what their values may be."""

import difflib
import os

from ..error import GraphFault

_PRECISION_V2 = ("fp16", "origin", "cube_fp16in_fp32out", "mixed_float16", "mixed_bfloat16", "mixed_hif8", "cube_hif8")
_PRECISION = (
    "force_fp16", "force_fp32", "cube_fp16in_fp32out", "allow_mix_precision", "allow_mix_precision_fp16",
    "allow_mix_precision_bf16", "allow_fp32_to_fp16", "allow_fp32_to_bf16", "must_keep_origin_dtype",
)  # fmt: skip
# Name -> the values it may have; None: any text.
GRAPH: dict[str, tuple[str, ...] | None] = {
    "input_format": ("ND", "NCHW", "NHWC", "NCDHW", "NDHWC"),
    "input_shape": None,
    "input_shape_range": None,
    "output_type": None,
    "ge.exec.outputReuseInputMemIndexes": None,
    "ge.exec.inputReuseMemIndexes": None,
    "ge.exec.disableReuseMemory": ("0", "1"),
    "ge.exec.precision_mode": _PRECISION,
    "ge.exec.precision_mode_v2": _PRECISION_V2,
    "ge.exec.allow_hf32": ("true", "false", "0", "1", "00", "01", "10", "11"),
    "ge.exec.modify_mixlist": None,
    "ge.exec.op_precision_mode": None,
    "ge.exec.atomicCleanPolicy": ("0", "1"),
    "ge.exec.op_debug_level": None,
    "ge.oo.level": ("O1", "O2", "O3"),
    "ge.oo.constantFolding": ("true", "false"),
    "ge.oo.deadCodeElimination": ("true", "false"),
    "ge.deterministic": ("0", "1"),
    "ge.deterministicLevel": ("0", "1", "2"),
    "ge.externalWeight": ("0", "1", "2"),
    "ge.opSelectImplmode": None,
    "ge.optypelistForImplmode": None,
    "ge.op_compiler_cache_mode": ("enable", "disable", "force"),
    "ge.op_compiler_cache_dir": None,
    "ge.debugDir": None,
    "ge.fusionSwitchFile": None,
    "ge.bufferOptimize": None,
    "ge.enableSmallChannel": None,
    "ge.enableScopeFusionPasses": None,
    "ge.compressionOptimizeConf": None,
    "ge.shape_generalized_build_mode": None,
    "ge.dynamicDims": None,
    "ge.dynamicBatchSize": None,
    "ge.dynamicImageSize": None,
    "ge.dynamicNodeType": None,
    "ge.outputNodes": None,
    "ge.buildMode": None,
    "ge.tiling_schedule_optimize": ("0", "1"),
    "log": None,
}
GLOBAL: dict[str, tuple[str, ...] | None] = {
    **GRAPH,
    "ge.socVersion": None,
    "ge.aicoreNum": None,
    "ge.coreType": None,
    "ge.enableSingleStream": ("true", "false"),
    "ge.autoTuneMode": None,
    "ge.customizeDtypes": None,
    "ge.exec.deviceId": None,
    "ge.opDebugLevel": None,
    "ge.virtual_type": None,
}
# What would change results, and the emulator does not do.
_REFUSED = {
    "ge.dynamicDims": "models with dynamic shapes",
    "ge.dynamicBatchSize": "models with dynamic shapes",
    "ge.dynamicImageSize": "models with dynamic shapes",
    "ge.externalWeight": "constants in files of their own",
}


_DEFAULT_SOC = "Ascend910_9391"  # the emulated devices', where the environment names none


def soc_of(options: dict[str, str]) -> str:
    """The SoC that a model is for: the option's, else that of the emulated devices."""
    return options.get("ge.socVersion") or os.environ.get("CANN_EMULATOR_SOC") or _DEFAULT_SOC


def check(options: dict[str, str], known: dict[str, tuple[str, ...] | None]) -> None:
    """Refuses an option that does not exist, a value that it cannot have, and what the emulator does not do.

    Raises:
        GraphFault: E10001.
    """
    for name, value in options.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise GraphFault("E10001", f"Option [{name}] is not supported.{hint}")
        allowed = known[name]
        if allowed is not None and value not in allowed:
            raise GraphFault(
                "E10001", f"Value [{value}] of option [{name}] is invalid. It may be {', '.join(allowed)}."
            )
        if name in _REFUSED and value not in ("", "0"):
            raise GraphFault("E10001", f"Option [{name}]: the CANN emulator has no {_REFUSED[name]}.")
    if "ge.exec.precision_mode" in options and "ge.exec.precision_mode_v2" in options:
        raise GraphFault("E10001", "ge.exec.precision_mode and ge.exec.precision_mode_v2 must not both be set.")


def keeps_dtypes(options: dict[str, str]) -> bool:
    """Whether operators run in the dtypes that the graph has."""
    return (
        options.get("ge.exec.precision_mode_v2") == "origin"
        or options.get("ge.exec.precision_mode") == "must_keep_origin_dtype"
    )
