"""Operators that a product has no kernel of, and dtypes that it has no binary for, fail with the code of hardware."""

import os
import subprocess
import sys

import pytest
import torch
import torch_npu

RING = """
x, s = torch.ones(2, 1, 64, device="npu"), torch.ones(1, 1, 2, 8, device="npu")
torch_npu.npu_ring_attention_update(x, s, s, x, s, s)
"""
DISPATCH = """
x, experts = torch.ones(8, 16, device="npu", dtype=torch.bfloat16), torch.zeros(8, 2, dtype=torch.int32, device="npu")
torch_npu.npu_moe_distribute_dispatch_v2(x, experts, "group", 16, 0, 16)
"""


def run(soc: str, program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"import torch, torch_npu{program}"],
        capture_output=True, text=True, timeout=120, env={**os.environ, "CANN_EMULATOR_SOC": soc},
    )  # fmt: skip
    return done.stderr if done.returncode else ""


def test_an_operator_that_the_product_does_not_have_fails_when_it_is_launched() -> None:
    error = run("Ascend950PR_9599", RING)
    assert "error code is 561000" in error and "it exists for Atlas A2, Atlas A3" in error
    assert run("Ascend910B1", RING) == ""


def test_the_fused_dispatch_of_experts_has_no_kernel_on_an_a2() -> None:
    error = run("Ascend910B1", DISPATCH)
    assert "error code is 561000" in error and "MoeDistributeDispatchV4 has no kernel binary for Ascend910B1" in error


@pytest.mark.parametrize(
    ("x", "scale", "zero", "served"),
    [
        (torch.float16, torch.float32, torch.int32, True),
        (torch.bfloat16, torch.bfloat16, torch.bfloat16, True),
        (torch.float16, torch.float16, torch.int8, False),
        (torch.bfloat16, torch.float32, torch.int32, False),
    ],
)
def test_dtypes_without_a_binary_are_refused(x, scale, zero, served: bool) -> None:
    """A quantised Qwen3-32B on four ranks: 5120 wide, whatever the ranks, since norms are not cut."""
    inputs = [torch.ones(2, 5120, dtype=x).npu() for _ in range(2)]
    gamma, scales, zeros = (torch.ones(5120, dtype=dtype).npu() for dtype in (x, scale, zero))
    if served:
        y, *_ = torch_npu.npu_add_rms_norm_quant(*inputs, gamma, scales, zeros)
        assert y.unique().tolist() == [2]  # 1 / 1 + 1
        return
    with pytest.raises(RuntimeError, match="561000") as refused:
        torch_npu.npu_add_rms_norm_quant(*inputs, gamma, scales, zeros)
    assert "AddRmsNormQuant has no kernel binary for" in str(refused.value)
