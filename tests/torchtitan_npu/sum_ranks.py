"""One rank of `test_gradients`: a backward pass under FSDP as upstream sets it up, without and with `only_sum`; prints
whether the gradients are the same to the bit, and the launches of each.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
import torch_npu  # noqa: F401
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from torchtitan_npu import gradients, launches


def backward(mesh: DeviceMesh, only_sum: bool) -> tuple[list[torch.Tensor], int]:
    torch.manual_seed(0)
    model = fully_shard(torch.nn.Linear(16, 8).npu(), mesh=mesh)
    model.set_gradient_divide_factor(1.0)
    if only_sum:
        gradients.only_sum([model])
    torch.manual_seed(dist.get_rank() + 1)
    x = torch.randn(6, 16).npu()
    before = launches.total() or 0
    model(x).square().sum().backward()
    torch.npu.synchronize()
    taken = (launches.total() or 0) - before
    return [parameter.grad.full_tensor().cpu() for parameter in model.parameters()], taken


def main() -> None:
    torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("hccl")
    ranks = dist.get_world_size()
    sharded = init_device_mesh("npu", (ranks,))
    replicated = init_device_mesh("npu", (ranks, 1), mesh_dim_names=("replicas", "shards"))
    found = {}
    for name, mesh in {"sharded": sharded, "replicated": replicated, "alone": replicated["shards"]}.items():
        (theirs, taken), (ours, fewer) = backward(mesh, False), backward(mesh, True)
        same = all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        found[name] = {"same": same, "saved": taken - fewer, "norm": theirs[0].norm().item()}
    sys.stdout.write(json.dumps(found) + "\n")  # one write: the ranks share the output
    dist.destroy_process_group()


main()
