"""`make results`: writes the README's results table from what the last runs measured.

Reads outputs/train/summary.json (`make train`), outputs/bench.json (`make bench`) and outputs/converters.json; a row
whose run is missing is left out, so that no number stands there that nobody measured.
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from bench import TABLE
from converters import GOALS, REFERENCES, saving
from expert_parallel import MOST_SECONDS

from cann_emulator.coverage import operators

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- results: written by `make results` -->", "<!-- end of results -->"


def read(path: str) -> dict[str, Any]:
    file = ROOT / path
    return json.loads(file.read_text()) if file.exists() else {}


def moe_rows(measured: dict[str, Any]) -> list[tuple[str, str, str]]:
    """What benchmarks/converters.py and benchmarks/expert_parallel.py left in outputs/converters.json."""
    found = []
    for model, result in measured.items():
        if "npu" not in result:
            continue
        command = " ".join(["python benchmarks/converters.py", model, *result["flags"]])
        for goal, reference in enumerate(REFERENCES):
            for unit, goals in GOALS.items():
                what = f"{model.split(':')[1]}: fewer {unit} a step than {reference} (goal: at least {goals[goal]}%)"
                fewer = saving(result["npu"][unit], result[reference][unit])
                found.append((what, fewer, command))
    if ranks := measured.get("expert_parallel"):
        what = f"deepseek_v3_debugmodel, step of 8 expert ranks (goal: at most {MOST_SECONDS} s)"
        found.append((what, f"{ranks['step_seconds']:.1f} s", "python benchmarks/expert_parallel.py"))
    return found


def rows() -> list[tuple[str, str, str]]:
    """(what, result, command)."""
    found: list[tuple[str, str, str]] = []
    if train := read("outputs/train/summary.json"):
        found += [
            (
                f"training loss over {train['steps']} steps",
                f"{train['first_loss']:.2f} -> {train['last_loss']:.2f}",
                "make train",
            ),
            ("validation loss on held-out text", f"{train['validation_loss']:.2f}", "make train"),
            ("tokens a second", f"{train['tokens_per_second']:.0f}", "make train"),
            ("peak HBM", f"{train['peak_hbm_bytes'] / 2**20:.0f} MiB", "make train"),
            ("kernel launches a step", f"{train['kernel_launches_per_step']:.0f}", "make train"),
        ]
    bench = read("outputs/bench.json")
    for name, text, form, limit in TABLE:
        if name in bench:
            goal = "" if limit is None else f" (goal: at most {form.format(limit)})"
            found.append((text + goal, form.format(bench[name]), "make bench"))
    for name, saved in bench.get("launches_saved", {}).items():
        found.append((f"launches a step saved by {name}", f"{saved}", "make bench"))
    found += moe_rows(read("outputs/converters.json"))
    listed = operators()
    done = sum(op.implemented for op in listed)
    found.append(("aclnn operators implemented", f"{done} of {len(listed)}", "cann-emulator ops"))
    return found


def main() -> None:
    readme = ROOT / "README.md"
    text = readme.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    lines = ["| what | result | command |", "| --- | --- | --- |"]
    lines += [f"| {what} | {result} | `{command}` |" for what, result, command in rows()]
    readme.write_text("\n".join([before + BEGIN, *lines, END + after]))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
