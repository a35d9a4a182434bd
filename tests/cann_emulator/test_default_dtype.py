"""Kernels compute the same whatever torch.set_default_dtype says: it belongs to the program, not to the device."""

import ast
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch_npu

import cann_emulator

KERNELS = sorted((Path(cann_emulator.__file__).parent / "kernels").glob("*.py"))
# What makes a tensor of the default dtype where none is named.
MAKERS = {"empty", "eye", "full", "linspace", "logspace", "ones", "rand", "randn", "tensor", "zeros"}


def _is_maker(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "torch"
        and node.func.attr in MAKERS
    )


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_kernels_name_the_dtype_of_what_they_make(path: Path) -> None:
    makers = [node for node in ast.walk(ast.parse(path.read_text())) if _is_maker(node)]
    assert [node.lineno for node in makers if all(keyword.arg != "dtype" for keyword in node.keywords)] == []


def attention(window: int) -> list[torch.Tensor]:
    q = torch.linspace(-1, 1, 2 * 8 * 16, dtype=torch.float32, device="npu").reshape(1, 2, 8, 16).requires_grad_()
    mask = torch.ones(8, 8, dtype=torch.bool, device="npu").triu(1)
    out = torch_npu.npu_fusion_attention(
        q, q, q, 2, "BNSD", atten_mask=mask, scale=0.25, sparse_mode=0, pre_tockens=window, next_tockens=0
    )[0]
    out.square().sum().backward()
    return [out.detach(), q.grad]


def loss() -> list[torch.Tensor]:
    x = torch.linspace(0, 1, 6, dtype=torch.float32, device="npu").reshape(2, 3).requires_grad_()
    target = torch.tensor([0, 2], device="npu")
    value = torch_npu.npu_cross_entropy_loss(x, target)[0]
    value.backward()
    return [value.detach(), x.grad]


def step() -> list[torch.Tensor]:
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float32, device="npu"))
    weight.grad = torch.ones_like(weight)
    torch.optim.AdamW([weight], fused=True).step()
    return [weight.detach()]


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("compute", [lambda: attention(65535), lambda: attention(2), loss, step])
def test_same_results(compute: Callable[[], list[torch.Tensor]], default: torch.dtype) -> None:
    expected = compute()
    torch.set_default_dtype(default)
    try:
        found = compute()
    finally:
        torch.set_default_dtype(torch.float32)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype and torch.equal(one.cpu(), other.cpu())
