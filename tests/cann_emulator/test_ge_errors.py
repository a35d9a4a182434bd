"""What Graph Engine and the acl model calls refuse, and how they say it."""

import ctypes
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ge._compiler.compile import compile_graph
from ge.error import GeError, GraphFault
from ge.graph import DataType, Graph

from tests.cann_emulator.ge_runtime import AclError, Model, Net, acl, check, compiled


def _fails(net, match, **options):
    with pytest.raises(GeError, match=match) as caught:
        compiled(net, **options)
    assert caught.value.api_name == "BuildModel"


def test_an_unknown_operator_is_named_with_near_ones():
    net = Net()
    net.output(net.op("MatMulV9", net.data(np.float32, [2, 2]), net.data(np.float32, [2, 2])))
    _fails(net, r"E14005: Operator type \[MatMulV9\].*MatMulV2")


def test_missing_inputs_and_attributes_are_named():
    net = Net()
    net.output(net.op("Add", net.data(np.float32, [2])))
    _fails(net, r"\(Add\): required input x2 is missing")
    net = Net()
    net.output(net.op("Cast", net.data(np.float32, [2])))
    _fails(net, r"\(Cast\): required attribute dst_type is missing")
    net = Net()
    net.output(net.op("Neg", net.data(np.float32, [2]), alpha=1))
    _fails(net, "Neg has no attribute alpha")


def test_a_dtype_outside_the_prototype_is_refused():
    net = Net()
    x = net.data(np.uint32, [2])
    net.output(net.op("Add", x, x))
    _fails(net, r"EZ3002: Optype \[Add\].*x1 has dtype u32")


def test_a_dtype_that_no_kernel_has_is_refused_as_assumed():
    net = Net()
    x = net.data(np.float64, [2])
    net.output(net.op("Sin", x))
    net2 = Net()
    y = net2.data(np.int16, [2])
    net2.output(net2.op("ReduceSum", y, net2.const([0], np.int64)))
    _fails(net2, r"EZ3003.*\[ReduceSum\] on Ascend910B1.*\(assumed")


def test_float8_is_refused_outside_of_ascend950():
    net = Net()
    x = net.data(DataType.DT_FLOAT8_E5M2, [2])
    net.output(net.op("Cast", x, dst_type=int(DataType.DT_FLOAT)))
    _fails(net, r"Ascend910B1 has no f8e5m2")


def test_shapes_that_do_not_fit_are_shown():
    net = Net()
    net.output(net.op("Add", net.data(np.float32, [2, 3]), net.data(np.float32, [4])))
    _fails(net, r"shapes \[2, 3\] and \[4\] cannot be broadcast")
    net = Net()
    net.output(net.op("MatMulV2", net.data(np.float32, [2, 3]), net.data(np.float32, [4, 5])))
    _fails(net, "share no inner dimension")


def test_a_declared_output_that_disagrees_is_refused():
    from ge.graph import TensorDesc

    net = Net()
    node, _ = net.op("Neg", net.data(np.float32, [2]))
    node._output_descs = [TensorDesc([3], data_type=DataType.DT_FLOAT)]
    net.output((node, 0))
    _fails(net, r"output 0 is declared f32\[3\], inferred f32\[2\]")


def test_a_shape_that_is_not_constant_is_refused():
    net = Net()
    net.output(net.op("Reshape", net.data(np.float32, [4]), net.data(np.int64, [2])))
    _fails(net, "input shape must be a Const")


def test_unknown_options_and_values_are_refused():
    net = Net()
    net.output(net.op("Neg", net.data(np.float32, [2])))
    _fails(net, r"Option \[ge.exec.alow_hf32\].*Did you mean ge.exec.allow_hf32", ge__exec__alow_hf32="true")
    _fails(net, r"Value \[5\] of option \[ge.deterministic\] is invalid", ge__deterministic="5")


def test_precision_modes_that_change_dtypes_or_contradict_are_refused():
    net = Net()
    net.output(net.op("Neg", net.data(np.float32, [2])))
    _fails(net, "does not imitate that", ge__exec__precision_mode_v2="fp16")
    _fails(net, "must not both be set", ge__exec__precision_mode="must_keep_origin_dtype")


def test_compiling_before_initialisation_is_refused():
    code = "from ge.graph import Graph\nfrom ge.offline_compile import build_model\nbuild_model(Graph())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "build_initialize must be called first" in done.stderr


def test_a_file_that_is_no_graph_is_refused(tmp_path):
    (tmp_path / "bad.air").write_bytes(b"\xff\xfe not a model")
    with pytest.raises(RuntimeError, match=r"no serialised ge\.proto\.ModelDef|has no graph"):
        Graph().load_from_air(str(tmp_path / "bad.air"))


# ---- models -------------------------------------------------------------------------------------------------------


def _negation() -> bytes:
    net = Net()
    net.output(net.op("Neg", net.data(np.float32, [4])))
    return compiled(net)


def _changed(data: bytes, offset: int, value: bytes) -> bytes:
    return data[:offset] + value + data[offset + len(value) :]


@pytest.mark.parametrize(
    ("damage", "code", "message"),
    [
        (lambda data: data[:100], 145006, "at least 256 bytes"),
        (lambda data: b"ELF!" + data[4:], 145000, "no offline model"),
        (lambda data: _changed(data, 8, struct.pack("<I", 0x10000000)), 145000, "version 0x10000000"),
        (lambda data: data[:-8], 145006, "cut off or damaged"),
        (lambda data: _changed(data, 300, b"\x55"), 145000, "checksum is wrong"),
    ],
)
def test_damaged_models_are_refused_with_the_documented_code(damage, code, message):
    with pytest.raises(AclError, match=message) as caught:
        Model(damage(_negation()))
    assert caught.value.code == code


def test_an_id_that_was_never_given_out_is_refused():
    with pytest.raises(AclError, match="not the id of a loaded model") as caught:
        check(acl().aclmdlUnload(ctypes.c_uint32(123456)))
    assert caught.value.code == 145003


def test_buffers_that_are_too_small_or_elsewhere_are_refused():
    model = Model(_negation())
    with pytest.raises(AclError, match="has 16 bytes, its buffer only 8"):
        model.run(np.zeros(2, np.float32))
    with pytest.raises(AclError, match="has 1 inputs, the dataset has 2"):
        model.run(np.zeros(4, np.float32), np.zeros(4, np.float32))
    host = np.zeros(4, np.float32)
    keep: list = []
    places = [ctypes.c_void_p(host.ctypes.data)]
    dataset = model._dataset(places, [host], keep)
    with pytest.raises(AclError, match="device address is out of range"):
        check(acl().aclmdlExecuteAsync(model.id, dataset, model._dataset(places, None, keep), None))


def test_a_failure_leaves_the_model_usable():
    net = Net()
    net.output(net.op("GatherV2", net.data(np.float32, [3]), net.data(np.int32, [1]), net.const(np.int32(0))))
    model = Model(compiled(net))
    x = np.array([1, 2, 3], np.float32)
    with pytest.raises(AclError, match=r"GatherV2 \(.*\): index 9"):
        model.run(x, np.array([9], np.int32))
    assert model.run(x, np.array([1], np.int32))[0].tolist() == [2]


def test_memory_from_the_caller_is_used_and_checked():
    data = _negation()
    work, weights = ctypes.c_size_t(), ctypes.c_size_t()
    check(acl().aclmdlQuerySizeFromMem(data, ctypes.c_size_t(len(data)), ctypes.byref(work), ctypes.byref(weights)))
    net = Net()
    x = net.data(np.float32, [64, 64])
    net.output(net.op("MatMulV2", net.op("MatMulV2", x, x), x))
    data = compiled(net)
    check(acl().aclmdlQuerySizeFromMem(data, ctypes.c_size_t(len(data)), ctypes.byref(work), ctypes.byref(weights)))
    assert work.value >= 64 * 64 * 4
    area = ctypes.c_void_p()
    check(acl().aclrtMalloc(ctypes.byref(area), work, 0))
    model_id = ctypes.c_uint32()
    small = ctypes.c_size_t(work.value - 1)
    arguments = (data, ctypes.c_size_t(len(data)), ctypes.byref(model_id), area)
    with pytest.raises(AclError, match="work memory is"):
        check(acl().aclmdlLoadFromMemWithMem(*arguments, small, None, ctypes.c_size_t(0)))
    check(acl().aclmdlLoadFromMemWithMem(*arguments, work, None, ctypes.c_size_t(0)))
    check(acl().aclmdlUnload(model_id))
    check(acl().aclrtFree(area))


def test_ascend950_has_float8_and_its_refusals_are_documented():
    net = Net()
    net.output(net.op("Cast", net.data(DataType.DT_FLOAT8_E5M2, [2]), dst_type=int(DataType.DT_FLOAT)))
    assert compile_graph(net.graph, "Ascend950PR_9599", {}, True)
    net = Net()
    net.output(net.op("ReduceSum", net.data(np.int16, [2]), net.const([0], np.int64)))
    with pytest.raises(GraphFault, match=r"EZ3003.*on Ascend950PR_9599.*\(documented\)"):
        compile_graph(net.graph, "Ascend950PR_9599", {}, True)


def test_a_process_may_end_while_models_are_loaded():
    code = (
        "from tests.cann_emulator.ge_runtime import *\n"
        "net = Net()\n"
        "net.output(net.op('TopKV2', net.data(np.float32, [4]), net.const(np.int32(2))))\n"
        "print(Model(compiled(net)).run(np.arange(4, dtype=np.float32))[0])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert (done.returncode, done.stdout.strip()) == (0, "[3. 2.]"), done.stderr
