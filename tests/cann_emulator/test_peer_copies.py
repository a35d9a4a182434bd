"""Tensors of several devices in one process: what copies them between devices, and what refuses to mix them."""

import ctypes
import os

import pytest
import torch

HERE, THERE = "npu:0", "npu:1"
VIEWS = {
    "whole": lambda x: x,
    "steps": lambda x: x[:, ::2],
    "transposed": lambda x: x.t(),
    "slice": lambda x: x[1:3, 1:],
    "column": lambda x: x[:, 1],
    "one element": lambda x: x[2, 3],
    "expanded": lambda x: x[:, :1].expand(4, 6),
    "rows": lambda x: x[::2],
    "rows of a slice": lambda x: x[1::2, 1:5],
    "selected": lambda x: x.view(2, 3, 4)[:, 1],
    "one row repeated": lambda x: x[1].expand(3, 6),
    "rows of a transpose": lambda x: x.t()[1:4],
    "column as a matrix": lambda x: x[:, 2:3],
    "permuted": lambda x: x.view(2, 2, 6).permute(2, 0, 1),
}


def numbers(device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(24.0).view(4, 6).to(dtype).to(device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("current", [0, 1])
def test_views_are_copied_to_another_device(view, dtype, current):
    with torch.npu.device(current):
        got = VIEWS[view](numbers(THERE, dtype)).to(HERE)
    assert got.device == torch.device(HERE)
    assert torch.equal(got.cpu(), VIEWS[view](numbers("cpu", dtype)))


@pytest.mark.parametrize("view", [name for name in VIEWS if name not in ("expanded", "one row repeated")])
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16], ids=str)
def test_views_are_written_from_another_device(view, source):
    target, wanted = numbers(THERE), numbers("cpu")
    values = -VIEWS[view](numbers("cpu", source))
    VIEWS[view](target).copy_(values.to(HERE))
    VIEWS[view](wanted).copy_(values)
    assert torch.equal(target.cpu(), wanted)


def test_far_steps_are_copied():
    # torch_npu transposes here and leaves the result on the source's device: only the values are looked at.
    got = numbers(THERE).repeat(1, 100)[:, ::300].to(HERE)
    assert torch.equal(got.cpu(), numbers("cpu").repeat(1, 100)[:, ::300])


def test_a_smaller_source_is_repeated():
    target = torch.empty(3, 2, device=THERE)
    target.copy_(torch.tensor([1.0, 2.0], device=HERE))
    assert target.tolist() == [[1, 2]] * 3


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtypes", [(torch.bfloat16, torch.float32), (torch.float32, torch.int32)], ids=str)
def test_dtypes_are_converted_on_the_way(view, dtypes):
    source, target = dtypes
    got = VIEWS[view](numbers(THERE, source)).to(HERE, target)
    assert got.dtype == target and got.device == torch.device(HERE)
    assert torch.equal(got.cpu(), VIEWS[view](numbers("cpu", source)).to(target))


def test_operators_do_not_mix_devices():
    here, there = torch.ones(2, device=HERE), torch.ones(2, device=THERE)
    with pytest.raises(RuntimeError, match=r"aclnnAdd: argument other lies on device 1, .*belongs to device 0.*npu:0"):
        here + there
        torch.npu.synchronize()
    assert (here + there.to(HERE)).tolist() == [2, 2]


def test_operators_run_on_the_device_of_their_tensors():
    there = torch.ones(4, 4, device=THERE, requires_grad=True)
    (torch.nn.functional.gelu(there @ there).softmax(-1) * there).sum().backward()
    assert there.grad.device == torch.device(THERE) and torch.npu.current_device() == 0


def test_other_named_operators_are_refused_by_name():
    library = ctypes.CDLL(os.environ["ASCEND_HOME_PATH"] + "/lib64/libacl_op_compiler.so")
    runtime = ctypes.CDLL(os.environ["ASCEND_HOME_PATH"] + "/lib64/libascendcl.so")
    runtime.aclGetRecentErrMsg.restype = ctypes.c_char_p
    assert library.aclopCompileAndExecute(b"Roll", 0, *[None] * 2, 0, *[None] * 3, 0, 0, None, None) == 207000
    message = runtime.aclGetRecentErrMsg().decode()
    assert "Roll is an operator of the older" in message and "StridedSlice, Transpose, ViewCopy" in message
