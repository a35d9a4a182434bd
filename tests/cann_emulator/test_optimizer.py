"""Optimizers on the NPU take the steps they take on the CPU."""

import pytest
import torch
import torch_npu  # noqa: F401

STEPS = 5
CASES = [
    (torch.optim.AdamW, {"fused": True}),
    (torch.optim.AdamW, {"fused": True, "amsgrad": True}),
    (torch.optim.AdamW, {"fused": True, "maximize": True, "weight_decay": 0.0}),
    (torch.optim.AdamW, {"foreach": True}),
    (torch.optim.AdamW, {"foreach": False}),
    (torch.optim.Adam, {"foreach": True, "weight_decay": 0.1}),
    (torch.optim.Adam, {"foreach": True, "amsgrad": True}),
    (torch.optim.SGD, {"foreach": True, "momentum": 0.9, "nesterov": True}),
    (torch.optim.SGD, {"fused": True, "momentum": 0.9}),
    (torch.optim.SGD, {"fused": True, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True}),
    (torch.optim.RMSprop, {"foreach": True}),
    (torch.optim.Adagrad, {"foreach": True}),
    (torch.optim.NAdam, {"foreach": True}),
    (torch.optim.Adamax, {"foreach": True}),
]


def trajectory(kind, options, device, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    shapes = [(8, 4), (4,), (3, 2, 2), ()]
    parameters = [torch.nn.Parameter(torch.randn(s, generator=generator).to(dtype).to(device)) for s in shapes]
    optimizer = kind(parameters, lr=0.05, **options)
    for _ in range(STEPS):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(dtype).to(device)
        optimizer.step()
    return [p.detach().cpu() for p in parameters]


@pytest.mark.parametrize("kind, options", CASES, ids=lambda c: c.__name__ if isinstance(c, type) else "-".join(c))
def test_same_steps(kind, options):
    expected = trajectory(kind, {k: v for k, v in options.items() if k != "fused"}, "cpu")
    for actual, wanted in zip(trajectory(kind, options, "npu"), expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-5, atol=1e-6)


def test_fused_adamw_in_bf16_rounds_once_a_step():
    options = {"fused": True}
    expected = trajectory(torch.optim.AdamW, {}, "cpu", torch.bfloat16)
    for actual, wanted in zip(trajectory(torch.optim.AdamW, options, "npu", torch.bfloat16), expected, strict=True):
        torch.testing.assert_close(actual.float(), wanted.float(), rtol=5e-2, atol=5e-2)


def test_adamw_operator_is_given_the_step_before_this_one():
    """One step from zero state: the bias corrections cancel, so the update is lr * sign(grad)."""
    parameter = torch.nn.Parameter(torch.zeros(4).npu())
    parameter.grad = torch.tensor([1.0, -2.0, 0.5, -0.1]).npu()
    torch.optim.AdamW([parameter], lr=0.1, weight_decay=0.0, fused=True).step()
    torch.testing.assert_close(parameter.detach().cpu(), torch.tensor([-0.1, 0.1, -0.1, 0.1]), rtol=1e-4, atol=1e-6)


def test_grad_scaler():
    parameter = torch.nn.Parameter(torch.ones(4).npu())
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler = torch.amp.GradScaler("npu", init_scale=8.0, growth_interval=1)
    scaler.scale((parameter * 2).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    torch.testing.assert_close(parameter.detach().cpu(), torch.full((4,), -1.0))
    assert scaler.get_scale() == 16.0
    optimizer.zero_grad()
    scaler.scale((parameter * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    torch.testing.assert_close(parameter.detach().cpu(), torch.full((4,), -1.0))
    assert scaler.get_scale() == 8.0
