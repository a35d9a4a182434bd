"""Execution of programs: values, donation, aliasing, control flow and failures, without a compiler or kernels.

The programs here have only steps that the plugin itself runs; `echo_compiler` hands them over as they are.
"""

import array
import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pypjrt import errors
from pypjrt.client import Buffer, Client, Executable

U8 = 6


def program(inputs: list[int], outputs: list[dict[str, Any]], values: list[int], **more: Any) -> str:
    """The answer of a compiler: byte arrays of the given sizes in, the given values out."""
    shapes = [{"dtype": "u8", "dims": [size]} for size in inputs]
    header = {
        "ok": True,
        "name": "test",
        "fingerprint": "f",
        "num_replicas": 1,
        "num_partitions": 1,
        "device_assignment": [[0]],
        "inputs": shapes,
        "outputs": outputs,
        "values": [{"bytes": size} for size in values],
        "models": [],
        "steps": [],
    }
    return json.dumps(header | more)


def output(value: int, size: int, **more: Any) -> dict[str, Any]:
    return {"dtype": "u8", "dims": [size], "value": value} | more


def put(client: Client, data: bytes, device: int = 0) -> Buffer:
    with client.devices() as devices:
        return client.buffer_from_host(array.array("B", data), U8, [len(data)], devices[device])


def run(executable: Executable, *buffers: Buffer, **options: Any) -> list[bytes]:
    return [bytes(result.to_host()) for result in executable(*buffers, **options)]


def test_an_argument_that_is_handed_through_is_a_new_array(client):
    executable = client.compile(program([3], [output(0, 3), output(0, 3)], [3]))
    argument = put(client, b"abc")
    first, second = executable(argument)
    assert len({first.unsafe_pointer(), second.unsafe_pointer(), argument.unsafe_pointer()}) == 3
    argument.delete()
    assert bytes(first.to_host()) == bytes(second.to_host()) == b"abc"


def test_a_donated_argument_is_the_output(client):
    executable = client.compile(program([3], [output(1, 3)], [3, 3], donation=[[0, 0]]))
    argument = put(client, b"abc")
    address = argument.unsafe_pointer()
    (result,) = executable(argument)
    assert result.unsafe_pointer() == address
    assert bytes(result.to_host()) == b"abc"


def test_a_consumed_argument_is_freed(client):
    executable = client.compile(program([3], [output(0, 3)], [3], consumed=[0]))
    with client.devices() as devices:
        before = devices[0].memory_stats()["bytes_in_use"]
        (result,) = executable(put(client, b"abc"))
        assert devices[0].memory_stats()["bytes_in_use"] - before == 512  # the result's, in whole pieces
    assert bytes(result.to_host()) == b"abc"


def test_an_argument_that_may_not_be_donated_stays(client):
    executable = client.compile(program([3], [output(1, 3)], [3, 3], donation=[[0, 0]]))
    argument = put(client, b"abc")
    (result,) = executable(argument, non_donatable=[0])
    assert not argument.is_deleted
    assert result.unsafe_pointer() != argument.unsafe_pointer()
    assert bytes(result.to_host()) == bytes(argument.to_host()) == b"abc"


def test_an_argument_is_not_donated_and_used_at_once(client):
    executable = client.compile(program([3, 3], [output(2, 3)], [3, 3, 3], donation=[[0, 0]]))
    argument = put(client, b"abc")
    with pytest.raises(errors.InvalidArgument, match="argument 1 as well"):
        executable(argument, argument)
    assert not argument.is_deleted


def test_wrong_arguments_are_refused(client):
    executable = client.compile(program([3], [output(0, 3)], [3]))
    with pytest.raises(errors.InvalidArgument, match="takes 1 arguments, 2 were given"):
        executable(put(client, b"abc"), put(client, b"abc"))
    with pytest.raises(errors.InvalidArgument, match="has 4 bytes, 3 are wanted"):
        executable(put(client, b"abcd"))
    with pytest.raises(errors.InvalidArgument, match="is on npu:1; the program runs on npu:0"):
        executable(put(client, b"abc", device=1))
    assert run(executable, put(client, b"abc")) == [b"abc"]


def test_outputs_go_to_the_memory_that_the_program_names(client):
    executable = client.compile(program([3], [output(0, 3, memory_kind="pinned_host")], [3]))
    (result,) = executable(put(client, b"abc"))
    assert result.memory().kind == "pinned_host"
    assert bytes(result.to_host()) == b"abc"
    assert run(executable, result) == [b"abc"]  # arguments in host memory go to the device first


def test_a_loop_carries_values_until_its_condition_ends_it(client):
    # Argument 0 is the condition; the body replaces it by argument 1, which ends the loop, and counts by copying.
    steps = [{"kind": "while", "condition": [], "predicate": 0, "body": [], "carried": [[1, 0], [2, 3]]}]
    executable = client.compile(program([1, 1, 3, 3], [output(0, 1), output(3, 3)], [1, 1, 3, 3], steps=steps))
    for condition, result in [(b"\1", b"new"), (b"\0", b"old")]:
        arguments = [put(client, data) for data in (condition, b"\0", b"new", b"old")]
        assert run(executable, *arguments) == [b"\0", result]


def test_a_loop_moves_what_it_carries_at_once(client):
    steps = [{"kind": "while", "condition": [], "predicate": 0, "body": [], "carried": [[1, 0], [3, 2], [2, 3]]}]
    executable = client.compile(program([1, 1, 3, 3], [output(2, 3), output(3, 3)], [1, 1, 3, 3], steps=steps))
    arguments = [put(client, data) for data in (b"\1", b"\0", b"one", b"two")]
    assert run(executable, *arguments) == [b"two", b"one"]


@pytest.mark.parametrize(("index", "chosen"), [(0, b"a"), (1, b"b"), (2, b"c"), (7, b"c"), (-1, b"c")])
def test_a_choice_out_of_range_takes_the_last_branch(client, index, chosen):
    def set_output_to(value: int) -> list[dict[str, Any]]:
        # A loop that runs once copies a value: its condition is 1 and becomes 0.
        return [{"kind": "while", "condition": [], "predicate": 4, "body": [], "carried": [[value, 6], [5, 4]]}]

    steps = [{"kind": "case", "index": 0, "branches": [set_output_to(value) for value in (1, 2, 3)]}]
    executable = client.compile(program([4, 1, 1, 1, 1, 1], [output(6, 1)], [4, 1, 1, 1, 1, 1, 1], steps=steps))
    arguments = [index.to_bytes(4, "little", signed=True), b"a", b"b", b"c", b"\1", b"\0"]
    assert run(executable, *(put(client, argument) for argument in arguments)) == [chosen]


def test_a_serialised_program_is_loaded_and_a_damaged_one_refused(client):
    executable = client.compile(program([3], [output(0, 3)], [3]))
    data = executable.serialize()
    assert run(client.deserialize_executable(data), put(client, b"abc")) == [b"abc"]
    damaged = data[:-2] + bytes([data[-2] ^ 1]) + data[-1:]
    with pytest.raises(errors.PjrtError, match="is damaged"):
        client.deserialize_executable(damaged)
    with pytest.raises(errors.PjrtError, match="is cut off"):
        client.deserialize_executable(data[:-1])
    with pytest.raises(errors.PjrtError, match="no serialised executable"):
        client.deserialize_executable(b"something else")


def test_a_compiler_that_dies_is_an_error_of_that_program_only(client):
    with pytest.raises(errors.PjrtError, match=r"died while it compiled this program: killed by signal 6 \(Aborted\)"):
        client.compile("die")
    with pytest.raises(errors.PjrtError, match="ended before it answered: exit code 0"):
        client.compile("cut")
    assert client.compile(program([3], [output(0, 3)], [3])).num_outputs == 1


def test_a_program_that_needs_another_precision_gets_another_compiler(client):
    with pytest.raises(errors.PjrtError, match="the other process answered"):
        client.compile("precision")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("{", "is no JSON"),
        ('{"ok": false, "code": "UNIMPLEMENTED", "message": "no such thing"}', "no such thing"),
        (program([3], [output(9, 3)], [3]), "names value 9; there are 1"),
        (program([3], [output(0, 3)], [3], steps=[{"kind": "dance"}]), "unknown kind, 'dance'"),
        (program([3], [output(0, 3)], [3], models=[{"size": 5}]), "cut off"),
        (program([3], [output(0, 3)], [3], device_assignment=[[99]]), "device 99"),
    ],
)
def test_answers_that_make_no_sense_are_refused(client, answer, message):
    with pytest.raises(errors.PjrtError, match=message):
        client.compile(answer)


def test_a_host_function_that_nobody_has_registered_is_refused_when_the_program_is_loaded(client):
    steps = [{"kind": "callback", "target": "nobody_s", "call": "1", "inputs": [0], "outputs": [1]}]
    with pytest.raises(errors.PjrtError, match=r"host function `nobody_s`, which this process has not registered"):
        client.compile(program([3], [output(1, 3)], [3, 3], steps=steps))


def test_a_python_without_the_compiler_is_named(plugin, monkeypatch):
    monkeypatch.setenv("XLA_NPU_PYTHON", "false")
    with closing(Client(plugin)) as client, pytest.raises(errors.PjrtError, match=r"false -m .* XLA_NPU_PYTHON names"):
        client.compile(program([3], [output(0, 3)], [3]))


def test_the_compiler_ends_with_its_client(plugin, monkeypatch):
    monkeypatch.setenv("XLA_NPU_PYTHON", str(Path(__file__).parent / "echo_compiler"))
    client = Client(plugin)
    client.compile(program([3], [output(0, 3)], [3])).close()

    def compilers() -> int:
        """How many child processes of this one are compilers."""
        tasks = Path("/proc/self/task").iterdir()
        children = {child for task in tasks for child in (task / "children").read_text().split()}
        return sum(b"echo_compiler" in Path("/proc", child, "cmdline").read_bytes() for child in children)

    before = compilers()
    client.close()
    deadline = time.monotonic() + 5
    while compilers() == before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert compilers() == before - 1
