"""Tensors of every kind reach kernels as they are: dtype, strides, offset, aliases, no elements."""

import threading

import pytest
import torch

TORCH_DTYPES = [
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.complex64,
]


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.arange(torch.Size(shape).numel()) % 7 - (0 if dtype is torch.uint8 else 3)).reshape(shape).to(dtype)


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
def test_dtypes_with_strides_and_offsets(dtype):
    host = numbers(4, 6, dtype=dtype)
    device = host.npu()
    assert device.dtype is dtype
    for view in (lambda x: x.t(), lambda x: x[1:, 1::2], lambda x: x[:, None].expand(4, 3, 6), lambda x: x[2]):
        assert torch.equal(view(device).clone().cpu(), view(host).clone())
        assert torch.equal(torch.cat([view(device), view(device)]).cpu(), torch.cat([view(host), view(host)]))
        assert torch.equal((view(device) == view(device)).cpu(), view(host) == view(host))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_float8_is_stored_and_copied(dtype):
    host = torch.tensor([[0.5, -2.0, 448.0]]).to(dtype)
    device = host.npu()
    assert device.dtype is dtype and device.element_size() == 1
    assert torch.equal(device.cpu().view(torch.uint8), host.view(torch.uint8))
    assert torch.equal(device.t().contiguous().cpu().view(torch.uint8), host.t().contiguous().view(torch.uint8))


def test_arguments_may_be_the_same_memory():
    host = numbers(3, 3)
    device = host.npu()
    address = device.data_ptr()
    assert torch.equal(device.add_(device).cpu(), host + host)
    assert torch.equal(torch.mul(device, device, out=device).cpu(), (host + host) ** 2)
    assert device.data_ptr() == address
    assert torch.equal(torch.maximum(device, device.t()).cpu(), torch.maximum((2 * host) ** 2, (2 * host).t() ** 2))


def test_a_view_is_written_and_nothing_else():
    device = torch.zeros(4, 4, device="npu")
    device[1:3, ::2].add_(1)
    device.t()[0, 3] = 5
    device.diagonal().mul_(3)
    expected = torch.zeros(4, 4)
    expected[1:3, ::2] += 1
    expected[3, 0] = 5
    expected.diagonal().mul_(3)
    assert torch.equal(device.cpu(), expected)


def test_gradients_through_views_and_in_place():
    def gradient(device: str) -> torch.Tensor:
        x = numbers(3, 4).to(device).requires_grad_()
        y = x.t()[1:].clone()
        y.mul_(x[:, 1:].t())
        y[0] = 2
        (y.exp() * 1e-3).sum().backward()
        return x.grad.cpu()

    torch.testing.assert_close(gradient("npu"), gradient("cpu"))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 4)], ids=str)
def test_no_elements(shape):
    x = torch.empty(shape, device="npu", requires_grad=True)
    y = torch.nn.functional.softmax((x * 2).relu() + 1, -1)
    y.sum().backward()
    assert x.grad.shape == shape
    assert (x.sum().item(), x.prod().item()) == (0.0, 1.0)
    assert torch.matmul(torch.empty(3, 0, device="npu"), torch.empty(0, 2, device="npu")).tolist() == [[0.0, 0.0]] * 3
    with pytest.raises(RuntimeError):
        x.amax()


def test_two_threads_launch_python_kernels_and_rows():
    """Functions need the GIL, rows do not: neither may wait for the other for ever, nor mix up arguments."""
    failures: list[str] = []

    def work(seed: int) -> None:
        torch.npu.set_device(seed % 2)
        x = torch.full((8, 8), float(seed), device="npu")
        for _ in range(60):
            y = torch.nn.functional.gelu(x, approximate="tanh") + (x @ x)  # a function and two rows
            z = torch.nn.functional.layer_norm(y, (8,))
            if not bool((y[0, 0] == y).all()) or float(z.abs().max()) > 1e-3:
                failures.append(f"thread {seed}: {y}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    assert not failures
