"""Loops, conditions and calls in graphs of Graph Engine."""

import numpy as np
import pytest
from ge.error import GeError
from ge.graph import DataType

from tests.cann_emulator.ge_runtime import Model, Net, compiled, program, run


def _counted_loop(trips: int, shapes, body):
    """A loop over a counter and other values: `body` adds a round to a net and gives the new values."""
    condition, step = Net("cond"), Net("body")
    counter, *_ = [condition.data(np.int32, []), *[condition.data(*shape) for shape in shapes]]
    condition.output(condition.op("Less", counter, condition.const(np.int32(trips))))
    counter, *values = [step.data(np.int32, []), *[step.data(*shape) for shape in shapes]]
    step.output(step.op("Add", counter, step.const(np.int32(1))), *body(step, counter, *values))
    net = Net()
    inputs = [net.data(np.int32, []), *[net.data(*shape) for shape in shapes]]
    node, _ = net.op("While", *inputs, graphs=[condition, step])
    return net.output(*[(node, i) for i in range(1 + len(shapes))])


@pytest.mark.parametrize("trips", [0, 1, 2, 7, 704])
def test_a_loop_runs_as_often_as_its_condition_says(trips):
    net = _counted_loop(trips, [(np.float32, [3])], lambda net, i, x: [net.op("Add", x, net.const(np.float32(2)))])
    counter, x = run(net, np.int32(0), np.array([1, 2, 3], np.float32))
    assert counter == trips
    np.testing.assert_array_equal(x, np.array([1, 2, 3], np.float32) + 2 * trips)


@pytest.mark.parametrize("trips", [0, 1, 2, 5])
def test_a_loop_may_exchange_what_it_carries(trips):
    shapes = [(np.float32, [2])] * 3
    net = _counted_loop(trips, shapes, lambda net, i, a, b, c: [b, c, a])
    values = [np.full(2, v, np.float32) for v in (1, 2, 3)]
    for got, want in zip(run(net, np.int32(0), *values)[1:], np.roll([1, 2, 3], -trips), strict=True):
        np.testing.assert_array_equal(got, [want, want])


def test_a_loop_reads_old_values_while_it_writes_new_ones():
    # Fibonacci: both new values need both old ones.
    net = _counted_loop(20, [(np.int32, [])] * 2, lambda net, i, a, b: [b, net.op("Add", a, b)])
    assert [int(v) for v in run(net, np.int32(0), np.int32(0), np.int32(1))] == [20, 6765, 10946]


def test_what_a_loop_does_not_change_is_not_copied():
    shapes = [(np.float32, [4, 4]), (np.float32, [4, 4])]
    net = _counted_loop(3, shapes, lambda net, i, x, w: [net.op("MatMulV2", x, w), w])
    (loop,) = [op for op in program(compiled(net))["main"] if op["type"] == "While"]
    assert len(loop["carry"]) <= 2
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=(4, 4)).astype(np.float32) for _ in range(2))
    got = run(net, np.int32(0), x, w)
    np.testing.assert_allclose(got[1], x @ w @ w @ w, rtol=1e-5)
    np.testing.assert_array_equal(got[2], w)


def test_rows_are_written_into_a_carried_tensor_in_place():
    def body(net, i, rows, total):
        index = net.op("Reshape", i, net.const([1, 1], np.int64))
        total = net.op("Add", total, net.const(np.float32(1)))
        row = net.op("Reshape", total, net.const([1, 8], np.int64))
        return [net.op("TensorScatterUpdate", rows, index, row), total]

    shapes = [(np.float32, [50, 8]), (np.float32, [8])]
    net = _counted_loop(50, shapes, body)
    (loop,) = [op for op in program(compiled(net))["main"] if op["type"] == "While"]
    assert not [op for op in loop["blocks"][1] if op["type"] == "TensorMove"]
    rows = run(net, np.int32(0), np.zeros((50, 8), np.float32), np.zeros(8, np.float32))[1]
    np.testing.assert_array_equal(rows, np.repeat(np.arange(1, 51, dtype=np.float32)[:, None], 8, 1))


def test_random_bits_are_scattered_right_on_every_one_of_704_rounds():
    def body(net, i, table, state):
        state = net.op("Add", net.op("Mul", state, net.const(np.int32(1103515245))), net.const(np.int32(12345)))
        unsigned = net.op("Bitcast", state, type=DataType.DT_UINT32)
        slot = net.op("Bitcast", net.op("RightShift", unsigned, net.const(np.uint32(28))), type=DataType.DT_INT32)
        index = net.op("Reshape", slot, net.const([1, 1], np.int64))
        return [net.op("TensorScatterAdd", table, index, net.op("Reshape", i, net.const([1], np.int64))), state]

    net = _counted_loop(704, [(np.int32, [16]), (np.int32, [])], body)
    got = run(net, np.int32(0), np.zeros(16, np.int32), np.int32(42))
    table, state = np.zeros(16, np.int32), np.uint32(42)
    with np.errstate(over="ignore"):
        for i in range(704):
            state = state * np.uint32(1103515245) + np.uint32(12345)
            table[state >> np.uint32(28)] += i
    np.testing.assert_array_equal(got[1], table)
    assert got[2].view(np.uint32) == state


def test_a_loop_leaves_its_inputs_as_they_were():
    net = Net()
    x = net.data(np.float32, [3])
    y = net.op("Mul", x, net.const(np.float32(1)))
    condition, body = Net("cond"), Net("body")
    condition.output(
        condition.op(
            "Less",
            condition.op("ReduceSum", condition.data(np.float32, [3]), condition.const([0], np.int64)),
            condition.const(np.float32(100)),
        )
    )
    carried = body.data(np.float32, [3])
    body.output(body.op("Mul", carried, body.const(np.float32(2))))
    loop = net.op("While", y, graphs=[condition, body])
    net.output(loop, net.op("Add", y, loop))
    first, second = run(net, np.array([1, 2, 3], np.float32))
    np.testing.assert_array_equal(first, [32, 64, 96])
    np.testing.assert_array_equal(second, [33, 66, 99])


def test_loops_inside_loops():
    inner_condition, inner = Net("cond"), Net("body")
    i, _ = inner_condition.data(np.int32, []), inner_condition.data(np.int32, [])
    inner_condition.output(inner_condition.op("Less", i, inner_condition.const(np.int32(4))))
    i, total = inner.data(np.int32, []), inner.data(np.int32, [])
    inner.output(inner.op("Add", i, inner.const(np.int32(1))), inner.op("Add", total, i))

    def body(net, counter, total):
        node, _ = net.op("While", net.const(np.int32(0)), total, graphs=[inner_condition, inner])
        return [(node, 1)]

    net = _counted_loop(3, [(np.int32, [])], body)
    assert run(net, np.int32(0), np.int32(100))[1] == 100 + 3 * 6


def _branches(*scales):
    nets = []
    for scale in scales:
        net = Net("branch")
        net.output(net.op("Mul", net.data(np.float32, [2]), net.const(np.float32(scale))))
        nets.append(net)
    return nets


@pytest.mark.parametrize("condition", [True, False])
def test_a_condition_takes_one_branch(condition):
    net = Net()
    predicate = net.data(np.bool_, [])
    net.output(net.op("If", predicate, net.data(np.float32, [2]), graphs=_branches(2, 3)))
    got = run(net, np.bool_(condition), np.array([1, 10], np.float32))[0]
    np.testing.assert_array_equal(got, [2, 20] if condition else [3, 30])


@pytest.mark.parametrize(("index", "scale"), [(0, 2), (1, 3), (2, 4), (3, 4), (-1, 4)])
def test_a_case_outside_takes_the_last_branch(index, scale):
    net = Net()
    selector = net.data(np.int32, [])
    net.output(net.op("Case", selector, net.data(np.float32, [2]), graphs=_branches(2, 3, 4)))
    np.testing.assert_array_equal(run(net, np.int32(index), np.array([1, 10], np.float32))[0], [scale, 10 * scale])


def test_branches_may_return_what_they_got():
    swap, keep = Net("then"), Net("else")
    a, b = swap.data(np.float32, []), swap.data(np.float32, [])
    swap.output(b, a)
    a, b = keep.data(np.float32, []), keep.data(np.float32, [])
    keep.output(a, b)
    net = Net()
    node, _ = net.op(
        "If", net.data(np.bool_, []), net.data(np.float32, []), net.data(np.float32, []), graphs=[swap, keep]
    )
    net.output((node, 0), (node, 1))
    model = Model(compiled(net))
    assert [float(v) for v in model.run(np.bool_(True), np.float32(1), np.float32(2))] == [2, 1]
    assert [float(v) for v in model.run(np.bool_(False), np.float32(1), np.float32(2))] == [1, 2]


def test_calls_are_inlined():
    net = Net()
    x = net.data(np.float32, [2])
    (callee,) = _branches(5)
    net.output(net.op("Add", net.op("PartitionedCall", x, graphs=[callee]), x))
    assert [op["type"] for op in program(compiled(net))["main"]] == ["Elementwise"]
    np.testing.assert_array_equal(run(net, np.array([1, 2], np.float32))[0], [6, 12])


def test_a_body_that_changes_a_shape_is_refused():
    condition, body = Net("cond"), Net("body")
    condition.output(condition.op("ReduceAny", condition.data(np.bool_, [2]), condition.const([0], np.int64)))
    body.output(body.op("Reshape", body.data(np.bool_, [2]), body.const([2, 1], np.int64)))
    net = Net()
    net.output(net.op("While", net.data(np.bool_, [2]), graphs=[condition, body]))
    with pytest.raises(GeError, match=r"returns .*the loop carries"):
        compiled(net)
