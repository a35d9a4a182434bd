"""What a user is told: of a missing kernel, of a refusal, of a kernel that fails, of torch_npu without CANN."""

import os
import subprocess
import sys

import pytest
import torch

# Kernels are loaded at the first launch: what is changed in the registry before that is what is loaded.
BROKEN = """
import torch
from cann_emulator.kernels import registry

def failing(x, out):
    raise ZeroDivisionError("for a test")

def refusing(x, out):
    registry.refuse(161002, "x is 3-dimensional, allowed is 2")

broken = {"aclnnSinh": failing, "aclnnErf": refusing}
rows, functions = registry.rows, registry.functions
without = lambda table: {name: kernel for name, kernel in table.items() if name not in ("aclnnTan", *broken)}
registry.rows = lambda: without(rows())
registry.functions = lambda: without(functions()) | broken

x = torch.zeros(2, device="npu")
for call in (torch.tan, torch.sinh, torch.erf):
    try:
        call(x)
    except RuntimeError as error:
        print(error)
    print("goes on:", torch.cos(x).tolist())
    print("----")
"""


def python(code: str, **settings: str | None) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter; a setting of None is taken out of the environment."""
    environment = {name: value for name, value in {**os.environ, **settings}.items() if value is not None}
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150)


def test_kernels_that_are_missing_fail_or_refuse():
    done = python(BROKEN)
    assert done.returncode == 0, done.stderr
    missing, failing, refusing, _ = done.stdout.split("----")

    assert "call aclnnTan failed, error code is 561003" in missing
    assert "aclnnTan is not implemented by the CANN emulator" in missing
    assert "cann_emulator/signatures/rows/" in missing and "cann_emulator/kernels/" in missing

    assert "call aclnnSinh failed, error code is 561000" in failing
    assert "ZeroDivisionError: for a test (<string>:6 in failing)" in failing

    assert "call aclnnErf failed, error code is 161002" in refusing
    assert "x is 3-dimensional, allowed is 2" in refusing

    for text in (missing, failing, refusing):
        assert "goes on: [1.0, 1.0]" in text


def test_a_dtype_that_hardware_does_not_take_is_refused_with_the_list():
    with pytest.raises(RuntimeError, match=r"161002[\s\S]*DT_INT64[\s\S]*DT_FLOAT16"):
        torch.ones(2, 2, dtype=torch.int64, device="npu") @ torch.ones(2, 2, dtype=torch.int64, device="npu")


def test_an_error_does_not_stay():
    with pytest.raises(RuntimeError):
        torch.ones(2, 2, dtype=torch.int64, device="npu") @ torch.ones(2, 2, dtype=torch.int64, device="npu")
    torch.npu.synchronize()
    assert (torch.ones(2, 2, device="npu") @ torch.ones(2, 2, device="npu")).tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_without_cann_the_import_names_the_missing_library():
    """On a plain host the wheel cannot be imported; the first cause is said, not a second one."""
    plain = {"ASCEND_HOME_PATH": None, "ASCEND_OPP_PATH": None, "LD_LIBRARY_PATH": None}
    done = python("import torch_npu", TORCH_DEVICE_BACKEND_AUTOLOAD="0", **plain)
    assert done.returncode == 1
    assert "libascendcl.so" in done.stderr or "libhccl.so" in done.stderr, done.stderr
    assert "cannot open shared object file" in done.stderr


def test_without_cann_torch_itself_says_which_backend_fails():
    plain = {"ASCEND_HOME_PATH": None, "ASCEND_OPP_PATH": None, "LD_LIBRARY_PATH": None}
    done = python("import torch", TORCH_DEVICE_BACKEND_AUTOLOAD="1", **plain)
    assert done.returncode == 1
    assert "torch_npu" in done.stderr and "cannot open shared object file" in done.stderr


def test_torch_npu_may_be_imported_first_and_a_tensor_printed_first():
    """Loading a backend loads torch, which loads backends. Printing reduces, masks and formats."""
    code = "import torch_npu, torch; print(torch.tensor([[1., 2.5], [-3., float('nan')]]).npu())"
    done = python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "tensor([[ 1.0000,  2.5000],\n        [-3.0000,     nan]], device='npu:0')\n"


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.gather(x, 0, torch.zeros(3, 3, dtype=torch.long, device="npu")),
        lambda x: torch.nn.functional.glu(x[:, :1]),
        lambda x: torch.index_add(x, 0, torch.zeros(1, dtype=torch.long, device="npu"), x),
    ],
    ids=["gather", "glu", "index_add"],
)
def test_shapes_that_do_not_fit_a_row_are_the_callers_mistake(call):
    with pytest.raises(RuntimeError, match="error code is 161002") as caught:
        call(torch.ones(2, 2, device="npu"))
    assert "EZ1001" in str(caught.value)
    assert torch.ones(2, device="npu").sum().item() == 2  # the process goes on


def test_an_index_beyond_the_tensor_is_found_while_the_operator_runs():
    with pytest.raises(RuntimeError, match=r"error code is 561000.*\n.*\n.*index out of range"):
        torch.index_select(torch.ones(3, device="npu"), 0, torch.tensor([9], device="npu"))
