"""Where Graph Engine's compiled models keep their tensors: memory is used again, and never while it is needed."""

import ctypes

import numpy as np
import pytest
from ge.error import GeError

from tests.cann_emulator.ge_runtime import Model, Net, acl, check, compiled, program, run

REUSE = "ge__exec__outputReuseInputMemIndexes"


def _work_bytes(data: bytes) -> int:
    work, weights = ctypes.c_size_t(), ctypes.c_size_t()
    check(acl().aclmdlQuerySizeFromMem(data, ctypes.c_size_t(len(data)), ctypes.byref(work), ctypes.byref(weights)))
    return work.value


def test_a_long_chain_needs_the_memory_of_two_tensors():
    net = Net()
    x = net.data(np.float32, [256, 256])
    for _ in range(20):
        x = net.op("MatMulV2", x, x)
    net.output(x)
    assert _work_bytes(compiled(net)) <= 2 * 256 * 256 * 4


def test_random_graphs_compute_what_numpy_computes():
    rng = np.random.default_rng(5)
    for _ in range(30):
        net = Net()
        values = [(net.data(np.float32, [4, 6]), rng.normal(size=(4, 6)).astype(np.float32)) for _ in range(3)]
        feeds = [array for _, array in values]
        for _ in range(int(rng.integers(3, 25))):
            (a, x), (b, y) = (values[int(rng.integers(len(values)))] for _ in range(2))
            kind = rng.integers(6)
            if kind == 0:
                values.append((net.op("Add", a, b), x + y))
            elif kind == 1:
                values.append((net.op("Maximum", a, b), np.maximum(x, y)))
            elif kind == 2:
                turned = net.op(
                    "Reshape", net.op("Transpose", a, net.const([1, 0], np.int64)), net.const([4, 6], np.int64)
                )
                values.append((turned, x.T.reshape(4, 6)))
            elif kind == 3:
                top = net.op("Slice", a, net.const([0, 0], np.int64), net.const([2, 6], np.int64))
                low = net.op("Slice", b, net.const([2, 0], np.int64), net.const([2, 6], np.int64))
                values.append((net.op("ConcatD", top, low, concat_dim=0, N=2), np.concatenate([x[:2], y[2:]])))
            elif kind == 4:
                row = net.op("ReduceMax", a, net.const([0], np.int64), keep_dims=True)
                values.append((net.op("Sub", b, row), y - x.max(0, keepdims=True)))
            else:
                values.append(
                    (
                        net.op(
                            "TensorScatterAdd", a, net.const([[1]], np.int32), net.const(np.ones((1, 6), np.float32))
                        ),
                        x + np.eye(4, dtype=np.float32)[1][:, None],
                    )
                )
        chosen = [values[int(rng.integers(len(values)))] for _ in range(4)]
        net.output(*[edge for edge, _ in chosen])
        pairs = {REUSE: "0,0|1,1"} if rng.integers(2) else {}
        model = Model(compiled(net, **pairs))
        got = model.run(*feeds, donated={0: 0, 1: 1} if pairs else None)
        for found, (_, want) in zip(got, chosen, strict=True):
            np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)
        model.unload()


@pytest.mark.parametrize("donated", [{0: 0}, {0: 1}, {0: 0, 1: 1}, {0: 1, 1: 0}])
def test_outputs_may_share_the_memory_of_inputs(donated):
    net = Net()
    a, b = net.data(np.float32, [5]), net.data(np.float32, [5])
    # Both outputs need both inputs.
    net.output(net.op("Add", a, b), net.op("Sub", a, b))
    text = "|".join(f"{source},{target}" for target, source in donated.items())
    x, y = np.arange(5, dtype=np.float32), np.full(5, 10, np.float32)
    model = Model(compiled(net, **{REUSE: text}))
    total, difference = model.run(x, y, donated=donated)
    np.testing.assert_array_equal(total, x + y)
    np.testing.assert_array_equal(difference, x - y)


def test_an_update_of_a_donated_tensor_copies_nothing():
    net = Net()
    x = net.data(np.float32, [1000, 100])
    net.output(net.op("TensorScatterUpdate", x, net.const([[3]], np.int32), net.const(np.ones((1, 100), np.float32))))
    data = compiled(net, **{REUSE: "0,0"})
    assert [op["type"] for op in program(data)["main"]] == ["TensorScatterUpdate"]
    assert _work_bytes(data) == 0
    got = Model(data).run(np.zeros((1000, 100), np.float32), donated={0: 0})[0]
    assert got.sum() == 100 and got[3].all()


def test_outputs_that_are_inputs_or_constants_or_the_same():
    net = Net()
    x = net.data(np.int32, [2])
    y = net.op("Add", x, x)
    net.output(x, net.const([7, 8], np.int32), y, y, net.op("Identity", y))
    got = run(net, np.array([1, 2], np.int32))
    assert [g.tolist() for g in got] == [[1, 2], [7, 8], [2, 4], [2, 4], [2, 4]]


def test_cheap_results_are_computed_again_rather_than_kept():
    size = 128
    net = Net()
    x = net.data(np.float32, [size, size])
    kept = []
    for _ in range(20):
        centred = net.op("Sub", x, net.op("ReduceMean", x, net.const([1], np.int64), keep_dims=True))
        doubled = net.op("Add", centred, centred)
        kept.append((centred, doubled))
        x = net.op("MatMulV2", doubled, net.op("Tanh", centred))
    for centred, doubled in reversed(kept):
        x = net.op("MatMulV2", net.op("Mul", net.op("Mul", x, centred), doubled), x)
        x = net.op("Tanh", x)
    net.output(x)
    # One of each pair is kept, not both, but for the last rounds, whose uses follow soon.
    assert _work_bytes(compiled(net)) < 30 * size * size * 4


def test_pairs_that_do_not_exist_are_refused():
    net = Net()
    net.output(net.op("Neg", net.data(np.float32, [2])))
    for text in ("1,0", "0,1", "0", "a,b", "0,0|0,0"):
        with pytest.raises(GeError, match=r"E10001.*outputReuseInputMemIndexes"):
            compiled(net, **{REUSE: text})


def test_operations_on_constants_run_once_when_the_model_is_loaded():
    net = Net()
    table = net.op("Mul", net.op("Range", *[net.const(np.float32(v)) for v in (0, 8, 1)]), net.const(np.float32(2)))
    net.output(net.op("Add", net.data(np.float32, [8]), table))
    facts = program(compiled(net))
    assert [op["type"] for op in facts["main"]] == ["Elementwise"] and len(facts["init"]) == 2
    np.testing.assert_array_equal(run(net, np.zeros(8, np.float32))[0], np.arange(8) * 2)


def test_empty_tensors_go_through():
    net = Net()
    x = net.data(np.float32, [0, 3])
    net.output(net.op("Neg", x), net.op("ConcatD", x, net.const(np.ones((2, 3), np.float32)), concat_dim=0, N=2))
    empty, joined = run(net, np.zeros((0, 3), np.float32))
    assert empty.shape == (0, 3) and joined.tolist() == [[1, 1, 1]] * 2
