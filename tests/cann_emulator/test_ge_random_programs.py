"""Random graphs with loops, conditions and shared memory, against the same programs in numpy.

What is sought are faults of the memory plan: a tensor that is overwritten while it is still needed.
"""

from dataclasses import dataclass, field

import numpy as np
import pytest
from ge._compiler import recompute

from tests.cann_emulator.ge_runtime import Edge, Model, Net, compiled

SHAPE = (4, 6)
FLOAT = np.float32


def _const(net: Net, *values: int) -> Edge:
    return net.const(list(values), np.int64)


def _rows(net: Net, x: Edge, first: int, count: int) -> Edge:
    return net.op("Slice", x, _const(net, first, 0), _const(net, count, SHAPE[1]))


def _row_added(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    result = x.copy()
    result[1] += y[2]
    return result


# Steps of two operands: how a net computes them, and numpy.
STEPS = [
    (lambda n, x, y: n.op("Maximum", x, y), np.maximum),
    (lambda n, x, y: n.op("Sub", x, y), np.subtract),
    (
        lambda n, x, y: n.op("Reshape", n.op("Transpose", x, _const(n, 1, 0)), _const(n, *SHAPE)),
        lambda x, y: x.T.reshape(SHAPE),
    ),
    (
        lambda n, x, y: n.op("ConcatD", _rows(n, x, 0, 2), _rows(n, y, 2, 2), concat_dim=0, N=2),
        lambda x, y: np.concatenate([x[:2], y[2:]]),
    ),
    (
        lambda n, x, y: n.op("Sub", y, n.op("ReduceMax", x, _const(n, 0), keep_dims=True)),
        lambda x, y: y - x.max(0, keepdims=True),
    ),
    (
        lambda n, x, y: n.op("TensorScatterAdd", x, n.const([[1]], np.int32), _rows(n, y, 2, 1)),
        _row_added,
    ),
    (
        lambda n, x, y: n.op("Minimum", n.op("Slice", x, _const(n, 0, 0), _const(n, 4, 1)), y),
        lambda x, y: np.minimum(x[:, :1], y),
    ),
]


@dataclass
class Program:
    """Steps on values that are numbered: first the inputs, then what the steps make."""

    inputs: int
    steps: list = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)


def _random(rng: np.random.Generator, inputs: int, outputs: int, depth: int = 0) -> Program:
    program, count = Program(inputs), inputs

    def pick(size: int) -> list[int]:
        return [int(i) for i in rng.integers(count, size=size)]

    for _ in range(int(rng.integers(1, 14))):
        kind = int(rng.integers(len(STEPS) + (2 if depth < 2 else 0)))
        if kind < len(STEPS):
            program.steps.append(("step", kind, pick(2)))
            count += 1
        elif kind == len(STEPS):
            size = int(rng.integers(1, 4))
            program.steps.append(("loop", int(rng.integers(4)), pick(size), _random(rng, size, size, depth + 1)))
            count += size
        else:
            size, made = int(rng.integers(1, 3)), int(rng.integers(1, 3))
            branches = [_random(rng, size, made, depth + 1) for _ in range(2)]
            program.steps.append(("branch", pick(1)[0], pick(size), branches))
            count += made
    program.outputs = pick(outputs)
    return program


def _evaluate(program: Program, values: list[np.ndarray]) -> list[np.ndarray]:
    values = list(values)
    for kind, what, operands, *rest in program.steps:
        given = [values[i] for i in operands]
        if kind == "step":
            values.append(STEPS[what][1](*given).astype(FLOAT))
        elif kind == "loop":
            for _ in range(what):
                given = _evaluate(rest[0], given)
            values += given
        else:
            values += _evaluate(rest[0][0 if values[what].sum() > 0 else 1], given)
    return [values[i] for i in program.outputs]


def _net(program: Program, net: Net, values: list[Edge]) -> list[Edge]:
    values = list(values)
    for kind, what, operands, *rest in program.steps:
        given = [values[i] for i in operands]
        if kind == "step":
            values.append(STEPS[what][0](net, *given))
        elif kind == "loop":
            condition, body = Net("cond"), Net("body")
            counter, *_ = [condition.data(np.int32, []), *[condition.data(FLOAT, SHAPE) for _ in given]]
            condition.output(condition.op("Less", counter, condition.const(np.int32(what))))
            counter, *carried = [body.data(np.int32, []), *[body.data(FLOAT, SHAPE) for _ in given]]
            body.output(body.op("Add", counter, body.const(np.int32(1))), *_net(rest[0], body, carried))
            node, _ = net.op("While", net.const(np.int32(0)), *given, graphs=[condition, body])
            values += [(node, 1 + i) for i in range(len(given))]
        else:
            branches = []
            for part in rest[0]:
                branch = Net("branch")
                branch.output(*_net(part, branch, [branch.data(FLOAT, SHAPE) for _ in given]))
                branches.append(branch)
            total = net.op("ReduceSum", values[what], _const(net, 0, 1))
            positive = net.op("Greater", total, net.const(FLOAT(0)))
            node, _ = net.op("If", positive, *given, graphs=branches)
            values += [(node, i) for i in range(len(rest[0][0].outputs))]
    return [values[i] for i in program.outputs]


@pytest.mark.parametrize("seed", range(60))
def test_a_random_program_computes_what_numpy_computes(seed, monkeypatch):
    if seed % 2:  # small programs have no late uses: let every use be one
        monkeypatch.setattr(recompute, "_GAP", 1)
        monkeypatch.setattr(recompute, "_SMALL", 0)
    rng = np.random.default_rng(seed)
    program = _random(rng, 3, 4)
    feeds = [rng.integers(-3, 4, SHAPE).astype(FLOAT) for _ in range(3)]
    want = _evaluate(program, feeds)
    net = Net()
    net.output(*_net(program, net, [net.data(FLOAT, SHAPE) for _ in range(3)]))
    outputs = rng.permutation(4)[: int(rng.integers(4))]
    donated = {int(output): i for i, output in enumerate(outputs)}
    pairs = "|".join(f"{source},{output}" for output, source in donated.items())
    model = Model(compiled(net, ge__exec__outputReuseInputMemIndexes=pairs))
    for _ in range(2):  # the second execution finds the first one's remains
        for got, expected in zip(model.run(*feeds, donated=donated), want, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-6)
    model.unload()
