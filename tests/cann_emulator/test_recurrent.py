"""Recurrent layers on the NPU against the CPU, forward and backward."""

import copy

import pytest
import torch


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("layer", [torch.nn.LSTM, torch.nn.GRU])
def test_layer(layer: type[torch.nn.RNNBase], batch_first: bool, bidirectional: bool) -> None:
    if layer is torch.nn.LSTM and bidirectional:
        pytest.skip("torch_npu takes the operator for one direction only")
    torch.manual_seed(0)
    host = layer(4, 5, batch_first=batch_first, bidirectional=bidirectional)
    device = copy.deepcopy(host).npu()
    x = torch.randn(3, 2, 4)
    on_host, on_device = x.clone().requires_grad_(), x.npu().requires_grad_()
    expected, result = host(on_host)[0], device(on_device)[0]
    torch.testing.assert_close(result.cpu(), expected)
    weight = torch.randn_like(expected)
    (expected * weight).sum().backward()
    (result * weight.npu()).sum().backward()
    torch.testing.assert_close(on_device.grad.cpu(), on_host.grad)
    for mine, theirs in zip(device.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad)
