"""What the ranks of test_hccl.py do: each function runs in every rank of a job. See hccl_ranks."""

import ctypes
import itertools
import json
import os
import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from hccl_ranks import connect

REDUCED = [torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32]
MOVED = [*REDUCED, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.float64, torch.bool]
SUM, PRODUCT, MAX, MIN = dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MAX, dist.ReduceOp.MIN
LARGE = 600_001  # elements: more than one staging slot of every dtype but the smallest


def data(rank: int, count: int, dtype: torch.dtype, salt: int = 0) -> torch.Tensor:
    """Small whole numbers, so that sums and products of any order are exact."""
    values = (torch.arange(count, dtype=torch.int64) * 7 + rank * 3 + salt) % 5
    return values.to(dtype) if dtype == torch.bool else (values - 2).abs().to(dtype)


def reference_dtype(dtype: torch.dtype) -> torch.dtype:
    """A type in which gloo computes the exact result."""
    return torch.float64 if dtype.is_floating_point else torch.int64


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def same(name: str, got: torch.Tensor, wanted: torch.Tensor) -> None:
    got = got.cpu()
    assert got.dtype == wanted.dtype and got.shape == wanted.shape, (name, got.dtype, got.shape, wanted.shape)
    assert torch.equal(bits(got), bits(wanted)), (name, got[:8], wanted[:8])


# ---- every collective, every data type, against gloo -----------------------------------------------------------------
def collectives(rank: int, ranks: int) -> None:
    connect(rank, ranks)
    for count, (dtype, op) in itertools.product([0, 1, 1000], itertools.product(REDUCED, [SUM, PRODUCT, MAX, MIN])):
        if op == PRODUCT and dtype in (torch.int16, torch.bfloat16):
            continue  # HCCL refuses these; see refusals()
        reductions(rank, ranks, dtype, op, count)
    for dtype in (torch.float32, torch.bfloat16):
        reductions(rank, ranks, dtype, SUM, LARGE)
    for count, dtype in itertools.product([1, 1000], MOVED):
        movements(rank, ranks, dtype, count)
    movements(rank, ranks, torch.float32, LARGE)


def reductions(rank: int, ranks: int, dtype: torch.dtype, op, count: int) -> None:
    name = f"{dtype} {op} {count}"
    mine = data(rank, count, dtype)
    wanted = mine.to(reference_dtype(dtype), copy=True)
    dist.all_reduce(wanted, op)

    got = mine.npu()
    dist.all_reduce(got, op)
    same(f"all_reduce {name}", got, wanted.to(dtype))

    root = ranks - 1
    got = mine.npu()
    dist.reduce(got, root, op)
    if rank == root:
        same(f"reduce {name}", got, wanted.to(dtype))

    if count:
        parts = torch.cat([data(rank, count, dtype, salt=peer) for peer in range(ranks)])
        wanted = parts.to(reference_dtype(dtype), copy=True)
        dist.all_reduce(wanted, op)
        got = torch.empty(count, dtype=dtype).npu()
        dist.reduce_scatter_tensor(got, parts.npu(), op)
        same(f"reduce_scatter {name}", got, wanted.to(dtype)[rank * count : (rank + 1) * count])


def movements(rank: int, ranks: int, dtype: torch.dtype, count: int) -> None:
    name = f"{dtype} {count}"
    everyone = [data(peer, count, dtype) for peer in range(ranks)]
    for root in {0, ranks - 1}:
        got = everyone[rank].npu()
        dist.broadcast(got, root)
        same(f"broadcast {name}", got, everyone[root])

        got = torch.empty(count, dtype=dtype).npu()
        parts = [part.npu() for part in everyone] if rank == root else None
        dist.scatter(got, parts, root)
        same(f"scatter {name}", got, everyone[rank])

    got = torch.empty(ranks * count, dtype=dtype).npu()
    dist.all_gather_into_tensor(got, everyone[rank].npu())
    same(f"all_gather_into_tensor {name}", got, torch.cat(everyone))

    listed = [torch.empty(count, dtype=dtype).npu() for _ in range(ranks)]
    dist.all_gather(listed, everyone[rank].npu())
    same(f"all_gather {name}", torch.cat([each.cpu() for each in listed]), torch.cat(everyone))

    send = torch.cat([data(rank, count, dtype, salt=peer) for peer in range(ranks)])
    wanted = torch.cat([data(peer, count, dtype, salt=rank) for peer in range(ranks)])
    got = torch.empty(ranks * count, dtype=dtype).npu()
    dist.all_to_all_single(got, send.npu())
    same(f"all_to_all {name}", got, wanted)

    # From rank i to rank j: (i + 2j) % 3 parts of the data; some send or get nothing.
    def length(source: int, target: int) -> int:
        return (source + 2 * target) % 3 * count

    sends = [length(rank, peer) for peer in range(ranks)]
    receives = [length(peer, rank) for peer in range(ranks)]
    send = torch.cat([data(rank, length(rank, peer), dtype, salt=peer) for peer in range(ranks)])
    wanted = torch.cat([data(peer, length(peer, rank), dtype, salt=rank) for peer in range(ranks)])
    got = torch.empty(sum(receives), dtype=dtype).npu()
    dist.all_to_all_single(got, send.npu(), receives, sends)
    same(f"uneven all_to_all {name}", got, wanted)


# ---- torch.distributed's other functions -----------------------------------------------------------------------------
def functions(rank: int, ranks: int) -> None:
    connect(rank, ranks)
    # Parts of different lengths: HcclAllGatherV and HcclReduceScatterV.
    lengths = [1 + peer * 3 for peer in range(ranks)]
    listed = [torch.empty(length).npu() for length in lengths]
    dist.all_gather(listed, data(rank, lengths[rank], torch.float32).npu())
    for peer, got in enumerate(listed):
        same("uneven all_gather", got, data(peer, lengths[peer], torch.float32))
    parts = [data(rank, length, torch.float32).npu() for length in lengths]
    got = torch.empty(lengths[rank]).npu()
    dist.reduce_scatter(got, parts)
    same("uneven reduce_scatter", got, sum(data(peer, lengths[rank], torch.float32) for peer in range(ranks)))

    outputs = [torch.empty(2 + peer).npu() for peer in range(ranks)]
    dist.all_to_all(outputs, [data(rank, 2 + rank, torch.float32, salt=peer).npu() for peer in range(ranks)])
    for peer, got in enumerate(outputs):
        same("all_to_all", got, data(peer, 2 + peer, torch.float32, salt=rank))

    average = torch.full((3,), float(rank)).npu()
    dist.all_reduce(average, dist.ReduceOp.AVG)
    same("average", average, torch.full((3,), (ranks - 1) / 2))
    flags = torch.tensor([rank == 0, False]).npu()
    dist.all_reduce(flags)
    same("sum of bool", flags, torch.tensor([True, False]))

    objects = [{"from": rank}] if rank == 0 else [None]
    dist.broadcast_object_list(objects, 0, device=torch.device("npu", rank))
    assert objects == [{"from": 0}]
    gathered = [None] * ranks
    dist.all_gather_object(gathered, ("text", rank))
    assert gathered == [("text", peer) for peer in range(ranks)]

    with dist._coalescing_manager(device=torch.device("npu", rank)):
        several = [torch.full((4,), float(rank + i)).npu() for i in range(3)]
        for each in several:
            dist.all_reduce(each)
    for i, each in enumerate(several):
        same("coalesced", each, torch.full((4,), float(sum(range(ranks)) + ranks * i)))

    group = dist.new_group([0, ranks - 1])
    if rank in (0, ranks - 1):
        got = torch.ones(5).npu()
        dist.all_reduce(got, group=group)
        same("new_group", got, torch.full((5,), 2.0))

    dist.barrier()


def mesh(rank: int, ranks: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    connect(rank, ranks)
    two = init_device_mesh("npu", (ranks // 2, 2), mesh_dim_names=("rows", "columns"))
    for dimension, peers in (
        ("rows", [peer for peer in range(ranks) if peer % 2 == rank % 2]),
        ("columns", [peer for peer in range(ranks) if peer // 2 == rank // 2]),
    ):
        got = torch.tensor([float(rank)]).npu()
        dist.all_reduce(got, group=two[dimension].get_group())
        same(dimension, got, torch.tensor([float(sum(peers))]))


# ---- point to point --------------------------------------------------------------------------------------------------
def point_to_point(rank: int, ranks: int) -> None:
    connect(rank, ranks)
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    for count in (1, 1000, LARGE):
        mine, wanted = data(rank, count, torch.float32).npu(), data(before, count, torch.float32)
        # A ring, first in an order that cannot wait in a circle, then all at once.
        got = torch.empty(count).npu()
        if rank % 2 == 0:
            dist.send(mine, after)
            dist.recv(got, before)
        else:
            dist.recv(got, before)
            dist.send(mine, after)
        same("send and recv", got, wanted)

        got = torch.empty(count).npu()
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, after), dist.P2POp(dist.irecv, got, before)]):
            work.wait()
        same("batch_isend_irecv", got, wanted)

    # Only two ranks of many: nobody else takes part.
    if rank < 2:
        got = torch.empty(4).npu()
        operation = dist.P2POp(dist.irecv, got, 1) if rank == 0 else dist.P2POp(dist.isend, torch.ones(4).npu(), 0)
        for work in dist.batch_isend_irecv([operation]):
            work.wait()
        if rank == 0:
            same("pair", got, torch.ones(4))
    dist.barrier()


def overlap(rank: int, ranks: int) -> None:
    connect(rank, ranks)
    value = torch.ones(4).npu()
    dist.all_reduce(value)
    torch.npu.synchronize()
    dist.barrier()
    start = time.monotonic()
    if rank == 1:
        time.sleep(1)
    work = dist.all_reduce(value, async_op=True)
    if rank == 0:
        # The collective is open, and the device goes on with other work.
        other = (torch.ones(4).npu() * 3).cpu()
        assert not work.is_completed() and time.monotonic() - start < 0.9
        assert other.tolist() == [3.0] * 4
    work.wait()
    same("after overlap", value, torch.full((4,), 4.0))


# ---- results that do not depend on chance ----------------------------------------------------------------------------
def determinism(rank: int, ranks: int) -> None:
    connect(rank, ranks)
    for dtype, count in itertools.product([torch.float32, torch.bfloat16, torch.float16], [37, LARGE]):
        mine = torch.randn(count, generator=torch.Generator().manual_seed(rank)).to(dtype)
        everyone = [torch.empty_like(mine) for _ in range(ranks)]
        dist.all_gather(everyone, mine)
        wanted = everyone[0].float()
        for other in everyone[1:]:
            wanted = wanted + other.float()
        for _ in range(3):
            got = mine.npu()
            dist.all_reduce(got)
            # In rank order, float32 sums, rounded once: the same bits on every rank.
            same(f"{dtype} {count}", got, wanted.to(dtype))


# ---- faults ----------------------------------------------------------------------------------------------------------
def message_of(call) -> str:
    """What torch_npu reports when `call` and the wait for its result fail."""
    try:
        call()
        torch.npu.synchronize()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("no error")


def mismatches(rank: int, ranks: int) -> None:
    connect(rank, ranks)
    tensor = torch.ones(8).npu()
    first = rank == 0
    cases = {
        "count": lambda group: dist.all_reduce(tensor[: 4 if first else 8], group=group),
        "dtype": lambda group: dist.all_reduce(tensor.int() if first else tensor, group=group),
        "op": lambda group: dist.all_reduce(tensor, MAX if first else SUM, group=group),
        "root": lambda group: dist.broadcast(tensor, 0 if first else 1, group=group),
        "operator": lambda group: (
            dist.all_reduce(tensor, group=group) if first else dist.broadcast(tensor, 0, group=group)
        ),
        "uneven": lambda group: dist.all_to_all_single(
            torch.empty(2 * ranks).npu(), tensor[:ranks], [2] * ranks, [1] * ranks, group=group
        ),
    }
    for name, call in cases.items():
        group = dist.new_group(list(range(ranks)))
        good = torch.ones(1).npu()
        dist.all_reduce(good, group=group)
        same("before the fault", good, torch.full((1,), float(ranks)))
        print(f"case {name}: {message_of(partial(call, group))}", flush=True)
        assert "EI0005" in message_of(partial(dist.all_reduce, good, group=group))
    os._exit(0)  # communicators that failed are not taken apart in order


def one_mismatch(rank: int, ranks: int) -> None:
    connect(rank, ranks)
    tensor = torch.ones(8).npu()
    dist.all_reduce(tensor[: 4 if rank == 0 else 8])
    time.sleep(10)  # torch_npu's watchdog finds the fault and ends the process


def send_mismatch(rank: int, ranks: int) -> None:
    connect(rank, ranks)
    tensor = torch.ones(8).npu()
    call = (lambda: dist.send(tensor[:4], 1)) if rank == 0 else (lambda: dist.recv(tensor, 0))
    print(message_of(call))
    os._exit(0)


def circle(rank: int, ranks: int) -> None:
    """Ranks that wait for each other for ever."""
    connect(rank, ranks)
    tensor = torch.ones(8).npu()
    if rank < 2:
        text = message_of(partial(dist.send, tensor, 1 - rank))
        print(f"case sends: {text}", flush=True)
    group = dist.new_group(list(range(ranks)))
    dist.all_reduce(tensor, group=group)
    tensor.cpu()
    if rank == 1:
        call = partial(dist.batch_isend_irecv, [dist.P2POp(dist.irecv, tensor, 0, group)])
    else:
        call = partial(dist.all_reduce, tensor, group=group)
    print(f"case operators: {message_of(call)}", flush=True)
    os._exit(0)


def late(rank: int, ranks: int) -> None:
    connect(rank, ranks)
    tensor = torch.ones(4).npu()
    dist.all_reduce(tensor)
    tensor.cpu()
    if rank == 1:
        time.sleep(6)
        os._exit(0)
    print(message_of(lambda: dist.all_reduce(tensor)))
    os._exit(0)


def absent(rank: int, ranks: int) -> None:
    connect(rank, ranks)
    if rank == 1:
        time.sleep(6)
        os._exit(0)
    print(message_of(lambda: dist.all_reduce(torch.ones(4).npu())))
    os._exit(0)


def dead(rank: int, ranks: int) -> None:
    connect(rank, ranks)
    tensor = torch.ones(4).npu()
    dist.all_reduce(tensor)
    tensor.cpu()
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), 9)
    start = time.monotonic()
    print(message_of(lambda: dist.all_reduce(tensor)))
    print(f"seconds={time.monotonic() - start}")
    os._exit(0)


def same_device(rank: int, ranks: int) -> None:
    connect(rank, ranks)
    torch.npu.set_device(0)
    print(message_of(lambda: dist.all_reduce(torch.ones(4, device="npu:0"))))
    os._exit(0)


def refusals(rank: int, ranks: int) -> None:
    connect(rank, ranks)
    for tensor, op in (
        (torch.ones(4, dtype=torch.int16), PRODUCT),
        (torch.ones(4, dtype=torch.bfloat16), PRODUCT),
    ):
        text = message_of(partial(dist.all_reduce, tensor.npu(), op))
        assert "is not supported with the reduction prod" in text and "error code is 5" in text, text
    got = torch.ones(4).npu()
    dist.all_reduce(got)  # a refused call leaves the communicator as it was
    same("after refusals", got, torch.full((4,), float(ranks)))


def job(rank: int, ranks: int) -> None:
    connect(rank, ranks)
    value = float(os.environ["VALUE"])
    end = time.monotonic() + 2
    while True:
        tensor = torch.full((1000,), value).npu()
        dist.all_reduce(tensor)
        same("job", tensor, torch.full((1000,), value * ranks))
        proceed = torch.tensor(float(time.monotonic() < end))
        dist.all_reduce(proceed, MIN)
        if not proceed:
            break


def finish(rank: int, ranks: int) -> None:
    """The end of a job: everything is taken apart in order."""
    dist.barrier()
    dist.destroy_process_group()


def resume(rank: int, ranks: int) -> None:
    """After a fault all ranks together take the communicator up again, as torch_npu's restart of a step does."""
    connect(rank, ranks)
    tensor = torch.ones(8).npu()
    text = message_of(partial(dist.all_reduce, tensor[: 4 if rank == 0 else 8]))
    assert "EI0005" in text, text
    group = dist.group.WORLD._get_backend(torch.device("npu"))
    group.resume_hccl_comm(rank)
    for count in (8, LARGE):
        got = torch.ones(count).npu()
        dist.all_reduce(got)
        same("after resuming", got, torch.full((count,), float(ranks)))


# ---- counters --------------------------------------------------------------------------------------------------------
def counted(rank: int, ranks: int) -> None:
    """Launches of a collective, and the bytes that this rank puts into it."""
    connect(rank, ranks)
    for _ in range(3):
        dist.all_reduce(torch.ones(100).npu())
    dist.broadcast(torch.ones(10).npu(), 0)
    torch.npu.synchronize()
    file = Path(os.environ["HCCL_TEST_FOLDER"]) / f"stats{rank}.json"
    assert ctypes.CDLL("libascendcl.so").emu_write_stats(str(file).encode()) == 0
    counters = {each["name"]: each for each in json.loads(file.read_text())["counters"]}
    wanted = {"HcclAllReduce": (3, 3 * 400), "HcclBroadcast": (1, 40 if rank == 0 else 0)}
    for name, (launches, size) in wanted.items():
        counter = counters[name]
        assert (counter["kind"], counter["launches"], counter["bytes"]) == ("collective", launches, size), counter


# ---- training --------------------------------------------------------------------------------------------------------
def sharded_training(rank: int, ranks: int) -> None:
    from torch.distributed.fsdp import fully_shard

    connect(rank, ranks)
    batches = [torch.randn(4, 16, generator=torch.Generator().manual_seed(step)) for step in range(5)]

    def model():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))

    def train(module, optimizer, mine):
        losses = []
        for batch in batches:
            loss = module(mine(batch)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach().cpu())
        return losses

    alone = model()
    wanted = train(alone, torch.optim.SGD(alone.parameters(), 0.1), lambda batch: batch)

    sharded = model().npu()
    for layer in (sharded[0], sharded[2], sharded):
        fully_shard(layer)
    share = 4 // ranks
    losses = train(
        sharded,
        torch.optim.SGD(sharded.parameters(), 0.1),
        lambda batch: batch[rank * share : (rank + 1) * share].npu(),
    )
    for loss, want in zip(losses, wanted, strict=True):
        dist.all_reduce(loss)
        torch.testing.assert_close(loss / ranks, want, rtol=1e-5, atol=1e-6)
    for got, want in zip(sharded.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(got.full_tensor().cpu(), want, rtol=1e-5, atol=1e-6)


# ---- HCCL's own functions, which torch_npu does not call ------------------------------------------------------------
def c_functions(rank: int, ranks: int) -> None:
    connect(rank, ranks)
    hccl = ctypes.CDLL("libhccl.so")
    acl = ctypes.CDLL("libascendcl.so")
    acl.aclGetRecentErrMsg.restype = ctypes.c_char_p
    u64 = ctypes.c_uint64
    stream = ctypes.c_void_p(torch.npu.current_stream().npu_stream)
    root = [None]
    info = (ctypes.c_char * 4108)()
    if rank == 0:
        assert hccl.HcclGetRootInfo(info) == 0
        root = [bytes(info)]
    dist.broadcast_object_list(root, 0, device=torch.device("cpu"))
    ctypes.memmove(info, root[0], 4108)
    comm = ctypes.c_void_p()
    assert hccl.HcclCommInitRootInfo(ranks, info, rank, ctypes.byref(comm)) == 0, acl.aclGetRecentErrMsg()

    def pointer(tensor):
        return ctypes.c_void_p(tensor.data_ptr())

    number = ctypes.c_uint32()
    assert hccl.HcclGetRankSize(comm, ctypes.byref(number)) == 0 and number.value == ranks
    assert hccl.HcclGetRankId(comm, ctypes.byref(number)) == 0 and number.value == rank
    name = ctypes.create_string_buffer(128)
    assert hccl.HcclGetCommName(comm, name) == 0
    names = [None] * ranks
    dist.all_gather_object(names, name.value)
    assert len(set(names)) == 1
    assert hccl.HcclGetCommConfigCapability() == 12

    # HcclAlltoAllVC: rank i sends i + j elements to rank j.
    matrix = (u64 * (ranks * ranks))(*[i + j for i in range(ranks) for j in range(ranks)])
    send = torch.cat([data(rank, rank + peer, torch.float32, salt=peer) for peer in range(ranks)]).npu()
    wanted = torch.cat([data(peer, rank + peer, torch.float32, salt=rank) for peer in range(ranks)])
    got = torch.empty_like(wanted).npu()
    assert hccl.HcclAlltoAllVC(pointer(send), matrix, 4, pointer(got), 4, comm, stream) == 0
    same("HcclAlltoAllVC", got, wanted)
    assert hccl.HcclBarrier(comm, stream) == 0

    # In a group the order of sends and receives does not matter.
    tensors = [torch.full((70_000,), float(rank)).npu() for _ in range(ranks)]
    outputs = [torch.empty(70_000).npu() for _ in range(ranks)]
    assert hccl.HcclGroupStart() == 0
    for peer in range(ranks):
        assert hccl.HcclSend(pointer(tensors[peer]), u64(70_000), 4, peer, comm, stream) == 0
    for peer in reversed(range(ranks)):
        assert hccl.HcclRecv(pointer(outputs[peer]), u64(70_000), 4, peer, comm, stream) == 0
    assert hccl.HcclGroupEnd() == 0
    for peer in range(ranks):
        same("group", outputs[peer], torch.full((70_000,), float(peer)))
    assert hccl.HcclGroupEnd() == 1

    # A communicator of the last two ranks, made from this one.
    members = (ctypes.c_uint32 * 2)(ranks - 2, ranks - 1)
    part = ctypes.c_void_p()
    if rank >= ranks - 2:
        for _ in range(3):
            status = hccl.HcclCreateSubCommConfig(
                ctypes.byref(comm), 2, members, u64(7), rank - (ranks - 2), None, ctypes.byref(part)
            )
            assert status == 0, acl.aclGetRecentErrMsg()
            got = torch.ones(3).npu()
            assert hccl.HcclAllReduce(pointer(got), pointer(got), u64(3), 4, 0, part, stream) == 0
            same("sub-communicator", got, torch.full((3,), 2.0))
            assert hccl.HcclCommDestroy(part) == 0
    else:
        none = u64(0xFFFFFFFF)
        assert hccl.HcclCreateSubCommConfig(ctypes.byref(comm), 2, None, none, 0, None, ctypes.byref(part)) == 0

    # What HCCL refuses, by code and text; nothing reaches the other ranks.
    device, host = torch.ones(4).npu(), torch.ones(4)
    for code, text, arguments in (
        (5, "uint8 is not supported", (pointer(device), pointer(device), u64(4), 7, 0, comm, stream)),
        (5, "op=9 is not a reduction", (pointer(device), pointer(device), u64(4), 4, 9, comm, stream)),
        (2, "not within one allocation of device memory", (pointer(host), pointer(device), u64(4), 4, 0, comm, stream)),
        (2, "recvBuf is null", (pointer(device), None, u64(4), 4, 0, comm, stream)),
        (1, "is not a communicator", (pointer(device), pointer(device), u64(4), 4, 0, ctypes.c_void_p(64), stream)),
    ):
        assert hccl.HcclAllReduce(*arguments) == code
        message = acl.aclGetRecentErrMsg().decode()
        assert text in message and "EI0003" in message, message
    assert hccl.HcclBroadcast(pointer(device), u64(4), 4, ranks, comm, stream) == 1
    assert hccl.HcclCommDestroy(comm) == 0
    assert hccl.HcclCommDestroy(comm) == 1

    if rank == 0:
        # All ranks in one process.
        devices, comms = (ctypes.c_int32 * 2)(0, 1), (ctypes.c_void_p * 2)()
        assert hccl.HcclCommInitAll(2, devices, comms) == 0
        values = []
        for index in range(2):
            torch.npu.set_device(index)
            values.append(torch.full((3,), index + 1.0, device=f"npu:{index}"))
            stream = ctypes.c_void_p(torch.npu.current_stream().npu_stream)
            pointers = pointer(values[index]), pointer(values[index])
            assert hccl.HcclAllReduce(*pointers, u64(3), 4, 0, ctypes.c_void_p(comms[index]), stream) == 0
        for value in values:
            same("HcclCommInitAll", value, torch.full((3,), 3.0))
        for each in comms:
            assert hccl.HcclCommDestroy(ctypes.c_void_p(each)) == 0
