"""The NPU's AdamW against torch's on the CPU: values and state over several steps, checkpoints, launches."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torchtitan.components.optimizer import OptimizersContainer, default_adamw

from torchtitan_npu import launches
from torchtitan_npu.converters import optimizer
from torchtitan_npu.converters.optimizer import NPUAdamW

# With a limit of 16 elements three of them join and two do not.
SHAPES = ((8,), (3, 4), (), (8, 4), (2, 3, 5))
STEPS = 6


@pytest.fixture(autouse=True)
def _limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer, "SMALL", 16)


def numbers(seed: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]


def parameters(device: str, dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(tensor.to(device)) for tensor in numbers(0, dtype)]


def steps(optim: torch.optim.Optimizer, which: range, without: int | None = None) -> None:
    """Steps of these numbers, each with its own gradients; parameter `without` has none in the first."""
    (group,) = optim.param_groups
    for step in which:
        for i, (param, grad) in enumerate(zip(group["params"], numbers(step + 1), strict=True)):
            param.grad = None if step == 0 and i == without else grad.to(param)
        optim.step()


def assert_same(ours: torch.optim.Optimizer, twin: torch.optim.Optimizer) -> None:
    for own, other in zip(ours.param_groups[0]["params"], twin.param_groups[0]["params"], strict=True):
        torch.testing.assert_close(own.detach().cpu(), other.detach().cpu(), rtol=2e-5, atol=1e-6)
        assert ours.state[own].keys() == twin.state[other].keys()
        for name, value in twin.state[other].items():
            torch.testing.assert_close(ours.state[own][name].cpu(), value.cpu(), rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"weight_decay": 0.0},
        {"weight_decay": 0.3, "eps": 1e-3, "betas": (0.8, 0.95)},
        {"amsgrad": True},
        {"maximize": True},
        {"amsgrad": True, "maximize": True, "weight_decay": 0.3},
    ],
    ids=lambda settings: "-".join(settings) or "plain",
)
def test_takes_the_steps_that_torch_takes_on_the_cpu(settings: dict) -> None:
    ours = NPUAdamW(parameters("npu"), lr=0.05, fused=True, **settings)
    twin = torch.optim.AdamW(parameters("cpu"), lr=0.05, **settings)
    steps(ours, range(STEPS))
    steps(twin, range(STEPS))
    assert_same(ours, twin)


@pytest.mark.parametrize("late", [1, 3], ids=["of those that join", "of those that do not"])
def test_a_parameter_whose_first_gradient_comes_late_has_its_own_step_count(late: int) -> None:
    ours = NPUAdamW(parameters("npu"), lr=0.05, fused=True)
    twin = torch.optim.AdamW(parameters("cpu"), lr=0.05)
    steps(ours, range(STEPS), without=late)
    steps(twin, range(STEPS), without=late)
    assert_same(ours, twin)


def test_a_learning_rate_that_changes_is_followed() -> None:
    ours = NPUAdamW(parameters("npu"), lr=0.05, fused=True)
    twin = torch.optim.AdamW(parameters("cpu"), lr=0.05)
    for optim in (ours, twin):
        for step in range(STEPS):
            optim.param_groups[0]["lr"] = 0.05 / (step + 1)
            steps(optim, range(step, step + 1))
    assert_same(ours, twin)


def test_bfloat16_parameters_stay_with_the_operator_which_rounds_once_a_step() -> None:
    ours = NPUAdamW(parameters("npu", torch.bfloat16), lr=0.05, fused=True)
    theirs = torch.optim.AdamW(parameters("npu", torch.bfloat16), lr=0.05, fused=True)
    steps(ours, range(STEPS))
    steps(theirs, range(STEPS))
    for own, other in zip(ours.param_groups[0]["params"], theirs.param_groups[0]["params"], strict=True):
        assert torch.equal(own, other)


@pytest.mark.parametrize("first", ["torch's", "ours"])
@pytest.mark.parametrize("implementation", ["fused", "foreach"])
def test_the_state_of_either_resumes_with_the_other(first: str, implementation: str) -> None:
    flags = {"fused": True} if implementation == "fused" else {"foreach": True}
    kinds = [(torch.optim.AdamW, flags), (NPUAdamW, {"fused": True})]
    (kind, settings), (other, other_settings) = kinds if first == "torch's" else reversed(kinds)
    before = kind(parameters("npu"), lr=0.05, **settings)
    steps(before, range(3))
    weights = [param.detach().clone().requires_grad_() for param in before.param_groups[0]["params"]]
    after = other(weights, lr=0.05, **other_settings)
    state = before.state_dict()
    state["param_groups"][0] |= {"fused": None, "foreach": None} | other_settings
    after.load_state_dict(state)
    steps(after, range(3, STEPS))
    whole = torch.optim.AdamW(parameters("cpu"), lr=0.05)
    steps(whole, range(STEPS))
    assert_same(after, whole)


@pytest.mark.parametrize("first", ["upstream's", "ours"])
def test_the_checkpoint_of_either_container_resumes_with_the_other(first: str) -> None:
    """As checkpoints hold it: flat, by the parameters' names."""
    config = default_adamw(0.05)
    factories = [lambda config: config, optimizer.fused_adamw]
    before_config, after_config = (make(config) for make in (factories if first == "upstream's" else factories[::-1]))

    def model() -> torch.nn.Module:
        generator = torch.Generator().manual_seed(0)
        layer = torch.nn.Linear(4, 8)  # the weight is too large to join, the bias is not
        for param in layer.parameters():
            param.data = torch.randn(param.shape, generator=generator)
        return layer.npu()

    def train(optimizers: OptimizersContainer, which: range) -> None:
        for step in which:
            generator = torch.Generator().manual_seed(step)
            for param in optimizers.model_parts[0].parameters():
                param.grad = torch.randn(param.shape, generator=generator).npu()
            optimizers.step()

    whole, before = (config_.build(model_parts=[model()]) for config_ in (config, before_config))
    train(whole, range(STEPS))
    train(before, range(3))
    after = after_config.build(model_parts=[model()])
    after.model_parts[0].load_state_dict(before.model_parts[0].state_dict())
    after.load_state_dict(before.state_dict())
    train(after, range(3, STEPS))
    for own, other in zip(after.model_parts[0].parameters(), whole.model_parts[0].parameters(), strict=True):
        torch.testing.assert_close(own.detach(), other.detach(), rtol=1e-5, atol=1e-6)
    assert after.state_dict().keys() == whole.state_dict().keys()


def test_a_rank_updates_its_own_part_of_a_sharded_parameter() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        mesh = init_device_mesh("npu", (2,))
        whole, grad = torch.arange(8.0).npu(), torch.linspace(-1, 1, 8).npu()
        twin = torch.nn.Parameter(whole[4:].clone())
        sharded = torch.nn.Parameter(distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None))
        optimizers = [NPUAdamW([param], lr=0.05, fused=True) for param in (sharded, twin)]
        for _ in range(STEPS):
            sharded.grad, twin.grad = distribute_tensor(grad, mesh, [Shard(0)], src_data_rank=None), grad[4:].clone()
            for optim in optimizers:
                optim.step()
        assert isinstance(sharded, DTensor)
        assert torch.equal(sharded.to_local(), twin)
        assert not torch.equal(twin.cpu(), whole[4:].cpu())
    finally:
        dist.destroy_process_group()


def _launches(kind: type[torch.optim.AdamW], **settings: bool) -> int:
    optim = kind([torch.nn.Parameter(torch.ones(8).npu()) for _ in range(40)], lr=0.05, **settings)
    for _ in range(2):
        for param in optim.param_groups[0]["params"]:
            param.grad = torch.ones(8).npu()
        before = launches.total()
        optim.step()
        torch.npu.synchronize()
    return launches.total() - before


def test_small_parameters_take_a_launch_for_all_and_not_for_each() -> None:
    fused, foreach, ours = (
        _launches(torch.optim.AdamW, fused=True),
        _launches(torch.optim.AdamW, foreach=True),
        _launches(NPUAdamW, fused=True),
    )
    assert fused == 2 * 40 + 1
    assert ours < foreach < fused
    assert 3 * ours < foreach


@pytest.mark.parametrize("implementation", ["foreach", "for-loop"])
def test_other_implementations_are_torchs(implementation: str) -> None:
    config = default_adamw(0.05)
    config.implementation = implementation
    layers = [torch.nn.Linear(4, 2).npu() for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    for layer, made in zip(layers, (optimizer.fused_adamw(config), config), strict=True):
        optimizers = made.build(model_parts=[layer])
        for _ in range(3):
            for param in layer.parameters():
                param.grad = torch.ones_like(param)
            optimizers.step()
    for own, other in zip(layers[0].parameters(), layers[1].parameters(), strict=True):
        assert torch.equal(own, other)
