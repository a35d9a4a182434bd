"""Elementwise operators that are not one kernel of the fused loops."""

import torch

from .registry import Node, bits, kernel


@kernel("SelectV2", "Select")
def select(n: Node) -> None:
    """Takes elements from one tensor or the other."""
    condition, a, b = n.inputs.values()
    if n.type == "Select" and 0 < condition.dim() < a.dim():
        condition = condition.reshape(list(condition.shape) + [1] * (a.dim() - condition.dim()))
    n.call("where.self_out", condition, bits(a), bits(b), out=bits(n.out))


@kernel("Exp")
def exp(n: Node) -> None:
    """base ** (scale * x + shift); base -1 stands for e."""
    base, scale, shift = n.attr("base", -1.0), n.attr("scale", 1.0), n.attr("shift", 0.0)
    if (base, scale, shift) == (-1.0, 1.0, 0.0):
        n.call("exp.out", n.x, out=n.y)
    else:
        n.run(_exp, n.x, n.y, base, scale, shift)


def _exp(x: torch.Tensor, y: torch.Tensor, base: float, scale: float, shift: float) -> None:
    power = x.double() * scale + shift
    y.copy_(torch.exp(power) if base == -1.0 else torch.pow(base, power))


@kernel("Log")
def log(n: Node) -> None:
    """The logarithm of scale * x + shift to a base; base -1 stands for e."""
    base, scale, shift = n.attr("base", -1.0), n.attr("scale", 1.0), n.attr("shift", 0.0)
    if (base, scale, shift) == (-1.0, 1.0, 0.0):
        n.call("log.out", n.x, out=n.y)
    else:
        n.run(_log, n.x, n.y, base, scale, shift)


def _log(x: torch.Tensor, y: torch.Tensor, base: float, scale: float, shift: float) -> None:
    value = torch.log(x.double() * scale + shift)
    y.copy_(value if base == -1.0 else value / torch.log(torch.tensor(base, dtype=torch.float64)))


@kernel("Round")
def round_(n: Node) -> None:
    """Rounds to decimals, halves to even."""
    n.call("round.decimals_out", n.x, decimals=n.attr("decimals", 0), out=n.y) if n.x.is_floating_point() else n.copy(
        n.y, n.x
    )


@kernel("Conj")
def conj(n: Node) -> None:
    """The complex conjugate."""
    n.call("_conj_physical", n.inputs["input"], results=(n.out,))


@kernel("Real", "Imag")
def part(n: Node) -> None:
    """A part of complex numbers."""
    x = n.inputs["input"]
    if x.is_complex():
        n.copy(n.out, torch.view_as_real(x).select(-1, int(n.type == "Imag")))
    elif n.type == "Real":
        n.copy(n.out, x)
    else:
        n.call("fill_.Scalar", n.out, 0)


@kernel("Complex", "ComplexV2")
def complex_(n: Node) -> None:
    """Complex numbers from their parts."""
    pairs = torch.view_as_real(n.out)
    n.copy(pairs.select(-1, 0), n.real.expand(n.out.shape))
    n.copy(pairs.select(-1, 1), n.imag.expand(n.out.shape))


@kernel("ComplexAbs", "Angle")
def modulus(n: Node) -> None:
    """Modulus or argument of complex numbers."""
    n.call("abs.out" if n.type == "ComplexAbs" else "angle.out", next(iter(n.inputs.values())), out=n.out)


@kernel("AddN", "AccumulateNV2")
def add_n(n: Node) -> None:
    """The sum of tensors."""
    n.run(_add_n, n.x, n.y)


def _add_n(x: list[torch.Tensor], y: torch.Tensor) -> None:
    total = x[0].float() if y.element_size() < 4 and y.is_floating_point() else x[0].clone()
    for value in x[1:]:
        total += value
    y.copy_(total)


@kernel("Fills")
def fills(n: Node) -> None:
    """A tensor of one value."""
    n.call("fill_.Scalar", bits(n.y), n.value if n.y.is_floating_point() else int(n.value))


def _plain(function):
    """A kernel that computes its output as a function of its inputs, in Python."""

    def add(n: Node) -> None:
        n.run(lambda y, *x: y.copy_(function(*x)), n.out, *n.inputs.values())

    return add


kernel("SquaredDifference")(_plain(lambda a, b: (a - b) * (a - b)))
kernel("DivNoNan")(_plain(lambda a, b: torch.where(b == 0, 0, a / torch.where(b == 0, 1, b))))
kernel("MulNoNan")(_plain(lambda a, b: torch.where(b == 0, 0, a * b)))
kernel("Xdivy")(_plain(lambda a, b: torch.where(a == 0, 0, a / b)))
kernel("L2Loss")(_plain(lambda x: x.double().square().sum() / 2))
