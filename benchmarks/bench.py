"""`make bench`: speed and memory of the emulator against plain torch on the CPU, as a table and in outputs/bench.json.

Every measurement is a program in a process of its own, which prints a JSON object as its last line.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
EMULATOR = [str(Path(sys.executable).parent / "cann-emulator"), "run", "--"]

ROUNDS = 3

# Name in bench.json, what it is, how it is printed, and the most it may be.
TABLE: list[tuple[str, str, str, float | None]] = [
    ("launch_overhead_us", "launch of a Python kernel, over CPU torch", "{:.1f} us", 12),
    ("launch_overhead_native_us", "launch of a native row, over CPU torch", "{:.1f} us", 8),
    ("step_ratio", "training step, to CPU fp32", "{:.2f} x", 1.5),
    ("step_ratio_cpu_bf16", "training step, to CPU bf16", "{:.2f} x", None),
    ("launches_with_converters", "kernel launches a step, with converters", "{:.0f}", None),
    ("launches_reference", "kernel launches a step, reference preset", "{:.0f}", None),
    ("launches_ratio", "the first to the second", "{:.2f} x", 0.7),
    ("host_rss_ratio", "host memory to HBM", "{:.2f} x", 1.2),
    ("jax_dispatch_ratio", "JAX, cached jit(x + 1), to JAX's CPU", "{:.2f} x", 3),
    ("jax_compile_ratio", "JAX, compile of a 12-layer step, to JAX's CPU", "{:.2f} x", 3),
    ("jax_cached_compile_ratio", "the same from the disk cache", "{:.2f} x", 0.3),
    ("jax_step_ratio", "JAX, 12-layer training step, to JAX's CPU", "{:.2f} x", 3),
    ("jax_memory_ratio", "JAX, peak memory of it, to XLA's analysis", "{:.2f} x", 1.3),
    ("jax_upload_ratio", "JAX, 64 MiB to the device, to memcpy", "{:.2f} x", 1.43),
    ("jax_download_ratio", "JAX, 64 MiB from the device, to memcpy", "{:.2f} x", 1.43),
]


def run(script: str, *arguments: str, emulator: bool = True, threads: int = 2) -> dict[str, Any]:
    """Runs a script of this folder and returns what it prints as its last line."""
    environ = {**os.environ, "OMP_NUM_THREADS": str(threads), "TASK_QUEUE_ENABLE": "0"}
    if not emulator:
        environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    command = [*(EMULATOR if emulator else []), sys.executable, str(HERE / script), *arguments]
    print(f"  {script} {' '.join(argument.rsplit('.', 1)[-1] for argument in arguments)}", flush=True)
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, cwd=HERE.parent)
    if done.returncode != 0:
        raise RuntimeError(f"{script} {' '.join(arguments)} failed with exit code {done.returncode}; see above")
    return json.loads(done.stdout.splitlines()[-1])


def launch_overhead() -> dict[str, Any]:
    function, row = (run("launch_overhead.py", kind, threads=1) for kind in ("function", "row"))
    return {"launch_overhead_us": function["overhead_us"], "launch_overhead_native_us": row["overhead_us"]}


def host_memory() -> dict[str, Any]:
    return run("host_memory.py")


def training_step() -> dict[str, Any]:
    # In turns, the best of each: what else the machine does meets one of them more than the other.
    rounds = [
        (
            run("train_step.py", "--converters", "npu"),
            run("cpu_reference.py", "--dtype", "float32", emulator=False),
            run("cpu_reference.py", "--dtype", "bfloat16", emulator=False),
        )
        for _ in range(ROUNDS)
    ]
    emulated, fp32, bf16 = (min(times, key=lambda done: done["step_seconds"]) for times in zip(*rounds, strict=True))
    reference = run("train_step.py", "--converters", "reference")
    launches, launches_reference = emulated["launches"]["total"], reference["launches"]["total"]
    return {
        "step_seconds": emulated["step_seconds"],
        "step_seconds_cpu": fp32["step_seconds"],
        "step_ratio": emulated["step_seconds"] / fp32["step_seconds"],
        "step_ratio_cpu_bf16": emulated["step_seconds"] / bf16["step_seconds"],
        "launches_with_converters": launches,
        "launches_reference": launches_reference,
        "launches_ratio": launches / launches_reference,
    }


def converters() -> dict[str, Any]:
    """Launches a step that each converter saves: steps without it (or the fused optimizer) against one with all."""
    from torchtitan_npu.converters import of_preset

    active = [converter for converter in of_preset("npu") if "none" not in converter.presets]
    plain = {converter.target: converter.factory for converter in of_preset("reference")}

    def launches(without: str, *flags: str) -> int:
        kept = (c.factory if c.operator != without else plain.get(c.target) for c in active)
        overrides = ["--override.imports", *filter(None, kept)]
        done = run("train_step.py", "--converters", "none", "--steps", "3", *overrides, *flags)
        return done["launches"]["total"]

    everything = launches("nothing")
    operators = sorted({c.operator for c in active if c.operator})
    saved = {operator: launches(operator) - everything for operator in operators}
    saved = {operator: count for operator, count in saved.items() if count}  # a dense model has no place for the others
    for other in ("for-loop", "foreach"):
        saved[f"fused over {other} AdamW"] = launches("nothing", "--optimizer.implementation", other) - everything
    return {"launches_saved": saved}


def jax_overheads() -> dict[str, Any]:
    return run("jax_overheads.py", threads=1)


def jax_transformer() -> dict[str, Any]:
    return run("jax_transformer.py")


MEASUREMENTS: dict[str, Callable[[], dict[str, Any]]] = {
    "launch": launch_overhead,
    "memory": host_memory,
    "step": training_step,
    "converters": converters,
    "jax": jax_overheads,
    "jax_step": jax_transformer,
}


def table(results: dict[str, Any]) -> str:
    lines = [f"{'':<46} {'measured':>10}  {'at most':>8}"]
    for name, text, form, limit in TABLE:
        if name in results:
            over = "  over" if limit is not None and results[name] > limit else ""
            wanted = "" if limit is None else form.format(limit)
            lines.append(f"{text:<46} {form.format(results[name]):>10}  {wanted:>8}{over}")
    for name, saved in results.get("launches_saved", {}).items():
        lines.append(f"{'saved a step by ' + name:<46} {saved:>10}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the emulator against plain torch on the CPU.")
    parser.add_argument("only", nargs="*", metavar="MEASUREMENT", help=f"of {', '.join(MEASUREMENTS)} (all)")
    parser.add_argument("--output", type=Path, default=HERE.parent / "outputs" / "bench.json", metavar="FILE")
    options = parser.parse_args()
    if unknown := set(options.only) - set(MEASUREMENTS):
        parser.error(f"no measurement {', '.join(unknown)}; there are {', '.join(MEASUREMENTS)}")

    # What is not measured now keeps its last value.
    results: dict[str, Any] = json.loads(options.output.read_text()) if options.only and options.output.exists() else {}
    failed = False
    for name in options.only or MEASUREMENTS:
        print(f"{name}:", flush=True)
        try:
            results |= MEASUREMENTS[name]()
        except RuntimeError as error:
            print(f"  {error}", file=sys.stderr)
            failed = True
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=2) + "\n")
    print(f"\n{table(results)}\n\nwritten to {os.path.relpath(options.output)}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
