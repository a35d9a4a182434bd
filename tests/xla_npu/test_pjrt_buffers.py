"""Buffers: layouts on the way in and out, memories, devices, lifetimes, limits."""

import array
import ctypes
import struct
from itertools import permutations

import numpy as np
import pytest
from pypjrt import errors
from pypjrt.client import Buffer, Client, Event

F32 = 11


def put(client: Client, data: np.ndarray, device: int = 0) -> Buffer:
    with client.devices() as devices:
        return client.buffer_from_host(array.array("f", data.ravel()), F32, data.shape, devices[device])


def to_numpy(buffer: Buffer) -> np.ndarray:
    return np.frombuffer(bytes(buffer.to_host()), np.float32).reshape(buffer.dimensions)


def strides_layout(abi, strides):
    layout = abi.PJRT_Buffer_MemoryLayout(struct_size=abi.PJRT_Buffer_MemoryLayout_STRUCT_SIZE, type=1)
    held = (ctypes.c_int64 * len(strides))(*strides)
    layout.strides.struct_size = abi.PJRT_Buffer_MemoryLayout_Strides_STRUCT_SIZE
    layout.strides.byte_strides = ctypes.cast(held, ctypes.c_void_p)
    layout.strides.num_byte_strides = len(strides)
    return layout, held


def tiled_layout(abi, minor_to_major, tiles=0):
    layout = abi.PJRT_Buffer_MemoryLayout(struct_size=abi.PJRT_Buffer_MemoryLayout_STRUCT_SIZE, type=0)
    held = (ctypes.c_int64 * len(minor_to_major))(*minor_to_major)
    layout.tiled.struct_size = abi.PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE
    layout.tiled.minor_to_major = ctypes.cast(held, ctypes.c_void_p)
    layout.tiled.minor_to_major_size = len(minor_to_major)
    layout.tiled.num_tiles = tiles
    return layout, held


def upload(client: Client, data: np.ndarray, semantics: int = 0) -> Buffer:
    """An array as it lies in memory, with its strides."""
    plugin = client._plugin
    dims = (ctypes.c_int64 * data.ndim)(*data.shape)
    strides = (ctypes.c_int64 * data.ndim)(*data.strides)
    arguments = plugin.args(
        "PJRT_Client_BufferFromHostBuffer_Args",
        client=client._check(),
        data=data.ctypes.data,
        type=F32,
        dims=ctypes.cast(dims, ctypes.c_void_p),
        num_dims=data.ndim,
        byte_strides=ctypes.cast(strides, ctypes.c_void_p),
        num_byte_strides=data.ndim,
        host_buffer_semantics=semantics,
    )
    plugin.call("PJRT_Client_BufferFromHostBuffer", arguments)
    Event(plugin, arguments.done_with_host_buffer).consume()
    return Buffer(plugin, arguments.buffer)


def download(buffer: Buffer, layout) -> np.ndarray:
    """The bytes of a buffer in the wanted layout, as float32 in the order in which they lie."""
    plugin = buffer._plugin
    out = np.empty(buffer.nbytes // 4, np.float32)
    arguments = plugin.args(
        "PJRT_Buffer_ToHostBuffer_Args",
        src=buffer.address,
        host_layout=ctypes.addressof(layout),
        dst=out.ctypes.data,
        dst_size=out.nbytes,
    )
    plugin.call("PJRT_Buffer_ToHostBuffer", arguments)
    Event(plugin, arguments.event).consume()
    return out


ARRAY = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.mark.parametrize("semantics", range(4))
@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_transposed_arrays_arrive_row_major(client, order, semantics):
    data = ARRAY.transpose(order)
    np.testing.assert_array_equal(to_numpy(upload(client, data, semantics)), data)


@pytest.mark.parametrize(
    "data",
    [ARRAY[:, ::-1], ARRAY[::-1, ::2, 1:3], np.broadcast_to(np.float32(7), (3, 4)), np.float32(5).reshape(())],
    ids=["reversed", "sliced", "broadcast", "scalar"],
)
def test_strided_arrays_arrive_row_major(client, data):
    np.testing.assert_array_equal(to_numpy(upload(client, np.asarray(data))), data)


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_arrays_are_read_in_any_layout(client, plugin, order):
    buffer = put(client, ARRAY)
    wanted = ARRAY.transpose(order[::-1]).ravel()  # the major dimension first
    layout, _held = tiled_layout(plugin.abi, order)
    np.testing.assert_array_equal(download(buffer, layout), wanted)
    strides = np.empty(ARRAY.transpose(order[::-1]).shape, np.float32).transpose(np.argsort(order[::-1])).strides
    layout, _held = strides_layout(plugin.abi, strides)
    np.testing.assert_array_equal(download(buffer, layout), wanted)


def test_tiles_and_wrong_layouts_are_refused(client, plugin):
    buffer = put(client, ARRAY)
    with pytest.raises(errors.Unimplemented, match="Tiled layouts"):
        download(buffer, tiled_layout(plugin.abi, (2, 1, 0), tiles=1)[0])
    with pytest.raises(errors.InvalidArgument, match="2 strides for an array of 3 dimensions"):
        download(buffer, strides_layout(plugin.abi, (4, 8))[0])


def test_a_large_array_survives_its_host_memory(client):
    data = np.random.default_rng(0).random(1 << 20, np.float32)
    expected = data.copy()
    buffer = upload(client, data)  # only during the call
    data[:] = 0
    np.testing.assert_array_equal(to_numpy(buffer), expected)


@pytest.mark.parametrize("kind", ["device", "pinned_host", "unpinned_host"])
@pytest.mark.parametrize("other", ["device", "pinned_host", "unpinned_host"])
@pytest.mark.parametrize("size", [3, 1 << 18], ids=str)
def test_copies_between_memories_and_devices(client, kind, other, size):
    data = np.arange(size, dtype=np.float32)
    with client.devices() as devices:
        first = {memory.kind: memory for memory in devices[0].memories()}
        second = {memory.kind: memory for memory in devices[1].memories()}
        copy = put(client, data).copy_to_memory(first[kind]).copy_to_memory(second[other])
        assert copy.memory().kind == other
        np.testing.assert_array_equal(to_numpy(copy), data)


def test_a_copy_to_another_device_is_there(client):
    with client.devices() as devices:
        copy = put(client, ARRAY).copy_to_device(devices[3])
        assert copy.device().id == 3
    np.testing.assert_array_equal(to_numpy(copy), ARRAY)


def test_parts_are_read(client):
    buffer = put(client, ARRAY)
    out = bytearray(8)
    buffer.copy_raw_to_host(out, offset=4)
    assert struct.unpack("2f", out) == (1, 2)
    with pytest.raises(errors.InvalidArgument, match="96 bytes"):
        buffer.copy_raw_to_host(out, offset=92)


def test_memory_is_reused_and_counted(client):
    with client.devices() as devices:
        device = devices[2]
        before = device.memory_stats()
        for _ in range(5):
            buffer = put(client, np.zeros(1 << 20, np.float32), device=2)
            assert device.memory_stats()["bytes_in_use"] == before["bytes_in_use"] + (4 << 20)
            buffer.close()
        after = device.memory_stats()
    assert after["bytes_in_use"] == before["bytes_in_use"]
    assert after["bytes_reserved"] - before["bytes_reserved"] <= 4 << 20
    assert after["peak_bytes_in_use"] >= 4 << 20


def test_too_large_an_array_says_what_is_in_use(client):
    with client.devices() as devices:
        limit = devices[0].memory_stats()["bytes_limit"]
        with pytest.raises(
            errors.PjrtError, match=r"Out of memory on npu:0: .* are wanted; .* of the limit of .* in use"
        ):
            client.uninitialized_buffer(F32, [limit], memory=devices[0].default_memory())
    np.testing.assert_array_equal(to_numpy(put(client, ARRAY)), ARRAY)  # and the client goes on


def test_an_error_buffer_fails_its_readers(client):
    with client.devices() as devices:
        buffer = client.error_buffer(devices[0].default_memory(), 9, "it went wrong", dtype=F32, dims=[2])
    with pytest.raises(errors.FailedPrecondition, match="it went wrong"):
        buffer.to_host()


def test_events_call_back_from_the_host_and_only_once(client, plugin):
    event = Event.create(plugin)
    seen = []
    event.add_done_callback(lambda done: seen.append(done))
    assert not event.done()
    assert seen == []
    event.set()
    assert event.done()
    assert len(seen) == 1


def test_pieces_fill_a_buffer(client):
    from pypjrt.transfer import ShapeSpec

    with client.devices() as devices, client.async_transfer([ShapeSpec(F32, (4,))], device=devices[0]) as transfer:
        transfer.transfer(0, array.array("f", [3.0, 4.0]), offset=8, last=False)
        transfer.transfer(0, array.array("f", [1.0, 2.0]), offset=0, last=True)
        buffer = transfer.retrieve(0)
        np.testing.assert_array_equal(to_numpy(buffer), [1, 2, 3, 4])
        with pytest.raises(errors.InvalidArgument, match="do not fit"):
            transfer.transfer(0, array.array("f", [1.0, 2.0]), offset=12, last=True)
