"""What the converters save of a training step: launches and bytes, in all and by part of the model, as a table.

`python benchmarks/converters.py [MODULE:CONFIG ...]`; results are added to outputs/converters.json. A step is compared
with two of preset reference: as torch_npu runs it, with a loop over the experts, and with one grouped product in the
loop's place. `--parts` measures each part by serving it alone from preset reference; other flags are torchtitan's, such
as `--training.seq_len`.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from bench import HERE, run

MODELS = ("deepseek_v3:deepseek_v3_debugmodel", "qwen3:qwen3_moe_debug", "gpt_oss:gpt_oss_debugmodel")
PARTS = ("attention", "norm", "rope", "swiglu", "experts", "router", "dispatch", "loss", "optimizer")
REFERENCES = ("reference", "reference, one grouped product")
# What the converters must save of the reference, and of the reference with one grouped product, in per cent.
GOALS = {"launches": (45, 25), "bytes": (25, 25)}


def step(model: str, *flags: str) -> dict[str, int]:
    """Launches and bytes of the second step, activation checkpointing as the config has it."""
    print("  " + (" ".join(flags) or "npu"), flush=True)
    done = run("train_step.py", "--model", model, "--steps", "2", "--checkpointing", *flags)
    return {"launches": done["launches"]["total"], "bytes": done["bytes"]}


def measure(model: str, parts: bool, flags: list[str]) -> dict[str, Any]:
    reference = ("--converters", "reference", *flags)
    result: dict[str, Any] = {
        "flags": flags,
        "npu": step(model, *flags),
        "reference": step(model, *reference),
        "reference, one grouped product": step(model, *reference, "--override.imports", "moe_reference.one_product"),
    }
    if parts:
        result["parts"] = {part: step(model, "--npu.reference_parts", part, *flags) for part in PARTS}
    return result


def saving(kept: int, of: int) -> str:
    return f"{100 * (1 - kept / of):.0f}%"


def table(results: dict[str, Any]) -> str:
    lines = [f"{'':<34} {'launches':>9} {'fewer':>6} {'goal':>5} {'MB':>8} {'fewer':>6} {'goal':>5}"]
    for model in filter(lambda name: "npu" in results[name], results):
        result = results[model]
        own = result["npu"]
        lines += [
            " ".join([model, *result["flags"]]),
            f"  {'npu':<32} {own['launches']:>9,} {'':>12} {own['bytes'] / 1e6:>8,.0f}",
        ]
        for goal, name in enumerate(REFERENCES):
            row = result[name]
            fewer = [f"{saving(own[unit], row[unit]):>6} {GOALS[unit][goal]:>4}%" for unit in ("launches", "bytes")]
            lines.append(f"  {name:<32} {row['launches']:>9,} {fewer[0]} {row['bytes'] / 1e6:>8,.0f} {fewer[1]}")
        for part, row in result.get("parts", {}).items():
            lines.append(
                f"  {'saved by ' + part:<32} {row['launches'] - own['launches']:>9,} {'':>12} "
                f"{(row['bytes'] - own['bytes']) / 1e6:>8,.0f}"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what the converters save of a training step.")
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODULE:CONFIG", help=f"{', '.join(MODELS)}")
    parser.add_argument("--parts", action="store_true", help="also what each part saves")
    parser.add_argument("--output", type=Path, default=HERE.parent / "outputs" / "converters.json", metavar="FILE")
    options, flags = parser.parse_known_args()
    results: dict[str, Any] = json.loads(options.output.read_text()) if options.output.exists() else {}
    for model in options.models:
        print(f"{model}:", flush=True)
        results[model] = measure(model, options.parts, flags)
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(results, indent=2) + "\n")
    print(f"\n{table(results)}")


if __name__ == "__main__":
    main()
