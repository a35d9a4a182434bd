"""One rank of `test_ring_attention`: attends to its chunks of packed rows, compares with whole rows on one device."""

import itertools
import os
import sys

import torch
import torch.distributed as dist
import torch_npu  # noqa: F401
from torch.distributed.device_mesh import init_device_mesh
from torchtitan.models.common.attention import create_varlen_metadata_for_document

from tests.torchtitan_npu.test_converters import documents, to_npu
from torchtitan_npu.converters import attention
from torchtitan_npu.converters.context_parallel import Context
from torchtitan_npu.converters.ring_attention import chunks

LENGTH = 48
STARTS = (
    ([0], [0]),
    ([0, 7, 30], [0, 1, 13]),
    (list(range(0, LENGTH, 4)), list(range(0, LENGTH, 3))),  # hardly a document goes over the border of a chunk
)
# Query heads, key/value heads, width of queries and keys, and of values: grouped, and as latent attention has them.
HEADS = ((4, 2, 16, 16), (3, 3, 24, 16))
NEAR: dict[str, dict[str, float]] = {"float32": {}, "bfloat16": {"rtol": 2e-2, "atol": 2e-2}}


def mine(x: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    return torch.cat([x[:, begin:end] for begin, end in chunks(rank, ranks, LENGTH)], dim=1)


def main() -> None:
    rank = int(os.environ["LOCAL_RANK"])
    torch.npu.set_device(rank)
    dist.init_process_group("hccl")
    ranks = dist.get_world_size()
    mesh = init_device_mesh("npu", (ranks,), mesh_dim_names=("cp",))
    compiled = sys.argv[1] == "compiled"
    for name, starts, (heads, kv_heads, width, value_width) in itertools.product(NEAR, STARTS, HEADS):
        torch.manual_seed(0)
        metadata = to_npu(create_varlen_metadata_for_document(documents(*starts, length=LENGTH)))
        shapes = ((heads, width), (kv_heads, width), (kv_heads, value_width))
        inputs = [torch.randn(2, LENGTH, *shape).npu().requires_grad_() for shape in shapes]
        whole = attention.NPUAttention.Config().build()(*inputs, attention_masks=metadata)
        grad = torch.randn_like(whole)
        whole.backward(grad)

        dtype = getattr(torch, name)
        own = [mine(x.detach(), rank, ranks).to(dtype).requires_grad_() for x in inputs]
        module = attention.NPUAttention.Config().build()
        module.context = Context(mesh, "ring")
        run = torch.compile(module, backend="aot_eager", fullgraph=True) if compiled else module
        output = run(*own, attention_masks=metadata)
        output.backward(mine(grad, rank, ranks).to(dtype))
        for actual, expected in zip((output, *(x.grad for x in own)), (whole, *(x.grad for x in inputs)), strict=True):
            torch.testing.assert_close(actual.float(), mine(expected.detach(), rank, ranks), **NEAR[name])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
