"""One rank of `test_expert_dispatch`: dispatches tokens to experts on all ranks, compares with the formula, and prints
what it took as a JSON object."""

import ctypes
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
import torch_npu  # noqa: F401
from torch.distributed.device_mesh import init_device_mesh
from torchtitan.models.common.token_dispatcher import AllToAllTokenDispatcher

from torchtitan_npu.converters import dispatch

TOKENS, WIDTH, EXPERTS, CHOICES = 96, 32, 8, 3


def counters() -> Counter[str]:
    """Launches and bytes so far of all that is no kernel: `copy memcpy D2H launches` and the like."""
    torch.npu.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stats.json"
        ctypes.CDLL("libascendcl.so").emu_write_stats(str(path).encode())
        found = json.loads(path.read_text())["counters"]
    return Counter({f"{each['kind']} {each['name']} {key}": each[key] for each in found if each["kind"] != "kernel"
                    for key in ("launches", "bytes")})  # fmt: skip


def choices(kind: str, rank: int) -> torch.Tensor:
    """Each token's experts: at random, all on the first rank, or the same for all tokens of a rank."""
    if kind == "random":
        return torch.stack([torch.randperm(EXPERTS)[:CHOICES] for _ in range(TOKENS)])
    if kind == "first rank only":
        return torch.stack([torch.randperm(EXPERTS // dist.get_world_size())[:CHOICES] for _ in range(TOKENS)])
    return (torch.arange(CHOICES) + rank).expand(TOKENS, -1) % EXPERTS


def main() -> None:
    rank = int(os.environ["LOCAL_RANK"])
    torch.npu.set_device(rank)
    dist.init_process_group("hccl")
    ranks = dist.get_world_size()
    torch.manual_seed(rank)
    own = EXPERTS // ranks
    factors = torch.arange(1, EXPERTS + 1).float()
    config = AllToAllTokenDispatcher.Config(num_experts=EXPERTS, top_k=CHOICES)
    dispatcher = dispatch.all_to_all_dispatch(config).build()
    dispatcher.wire_meshes(ep_mesh=init_device_mesh("npu", (ranks,), mesh_dim_names=("ep",)))

    ids = choices(sys.argv[1], rank)
    x, scores = torch.randn(TOKENS, WIDTH), torch.rand(TOKENS, CHOICES)
    inputs = [x.npu().requires_grad_(), scores.npu().requires_grad_()]
    counts = torch.bincount(ids.flatten(), minlength=EXPERTS).npu()
    device_ids = ids.npu()
    early: list[bool] = []
    dispatcher.meanwhile = lambda: early.append(True)
    took: Counter[str] = Counter()
    took.subtract(counters())
    rows, of_experts, metadata = dispatcher.dispatch(*inputs, device_ids, counts)
    took.update(counters())
    assert early == [True] and dispatcher.meanwhile is None
    # torch_npu's repeat_interleave reads on the host when there is nothing to repeat: not the dispatcher's.
    mine = factors[rank * own : (rank + 1) * own].npu().repeat_interleave(of_experts, output_size=rows.shape[0])
    took.subtract(counters())
    out = dispatcher.combine(rows.square() * mine[:, None], metadata, inputs[0])
    took.update(counters())
    grad = torch.randn(TOKENS, WIDTH)
    out.backward(grad.npu())

    twins = [x.requires_grad_(), scores.requires_grad_()]
    expected = (twins[0].square()[:, None] * factors[ids][..., None] * twins[1][..., None]).sum(1)
    expected.backward(grad)
    torch.testing.assert_close(out.cpu(), expected)
    for a, e in zip(inputs, twins, strict=True):
        torch.testing.assert_close(a.grad.cpu(), e.grad)
    # One write: the ranks share the output.
    sys.stdout.write(json.dumps({"row_bytes": TOKENS * CHOICES * WIDTH * 4, "took": took}) + "\n")
    dist.destroy_process_group()


main()
