"""What one launch costs on the host: `torch.add` on float32[4], through torch_npu and the emulator, over CPU torch.

Usage, under the emulator: launch_overhead.py row|function. Prints JSON. `row` measures the operator as it ships, a
native table row; `function` puts a Python kernel in its place.
"""

import json
import sys
import time

ROUNDS = 5
CALLS = 20_000


def use_python_kernel() -> None:
    """Swaps aclnnAdd's row for a function. Kernels are loaded on the first launch, so do this before it."""
    import torch

    from cann_emulator.kernels import registry

    rows = registry.rows()
    del rows["aclnnAdd"]
    registry.rows = lambda: rows

    @registry.kernel("aclnnAdd")
    def add(self, other, alpha, out):
        torch.add(self, other, alpha=alpha, out=out)


def microseconds_per_add(device: str) -> float:
    import torch

    x = torch.ones(4, device=device)
    y = torch.ones(4, device=device)
    add = torch.add
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(CALLS):
            add(x, y)
        best = min(best, time.perf_counter() - start)
    return best / CALLS * 1e6


def main() -> None:
    if sys.argv[1] == "function":
        use_python_kernel()
    cpu = microseconds_per_add("cpu")
    npu = microseconds_per_add("npu")
    print(json.dumps({"cpu_us": cpu, "npu_us": npu, "overhead_us": npu - cpu}))


if __name__ == "__main__":
    main()
