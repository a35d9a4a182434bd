"""Tensor operators on the NPU against the CPU, where PyTorch's operator database does not look.

In-place forms, outputs with strides, empty tensors, shapes that depend on values, and torch_npu's calling conventions.
"""

from collections.abc import Callable

import pytest
import torch

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.bool]


def _values(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-4, 5, shape, generator=generator).to(dtype)


def _same(device: torch.Tensor, host: torch.Tensor) -> None:
    torch.testing.assert_close(device.cpu(), host, rtol=0, atol=0, equal_nan=True)


def _strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, every other element of the storage."""
    wide = torch.zeros(*tensor.shape[:-1], 2 * tensor.shape[-1], dtype=tensor.dtype, device=tensor.device)
    wide[..., ::2] = tensor
    return wide[..., ::2]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[x != 0],
        torch.nonzero,
        torch.unique,
        lambda x: torch.unique(x, return_inverse=True, return_counts=True)[2],
        lambda x: torch.unique(x, dim=0, return_counts=True)[1],
        lambda x: torch.unique_consecutive(x, return_counts=True)[1],
        lambda x: torch.masked_select(x, x > 0) if x.dtype is not torch.bool else torch.masked_select(x, x),
        lambda x: torch.argwhere(x),
    ],
    ids=["mask", "nonzero", "unique", "counts", "rows", "runs", "masked_select", "argwhere"],
)
def test_shapes_that_depend_on_values(function: Callable, dtype: torch.dtype) -> None:
    for shape in [(5, 3), (1, 1)]:
        host = _values(shape, dtype)
        _same(function(host.npu()), function(host))
    _same(function(_strided(_values((5, 3), dtype).npu())), function(_values((5, 3), dtype)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_indexing_leaves_dimensions_out(dtype: torch.dtype) -> None:
    host, rows = _values((4, 3, 5), dtype), torch.tensor([2, 0, -1])
    device = host.npu()
    for index in [(rows,), (slice(None), rows[:2]), (rows, slice(None), rows), (..., rows), (rows[:0],)]:
        on_device = tuple(i.npu() if isinstance(i, torch.Tensor) else i for i in index)
        _same(device[on_device], host[index])
        value = host[index].clone().mul(2) if dtype is not torch.bool else host[index].clone().logical_not()
        changed, expected = device.clone(), host.clone()
        changed[on_device], expected[index] = value.npu(), value
        _same(changed, expected)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32], ids=str)
def test_an_empty_index_writes_nothing(dtype: torch.dtype) -> None:
    device = torch.ones(4, dtype=dtype, device="npu")
    device[torch.tensor([], dtype=torch.int64, device="npu")] = 7
    _same(device, torch.ones(4, dtype=dtype))


def test_accumulating_halves_rounds_once() -> None:
    index, ones = torch.zeros(512, dtype=torch.int64, device="npu"), torch.ones(512, dtype=torch.bfloat16, device="npu")
    total = torch.tensor([512.0], dtype=torch.bfloat16)  # one by one, bfloat16 stops counting at 256
    zero = torch.zeros(1, dtype=torch.bfloat16, device="npu")
    _same(zero.clone().index_put_((index,), ones, accumulate=True), total)
    _same(zero.clone().index_add_(0, index, ones), total)
    _same(zero.clone().scatter_add_(0, index, ones), total)
    _same(ones.sum(), total[0])
    _same(ones.cumsum(0)[-1:], total)


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce(reduce: str) -> None:
    host, source = _values((4, 3), torch.float32), _values((6, 3), torch.float32, 1)
    index = torch.randint(0, 4, (6, 3), generator=torch.Generator().manual_seed(2))
    for include in (True, False):
        expected = host.scatter_reduce(0, index, source, reduce, include_self=include)
        _same(host.npu().scatter_reduce(0, index.npu(), source.npu(), reduce, include_self=include), expected)
    _same(host.npu().scatter_(0, index.npu(), 2.0), host.clone().scatter_(0, index, 2.0))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "name", ["add_", "mul_", "eq_", "lt_", "logical_and_", "logical_or_", "sub_", "remainder_", "pow_"]
)
def test_in_place(name: str, dtype: torch.dtype) -> None:
    if dtype is torch.bool and name in ("sub_", "remainder_", "pow_"):
        pytest.skip("not defined for truth values")
    host = _values((4, 3), dtype)
    other = _values((3,), dtype, 1) if dtype is torch.bool else _values((3,), dtype, 1).abs() + 1
    expected = getattr(host.clone(), name)(other)
    for device in (host.npu(), _strided(host.npu())):
        address = device.data_ptr()
        getattr(device, name)(other.npu())
        assert device.data_ptr() == address
        _same(device, expected)
    if not name.startswith("logical") and dtype is not torch.bool:
        _same(getattr(host.npu(), name)(2), getattr(host.clone(), name)(2))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, out: torch.add(x, x, out=out),
        lambda x, out: torch.exp(x, out=out),
        lambda x, out: torch.cumsum(x, 0, out=out),
        lambda x, out: torch.matmul(x, x.new_ones(3, 3), out=out),
        lambda x, out: torch.where(x > 0, x, -x, out=out),
        lambda x, out: torch.cat([x[:2], x[2:]], out=out),
        lambda x, out: torch.gather(x, 0, torch.zeros(4, 3, dtype=torch.int64, device=x.device), out=out),
    ],
    ids=["add", "exp", "cumsum", "matmul", "where", "cat", "gather"],
)
def test_outputs_with_strides(function: Callable) -> None:
    host = _values((4, 3), torch.float32)
    expected = function(host, torch.empty(4, 3))
    out = _strided(torch.zeros(4, 3, device="npu"))
    function(host.npu(), out)
    torch.testing.assert_close(out.cpu(), expected, rtol=1e-6, atol=1e-6)
    assert not out.is_contiguous()
    assert not torch.as_strided(out, (4, 3), (6, 2), out.storage_offset() + 1).any(), "the gaps were written to"


def test_full_reductions_with_out() -> None:
    truth = torch.tensor([[True, False], [True, True]], device="npu")
    for function, expected in ((torch.all, False), (torch.any, True)):
        assert function(truth, out=torch.empty((), dtype=torch.bool, device="npu")).item() is expected


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), ()], ids=str)
def test_empty_and_scalar_tensors(shape: tuple[int, ...]) -> None:
    host = torch.ones(shape)
    device = host.npu()
    for function in (torch.neg, torch.sum, torch.isfinite, torch.nonzero, torch.unique, torch.prod, torch.triu):
        if function is torch.triu and host.dim() < 2:
            continue
        _same(function(device), function(host))
    _same(torch.cat([device.reshape(-1), device.reshape(-1)]), torch.cat([host.reshape(-1), host.reshape(-1)]))
    _same(device + 1, host + 1)
    _same(device.expand(2, *shape).clone(), host.expand(2, *shape).clone())


def test_int64_ranges_with_fractions_are_refused() -> None:
    with pytest.raises(RuntimeError, match="give an int64 range integer bounds"):
        torch.arange(0, 1.5, 1, dtype=torch.int64, device="npu")
    _same(torch.arange(0, 1.5, 1, device="npu"), torch.arange(0, 1.5, 1))


@pytest.mark.parametrize("repeats", [2, [1, 0, 3]])
@pytest.mark.parametrize("dim", [None, 0, 1])
def test_repeat_interleave(repeats: int | list[int], dim: int | None) -> None:
    host = _values((3, 3), torch.float32).requires_grad_()
    device = host.detach().npu().requires_grad_()
    if isinstance(repeats, list):
        counts = torch.tensor(repeats * 3 if dim is None else repeats)
        expected, result = host.repeat_interleave(counts, dim), device.repeat_interleave(counts.npu(), dim)
    else:
        expected, result = host.repeat_interleave(repeats, dim), device.repeat_interleave(repeats, dim)
    _same(result, expected)
    expected.square().sum().backward()
    result.square().sum().backward()
    _same(device.grad, host.grad)


def test_complex_numbers() -> None:
    host = torch.complex(_values((4,), torch.float32), _values((4,), torch.float32, 1))
    device = host.npu()
    for function in (torch.abs, torch.angle, torch.sgn, torch.real, torch.conj_physical, lambda x: x * x, torch.exp):
        torch.testing.assert_close(function(device).cpu(), function(host))


def test_fourier_transforms() -> None:
    host = torch.randn(2, 400, generator=torch.Generator().manual_seed(0))
    window = torch.hann_window(64)
    torch.testing.assert_close(torch.fft.rfft(host.npu()).cpu(), torch.fft.rfft(host))
    torch.testing.assert_close(
        torch.stft(host.npu(), 64, 16, window=window.npu(), return_complex=True).cpu(),
        torch.stft(host, 64, 16, window=window, return_complex=True),
        rtol=1e-4,
        atol=1e-5,
    )
