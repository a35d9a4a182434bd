"""Collectives between the devices of one process, against numpy."""

import array
import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from pypjrt.client import Client

DTYPES = {  # XLA's name: PJRT's number
    "f32": 11, "f16": 10, "bf16": 13, "s8": 2, "s16": 3, "s32": 4, "s64": 5, "u8": 6, "u16": 7, "u32": 8, "pred": 1,
    "c64": 14,
}  # fmt: skip
NUMPY = {
    "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "s8": np.int8, "s16": np.int16, "s32": np.int32,
    "s64": np.int64, "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "pred": np.bool_, "c64": np.complex64,
}  # fmt: skip
DEVICES = 4


def collective(dtype: str, count: int, result: int, **step: Any) -> str:
    size = np.dtype(NUMPY[dtype]).itemsize
    header = {
        "ok": True,
        "num_replicas": 1,
        "num_partitions": DEVICES,
        "device_assignment": [list(range(DEVICES))],
        "inputs": [{"dtype": dtype, "dims": [count]}],
        "outputs": [{"dtype": dtype, "dims": [result], "value": 1}],
        "values": [{"bytes": count * size}, {"bytes": result * size}],
        "models": [],
        "steps": [{"kind": "collective", "dtype": dtype, "count": count, "inputs": [0], "outputs": [1]} | step],
    }
    return json.dumps(header)


def run(client: Client, program: str, inputs: np.ndarray, dtype: str) -> list[np.ndarray]:
    """Row i of the inputs is device i's."""
    with client.devices() as devices:
        arguments = [
            [client.buffer_from_host(array.array("B", row.tobytes()), DTYPES[dtype], row.shape, device)]
            for row, device in zip(inputs, devices, strict=False)
        ]
    results = client.compile(program).execute_sharded(arguments)
    return [np.frombuffer(bytes(row[0].to_host()), NUMPY[dtype]) for row in results]


def values(dtype: str, count: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 5, (DEVICES, count)).astype(NUMPY[dtype])


@pytest.mark.parametrize("groups", [[[0, 1, 2, 3]], [[0, 2], [3, 1]], [[0], [1, 2, 3]]], ids=str)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "s8", "s32", "s64"])
@pytest.mark.parametrize("reduction", ["sum", "max", "min"])
def test_all_reduce(client, dtype, reduction, groups):
    data = values(dtype, 6)
    results = run(client, collective(dtype, 6, 6, op="all_reduce", reduction=reduction, groups=groups), data, dtype)
    reduce = {"sum": np.sum, "max": np.max, "min": np.min}[reduction]
    for group in groups:
        for device in group:
            expected = reduce(data[group].astype(np.float64), 0).astype(NUMPY[dtype])
            np.testing.assert_array_equal(results[device], expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_gather_in_the_group_s_order(client, dtype):
    data = values(dtype, 3)
    results = run(client, collective(dtype, 3, 6, op="all_gather", groups=[[2, 0], [1, 3]]), data, dtype)
    for device, group in enumerate([[2, 0], [1, 3], [2, 0], [1, 3]]):
        np.testing.assert_array_equal(results[device], data[group].ravel())


@pytest.mark.parametrize("dtype", ["f32", "s32", "bf16"])
def test_reduce_scatter(client, dtype):
    data = values(dtype, 8)
    step = {"op": "reduce_scatter", "reduction": "sum", "groups": [[0, 1, 2, 3]]}
    results = run(client, collective(dtype, 8, 2, **step), data, dtype)
    expected = data.astype(np.float64).sum(0).astype(NUMPY[dtype]).reshape(DEVICES, 2)
    np.testing.assert_array_equal(np.stack(results), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_to_all(client, dtype):
    data = values(dtype, 8)
    results = run(client, collective(dtype, 8, 8, op="all_to_all", groups=[[0, 1, 2, 3]]), data, dtype)
    expected = data.reshape(DEVICES, DEVICES, 2).transpose(1, 0, 2).reshape(DEVICES, 8)
    np.testing.assert_array_equal(np.stack(results), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_broadcast_from_the_first_of_the_group(client, dtype):
    data = values(dtype, 5)
    results = run(client, collective(dtype, 5, 5, op="broadcast", groups=[[1, 0], [2, 3]]), data, dtype)
    np.testing.assert_array_equal(np.stack(results), data[[1, 1, 2, 2]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "pairs", [[[0, 1], [1, 2], [2, 3], [3, 0]], [[0, 1], [2, 2]], [[3, 0]]], ids=["ring", "partial and self", "one"]
)
def test_permute_gives_zeros_where_nothing_is_sent(client, dtype, pairs):
    data = values(dtype, 5)
    results = run(client, collective(dtype, 5, 5, op="collective_permute", pairs=pairs), data, dtype)
    expected = np.zeros_like(data)
    for source, target in pairs:
        expected[target] = data[source]
    np.testing.assert_array_equal(np.stack(results), expected)


def test_devices_read_their_own_number(client):
    program = json.loads(collective("s32", 1, 1, op="all_reduce", groups=[]))
    program["steps"] = [{"kind": "device_id", "outputs": [1]}]
    results = run(client, json.dumps(program), values("s32", 1), "s32")
    assert [int(result[0]) for result in results] == list(range(DEVICES))
