"""How much host memory a program needs for the device memory that it uses.

Usage, under the emulator: host_memory.py. Prints JSON. Trains a stack of bf16 linear layers, which needs over 1 GiB of
HBM, while another process watches this one's anonymous memory. `host_rss_ratio` is (peak - after the first operator) /
peak HBM: 1 where a device's byte costs a byte of the host and kernels need no room of their own.
"""

import json
import os
import select
import subprocess
import sys

LAYERS = 16
WIDTH = 4096
BATCH = 64
STEPS = 2


def anonymous_bytes(pid: int) -> int:
    """Resident memory that no file backs: private and shared, so that the choice of mapping does not matter."""
    with open(f"/proc/{pid}/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return sum(int(fields[name].split()[0]) for name in ("RssAnon", "RssShmem")) * 1024


def watch(pid: int) -> None:
    """Prints the peak of `pid`'s anonymous memory, once standard input is closed."""
    peak = 0
    while not select.select([sys.stdin], [], [], 0.001)[0]:
        peak = max(peak, anonymous_bytes(pid))
    print(peak)


def train() -> None:
    import torch

    layers = (torch.nn.Linear(WIDTH, WIDTH, bias=False, device="npu", dtype=torch.bfloat16) for _ in range(LAYERS))
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(BATCH, WIDTH, device="npu", dtype=torch.bfloat16)
    for _ in range(STEPS):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.npu.synchronize()


def main() -> None:
    import torch

    torch.ones(4, device="npu").add(1)
    before = anonymous_bytes(os.getpid())
    command = [sys.executable, "-S", __file__, str(os.getpid())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watcher:
        train()
        peak = int(watcher.communicate()[0])
    hbm = torch.npu.max_memory_allocated()
    ratio = (peak - before) / hbm
    print(json.dumps({"hbm_bytes": hbm, "host_bytes": peak - before, "host_rss_ratio": ratio}))


if __name__ == "__main__":
    watch(int(sys.argv[1])) if len(sys.argv) > 1 else main()
