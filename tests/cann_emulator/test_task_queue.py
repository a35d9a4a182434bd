"""torch_npu's dispatch thread (TASK_QUEUE_ENABLE=1, its default) works, or says why it waits: never a silent hang."""

import os
import subprocess
import sys
import time

PLAIN = """
import torch
x = torch.arange(16.0, device="npu").reshape(4, 4).requires_grad_()
for _ in range(50):
    y = torch.nn.functional.gelu(x @ x.t() * 0.01)
    torch.nn.functional.layer_norm(y, (4,)).square().sum().backward()
print("done", tuple(x.grad.shape), (x > 3).nonzero().shape[0], bool((x > 2).any()))
"""

DTENSOR = """
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

torch.npu.set_device(0)
dist.init_process_group("hccl", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
mesh = init_device_mesh("npu", (1,))
x = distribute_tensor(torch.arange(8.0, device="npu").reshape(4, 2), mesh, [Shard(0)])
for _ in range(20):
    y = torch.nn.functional.layer_norm(torch.nn.functional.gelu(x) + 1, (2,))
    assert bool((x > 2).any()) and y.full_tensor().shape == (4, 2)
print("done", x.full_tensor().sum().item())
dist.destroy_process_group()
"""


QUEUE = {**os.environ, "TASK_QUEUE_ENABLE": "1"}
CURE = "Cure: set TASK_QUEUE_ENABLE=0"


def run(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(command, env=QUEUE, capture_output=True, text=True, timeout=150)


def test_plain_tensors():
    done = run(PLAIN)
    assert done.returncode == 0, done.stderr
    assert "done (4, 4) 12 True" in done.stdout


def test_distributed_tensors_work_or_the_wait_is_reported(tmp_path):
    """Kernels that are Python need the GIL, which torch_npu may hold while it waits for its dispatch thread."""
    log = tmp_path / "stderr"
    with log.open("w") as sink:
        process = subprocess.Popen([sys.executable, "-W", "ignore", "-c", DTENSOR], env=QUEUE, stderr=sink)
    deadline = time.monotonic() + 150
    while (code := process.poll()) is None and CURE not in log.read_text():
        assert time.monotonic() < deadline, f"a silent hang: {log.read_text()}"
        time.sleep(0.2)
    process.kill()
    process.wait()
    assert code in (None, 0), log.read_text()


def test_a_kernel_that_cannot_get_the_gil_says_so():
    """The wait itself, made to happen: this thread keeps the GIL while the dispatch thread needs it for a kernel."""
    code = """
import ctypes, torch
from cann_emulator.kernels import registry
rows, functions = registry.rows, registry.functions
registry.rows = lambda: {name: row for name, row in rows().items() if name != "aclnnTan"}
registry.functions = lambda: functions() | {"aclnnTan": lambda x, out: out.fill_(4)}
x = torch.ones(4, device="npu")
x.tan(); torch.npu.synchronize()
keep = ctypes.PyDLL(None).usleep  # unlike a CDLL's, its calls do not give the GIL up
square = torch.ones(1500, 1500, device="npu")
square @ square  # needs no GIL, and keeps the dispatch thread busy while the next one is queued
y = x.tan()
keep(13_000_000)
print("done", y.sum().item())
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert "done 16.0" in done.stdout
    assert CURE in done.stderr, "13 s without the GIL, and nothing was said"


def test_a_kernel_that_loses_the_gil_in_the_middle_says_so():
    """A kernel gives the GIL up in each torch operator it calls, and may not get it back."""
    code = """
import ctypes, time, torch
from cann_emulator.kernels import registry
rows, functions = registry.rows, registry.functions
registry.rows = lambda: {name: row for name, row in rows().items() if name != "aclnnTan"}
registry.functions = lambda: functions() | {"aclnnTan": lambda x, out: (time.sleep(pause), out.fill_(4))}
pause = 0
x = torch.ones(4, device="npu")
x.tan(); torch.npu.synchronize()
keep = ctypes.PyDLL(None).usleep  # unlike a CDLL's, its calls do not give the GIL up
pause = 2
y = x.tan()
time.sleep(1)  # the kernel starts
keep(13_000_000)
print("done", y.sum().item())
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert "done 16.0" in done.stdout
    assert CURE in done.stderr, "12 s without the GIL, and nothing was said"
