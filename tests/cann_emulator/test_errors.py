"""What a user is told: of a missing kernel, of a refusal, of a kernel that fails, of torch_npu without CANN."""

import os
import re
import subprocess
import sys

import pytest
import torch

# Kernels are loaded at the first launch: what is changed in the registry before that is what is loaded.
CHANGED = """
import torch
from cann_emulator.kernels import registry
rows, functions = registry.rows, registry.functions
def replace(name, kernel):
    without = lambda table: {key: value for key, value in table.items() if key != name}
    registry.rows = lambda: without(rows())
    registry.functions = lambda: without(functions()) | ({name: kernel} if kernel else {})
def report(call):
    try:
        print(call())
    except RuntimeError as error:
        print(error)
"""


def python(code: str, **settings: str | None) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter; a setting of None is taken out of the environment."""
    environment = {name: value for name, value in {**os.environ, **settings}.items() if value is not None}
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150)


def printed(code: str) -> str:
    done = python(CHANGED + code)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_operator_without_a_kernel_names_itself_and_where_to_add_it():
    text = printed(
        """
replace("aclnnTan", None)
x = torch.zeros(2, device="npu")
report(lambda: torch.tan(x))
print("goes on", torch.cos(x).tolist())
"""
    )
    assert "call aclnnTan failed, error code is 561003" in text
    assert "aclnnTan is not implemented by the CANN emulator" in text
    assert "cann_emulator/signatures/rows/" in text and "cann_emulator/kernels/" in text
    assert "goes on [1.0, 1.0]" in text


def test_a_kernel_that_fails_is_an_error_that_says_where():
    done = python(
        CHANGED
        + """
def failing(x, out):
    raise ZeroDivisionError("for a test")
replace("aclnnTan", failing)
report(lambda: torch.tan(torch.zeros(2, device="npu")))
print("goes on", torch.zeros(2, device="npu").tolist())
"""
    )
    assert done.returncode == 0, done.stderr
    assert "call aclnnTan failed, error code is 561000" in done.stdout
    assert "ZeroDivisionError: for a test" in done.stdout
    assert re.search(r"\(\S+:\d+ in failing\)", done.stdout), done.stdout
    assert "goes on [0.0, 0.0]" in done.stdout


def test_a_refusal_has_the_code_that_the_kernel_chose():
    text = printed(
        """
replace("aclnnTan", lambda x, out: registry.refuse(161002, "x is 3-dimensional, allowed is 2"))
report(lambda: torch.tan(torch.zeros(2, device="npu")))
"""
    )
    assert "error code is 161002" in text and "x is 3-dimensional, allowed is 2" in text


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


@pytest.mark.parametrize("first", ["import torch_npu, torch", "import torch, torch_npu"])
def test_either_import_may_come_first(first):
    done = python(first + "\nprint(torch.ones(1, device='npu').item())", TORCH_DEVICE_BACKEND_AUTOLOAD="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "1.0"


def test_a_tensor_can_be_printed_first():
    """Printing reduces, masks and formats: the first operators that a user's first line reaches."""
    done = python("import torch, torch_npu; print(torch.tensor([[1., 2.5], [-3., float('nan')]]).npu())")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "tensor([[ 1.0000,  2.5000],\n        [-3.0000,     nan]], device='npu:0')\n"
