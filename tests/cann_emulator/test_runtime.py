"""libascendcl: devices, memory, streams, events, errors, through torch_npu and, where it does not reach, through C."""

import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

LIB = Path(os.environ["ASCEND_HOME_PATH"]) / "lib64"
TABLE = json.loads((Path(__file__).parents[2] / "cann_emulator/signatures/runtime.json").read_text())
# CANN's own homes of symbols that torch_npu links without naming the library: any library it loads may have them.
HOMES = {"libprofapi.so": "libascendcl.so", "libruntime.so": "libascendcl.so"}

H2D, D2H = 1, 2
KEPT = ("PATH", "HOME", "LD_LIBRARY_PATH", "PYTHONPATH", "ASCEND_HOME_PATH", "ASCEND_OPP_PATH", "TASK_QUEUE_ENABLE")
GIB = 1 << 30


def python(code: str, *arguments: str, **settings: str) -> str:
    """What `code` prints in a fresh interpreter with these settings; those of this process are not passed on."""
    environment = {name: os.environ[name] for name in KEPT if name in os.environ} | settings
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Acl:
    """libascendcl by ctypes. Integers are passed as 64 bits: on x86-64 narrower arguments may be passed so too."""

    def __init__(self, load: type[ctypes.CDLL] = ctypes.CDLL) -> None:
        self.library = load(str(LIB / "libascendcl.so"))
        self.library.aclGetRecentErrMsg.restype = ctypes.c_char_p

    def __getattr__(self, name: str):
        function = getattr(self.library, name)

        def call(*arguments):
            return function(*(ctypes.c_int64(a) if isinstance(a, int) else a for a in arguments))

        return call

    def message(self) -> str:
        return (self.library.aclGetRecentErrMsg() or b"").decode()

    def handle(self, create: str, *arguments) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        assert getattr(self, create)(ctypes.byref(made), *arguments) == 0, self.message()
        return made


# The same, for code that runs in its own interpreter.
ACL_SOURCE = f"""
import ctypes
acl = ctypes.CDLL({str(LIB / "libascendcl.so")!r})
acl.aclGetRecentErrMsg.restype = ctypes.c_char_p
def message(): return (acl.aclGetRecentErrMsg() or b'').decode()
count = ctypes.c_uint32()
"""


@pytest.fixture
def acl() -> Acl:
    loaded = Acl()
    assert loaded.aclrtSetDevice(0) == 0
    return loaded


@pytest.fixture(autouse=True)
def on_device_0():
    torch.npu.set_device(0)


# ---- the tables ----------------------------------------------------------------------------------------------------


def test_every_function_that_torch_npu_needs_is_exported():
    libraries = {path.name: ctypes.CDLL(str(path)) for path in LIB.glob("lib*.so")}
    missing = [
        f"{name} ({home})"
        for name, entry in TABLE.items()
        if entry["required"] and (home := HOMES.get(entry["library"], entry["library"])) in libraries
        # With its executor cache absent torch_npu calls none of these; exporting them would switch it on.
        if "PTA" not in name and "HugeMem" not in name
        if not hasattr(libraries[home], name)
    ]
    assert not missing


def test_all_of_the_runtime_is_exported():
    library = ctypes.CDLL(str(LIB / "libacl_op_compiler.so"))  # depends on libascendcl: finds the functions of both
    wanted = ("libascendcl.so", "libacl_op_compiler.so", *HOMES)
    assert not [name for name, entry in TABLE.items() if entry["library"] in wanted and not hasattr(library, name)]


def test_options_that_only_one_allocator_defines_stay():
    acl = ctypes.CDLL(str(LIB / "libascendcl.so"))

    def removed(*names: str) -> int:
        return acl.emu_count_shared_options((ctypes.c_char_p * len(names))(*(n.encode() for n in names)), len(names))

    cuda_build = (
        "backend",
        "pinned_reserve_segment_size_mb",
        "per_process_memory_fraction",
        "release_lock_on_cudamalloc",
    )
    assert removed(*cuda_build) == 2
    assert removed("backend", "max_split_size_mb") == 0  # a torch without CUDA


def test_torch_npu_loads_after_the_runtime_was_used():
    code = ACL_SOURCE + "acl.aclrtSetDevice(0); import torch, torch_npu; print(torch.empty(3, device='npu').shape[0])"
    assert python(code).strip() == "3"


# ---- devices -------------------------------------------------------------------------------------------------------


def test_devices_and_their_properties():
    assert torch.npu.is_available() and torch.npu.device_count() == 8
    properties = torch.npu.get_device_properties(0)
    assert (properties.name, properties.cube_core_num, properties.vector_core_num) == ("Ascend910_9391", 24, 48)
    uuids = {str(torch.npu.get_device_properties(i).uuid) for i in range(8)}
    assert len(uuids) == 8


def test_a_device_out_of_range():
    with pytest.raises(RuntimeError, match=r"error code is 107001[\s\S]*EE1001[\s\S]*invalid device=17"):
        torch.npu.set_device(17)


@pytest.mark.parametrize("soc, arch", [("Ascend910B3", 2201), ("Ascend950PR_9599", 3510)])
def test_the_chosen_soc(soc, arch):
    code = (
        ACL_SOURCE
        + """
acl.aclrtGetSocName.restype = ctypes.c_char_p
value = ctypes.c_int64()
assert acl.aclrtSetDevice(1) == 0 and acl.aclrtGetDeviceInfo(1, 601, ctypes.byref(value)) == 0
acl.aclrtGetDeviceCount(ctypes.byref(count))
print(acl.aclrtGetSocName().decode(), value.value, count.value)
"""
    )
    assert python(code, CANN_EMULATOR_SOC=soc, CANN_EMULATOR_DEVICES="2").split() == [soc, str(arch), "2"]


@pytest.mark.parametrize(
    "name, value, says",
    [
        ("CANN_EMULATOR_SOC", "Ascend999", "Ascend999 is not a known SoC. Known are: Ascend910A, "),
        ("CANN_EMULATOR_HBM_GB", "lots", "CANN_EMULATOR_HBM_GB=lots is not a size in GiB"),
        ("CANN_EMULATOR_DEVICES", "few", "CANN_EMULATOR_DEVICES=few is not a number of devices"),
    ],
)
def test_a_setting_that_cannot_be_understood(name, value, says):
    assert says in python(ACL_SOURCE + "print(acl.aclrtSetDevice(0), message())", **{name: value})


VISIBLE = (
    ACL_SOURCE
    + """
print(acl.aclrtGetDeviceCount(ctypes.byref(count)), count.value, message().replace(chr(10), ' '))
print(acl.aclrtSetDevice(0), message().replace(chr(10), ' '))
"""
)


def test_visible_devices():
    lines = python(VISIBLE, ASCEND_RT_VISIBLE_DEVICES="1,3").splitlines()
    assert [line.strip() for line in lines] == ["0 2", "0"]


def test_visible_devices_must_ascend():
    asked, _ = python(VISIBLE, ASCEND_RT_VISIBLE_DEVICES="1,0").splitlines()
    assert asked.startswith("207004 0 EE1001: ")
    assert "set ASCEND_RT_VISIBLE_DEVICES:1,0 error, it must be configured in ascending order" in asked


def test_visible_devices_must_exist():
    asked, set_0 = python(VISIBLE, ASCEND_RT_VISIBLE_DEVICES="4", CANN_EMULATOR_DEVICES="2").splitlines()
    assert (
        asked.startswith("207004 0 EE1001: ") and "set ASCEND_RT_VISIBLE_DEVICES:4 error, input data rang[0-2)" in asked
    )
    assert set_0.startswith("107001 EE1001: ") and "invalid device=0, input visible devices:4" in set_0


def test_torch_npu_and_bad_visible_devices():
    code = """
import torch, torch_npu
print(torch.npu.is_available())
try: torch.npu.set_device(0)
except RuntimeError as error: print(error)
"""
    printed = python(code, ASCEND_RT_VISIBLE_DEVICES="1,0")
    assert printed.startswith("False") and "error code is 207004" in printed and "EE1001" in printed


def test_visible_devices_changed_after_import():
    code = """
import os, torch, torch_npu
os.environ['ASCEND_RT_VISIBLE_DEVICES'] = '1'
try: torch.npu.set_device(0)
except RuntimeError as error: print(error)
"""
    printed = python(code)
    assert "error code is 507033" in printed and "Set it before importing torch_npu" in printed


def test_a_thread_without_a_device_is_told_to_set_one():
    def ask(answers: list) -> None:
        acl, made = Acl(), ctypes.c_void_p()
        answers.append((acl.aclrtCreateStream(ctypes.byref(made)), acl.message()))

    answers: list = []
    thread = threading.Thread(target=ask, args=(answers,))
    thread.start()
    thread.join()
    code, message = answers[0]
    assert code == 107002 and "aclrtSetDevice" in message


def test_a_forked_child_cannot_use_the_npu():
    code = """
import multiprocessing, os, torch, torch_npu
def attempt(use):
    try: print(use())
    except RuntimeError as error: print(' '.join(str(error).split()), flush=True)
def forked(*uses):
    if os.fork() == 0:
        for use in uses: attempt(use)
        os._exit(0)
    os.wait()
torch.npu.device_count()
forked(lambda: torch.ones(2, device='npu'))
x = torch.ones(2, device='npu')
forked(lambda: x + 1, lambda: x.cpu())
process = multiprocessing.get_context('fork').Process(target=attempt, args=(lambda: x + 1,))
process.start()
process.join()
print((x + 1).tolist())
"""
    text = (
        "Cannot re-initialize NPU in forked subprocess. To use NPU with multiprocessing, you must use the 'spawn' start"
    )
    *refused_by_the_runtime, refused_by_torch_npu, parent = python(code).splitlines()
    assert len(refused_by_the_runtime) == 3
    assert all("error code is 507033" in line and text in line for line in refused_by_the_runtime)
    assert refused_by_torch_npu == f"{text} method"  # it notices a fork by multiprocessing itself
    assert parent == "[2.0, 2.0]"


def test_core_limits(acl):
    assert torch.npu.get_device_limit(0) == {"cube_core_num": 24, "vector_core_num": 48}
    torch.npu.set_device_limit(0, 12, 24)
    assert torch.npu.get_device_limit(0) == {"cube_core_num": 12, "vector_core_num": 24}
    assert acl.aclrtResetDeviceResLimit(0) == 0
    assert torch.npu.get_device_limit(0) == {"cube_core_num": 24, "vector_core_num": 48}


# ---- memory --------------------------------------------------------------------------------------------------------


def test_memory_that_torch_npu_reports_is_what_the_device_gave():
    torch.npu.empty_cache()
    free_before, total = torch.npu.mem_get_info(0)
    allocated, reserved = torch.npu.memory_allocated(0), torch.npu.memory_reserved(0)
    block = torch.empty(64 << 20, dtype=torch.uint8, device="npu")
    free, _ = torch.npu.mem_get_info(0)
    assert total == 64 * GIB
    assert free_before - free == torch.npu.memory_reserved(0) - reserved >= 64 << 20
    assert torch.npu.memory_allocated(0) - allocated >= block.numel()
    assert torch.npu.max_memory_allocated(0) >= torch.npu.memory_allocated(0)
    assert "PyTorch NPU memory summary, device ID 0" in torch.npu.memory_summary(0)
    del block
    torch.npu.empty_cache()
    assert torch.npu.mem_get_info(0)[0] == free_before


def test_out_of_memory_is_torch_npus_own_error_and_the_process_goes_on():
    with pytest.raises(torch.OutOfMemoryError, match=r"NPU out of memory\. Tried to allocate 80\.00 GiB"):
        torch.empty(80 * GIB, dtype=torch.uint8, device="npu")
    assert torch.ones(3, device="npu").sum().item() == 3


def test_the_limit_is_a_setting_and_holds_for_each_device():
    code = """
import torch, torch_npu
half = [torch.empty(200 << 20, dtype=torch.uint8, device=f'npu:{i}') for i in (0, 1)]
print(torch.npu.mem_get_info(0)[1])
try: torch.empty(100 << 20, dtype=torch.uint8, device='npu:0')
except torch.OutOfMemoryError: print('out of memory')
del half[0]
print(torch.empty(100 << 20, dtype=torch.uint8, device='npu:0').numel())
"""
    assert python(code, CANN_EMULATOR_HBM_GB="0.25").split("\n")[:3] == [
        str(256 << 20),
        "out of memory",
        str(100 << 20),
    ]


def test_expandable_segments():
    code = """
import torch, torch_npu
host = torch.arange(3 << 20).to(torch.uint8)
blocks = [host.npu() for _ in range(12)]
large = torch.full((30 << 20,), 7, dtype=torch.uint8).npu()
assert all(torch.equal(block.cpu(), host) for block in blocks) and large.cpu().min() == 7
free, total = torch.npu.mem_get_info()
assert total - free >= torch.npu.memory_reserved() > 66 << 20
try: torch.empty(2 << 30, dtype=torch.uint8, device='npu')
except torch.OutOfMemoryError: print('out of memory')
del blocks, large
torch.npu.empty_cache()
free, total = torch.npu.mem_get_info()
print(total - free <= 2 << 20)
"""
    printed = python(code, PYTORCH_NPU_ALLOC_CONF="expandable_segments:True", CANN_EMULATOR_HBM_GB="1")
    assert printed.split("\n")[:2] == ["out of memory", "True"]


@pytest.mark.parametrize("size", [1, 100, 4097, 5 << 20])
def test_alignment(acl, size):
    memory = acl.handle("aclrtMalloc", size, 0)
    assert memory.value % 512 == 0
    assert size < 2 << 20 or memory.value % (2 << 20) == 0
    assert acl.aclrtFree(memory) == 0


def test_double_free_and_use_after_free_are_reported_and_nothing_else_is_harmed(acl):
    memory, other = acl.handle("aclrtMalloc", 100, 0), acl.handle("aclrtMalloc", 100, 0)
    host = ctypes.create_string_buffer(100)
    assert acl.aclrtFree(memory) == 0
    assert acl.aclrtFree(memory) == 107000
    assert f"{memory.value:#x}" in (message := acl.message()) and "double free" in message
    assert acl.aclrtMemcpy(memory, 100, host, 100, H2D) == 107000
    assert f"{memory.value:#x}" in (message := acl.message()) and "use after free" in message
    assert acl.aclrtMemcpy(other, 100, host, 100, H2D) == 0
    assert acl.aclrtFree(ctypes.c_void_p(other.value + 16)) == 107000
    assert acl.aclrtFree(other) == 0
    assert torch.ones(2, device="npu").tolist() == [1, 1]


def test_copies_are_checked(acl):
    memory = acl.handle("aclrtMalloc", 4096, 0)
    host = ctypes.create_string_buffer(b"x" * 8192)
    assert acl.aclrtMemcpy(memory, 8192, host, 8192, H2D) == 107000 and "8192 bytes at" in acl.message()
    assert acl.aclrtMemcpy(memory, 10, host, 100, H2D) == 100000 and "do not fit" in acl.message()
    assert acl.aclrtMemcpy(host, 100, host, 100, H2D) == 107000  # host memory where the kind says device
    assert acl.aclrtMemset(memory, 4096, 7, 4096) == 0
    assert acl.aclrtMemcpy(host, 4096, memory, 4096, D2H) == 0 and host.raw[:4096] == b"\x07" * 4096
    assert acl.aclrtFree(memory) == 0


def test_pinned_and_registered_host_memory(acl):
    tensor = torch.arange(10.0).pin_memory()
    assert tensor.is_pinned() and not torch.arange(10.0).is_pinned()
    assert torch.equal(tensor.to("npu", non_blocking=True).cpu(), tensor)
    host = ctypes.create_string_buffer(4096)
    assert acl.aclrtHostRegisterV2(host, 4096, 2) == 0
    assert acl.aclrtHostRegisterV2(host, 4096, 2) == 507910
    assert acl.aclrtHostUnregister(host) == 0
    assert acl.aclrtHostUnregister(host) == 507911


def test_peer_copies():
    x = torch.arange(10.0, device="npu:1")
    assert torch.equal(x.to("npu:3").cpu(), torch.arange(10.0))
    assert x.to("npu:3").device.index == 3


def test_tensors_are_shared_between_spawned_processes(tmp_path):
    program = tmp_path / "share.py"
    program.write_text(
        """
import torch, torch_npu, torch.multiprocessing as mp
def child(tensors, answers):
    torch.npu.set_device(0)
    x = tensors.get()
    answers.put(x.cpu().sum().item())
    x.fill_(5)
    torch.npu.synchronize()
    answers.put('written')
    del x
    tensors.get()
if __name__ == '__main__':
    mp.set_start_method('spawn')
    tensors, answers = mp.Queue(), mp.Queue()
    process = mp.Process(target=child, args=(tensors, answers))
    process.start()
    x = torch.ones(10).npu()
    tensors.put(x)
    print(answers.get(timeout=90), answers.get(timeout=90), x.cpu().sum().item())
    tensors.put(None)
    process.join()
"""
    )
    assert python(f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')").strip() == "10.0 written 50.0"


# ---- streams and events --------------------------------------------------------------------------------------------


def test_event_timing():
    start, end = (torch.npu.Event(enable_timing=True) for _ in range(2))
    with pytest.raises(RuntimeError, match="must be recorded"):
        start.elapsed_time(end)
    start.record()
    time.sleep(0.05)
    end.record()
    end.synchronize()
    assert end.query()
    assert 49 < start.elapsed_time(end) < 500


def test_an_event_that_was_never_recorded(acl):
    events = [acl.handle("aclrtCreateEvent") for _ in range(2)]
    assert acl.aclrtEventElapsedTime(ctypes.byref(ctypes.c_float()), *events) == 107006
    for event in events:
        assert acl.aclrtDestroyEvent(event) == 0
    assert acl.aclrtDestroyEvent(events[0]) == 107000 and "not a live event" in acl.message()


def test_two_threads_with_their_own_streams():
    errors = []

    def work(value: int) -> None:
        try:
            torch.npu.set_device(0)
            with torch.npu.stream(torch.npu.Stream()):
                for _ in range(100):
                    x = torch.full((1000,), float(value)).to("npu", non_blocking=True)
                    assert (x + x).sum().item() == 2000 * value
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_streams_are_finite(acl):
    code = (
        ACL_SOURCE
        + """
acl.aclrtSetDevice(0)
made = []
while True:
    stream = ctypes.c_void_p()
    code = acl.aclrtCreateStream(ctypes.byref(stream))
    if code: break
    made.append(stream)
print(len(made), code, message())
print(acl.aclrtDestroyStream(made[5]), acl.aclrtCreateStream(ctypes.byref(stream)), acl.aclrtDestroyStream(stream))
print(acl.aclrtDestroyStream(stream), message())
"""
    )
    exhausted, reused, destroyed = python(code).splitlines()
    assert exhausted.startswith("1984 207008 ") and reused == "0 0 0"
    assert destroyed.startswith("107003 ") and "not a live stream" in destroyed


class Blocked:
    """A stream on which a callback, not yet run, holds up everything that follows."""

    def __init__(self, acl: Acl) -> None:
        self.acl, self.stream = acl, acl.handle("aclrtCreateStream")
        self.ran: list[int] = []
        self.callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.ran.append)
        assert acl.aclrtSubscribeReport(threading.get_ident(), self.stream) == 0
        assert acl.aclrtLaunchCallback(self.callback, ctypes.c_void_p(7), 1, self.stream) == 0

    def release(self) -> None:
        assert self.acl.aclrtProcessReport(1000) == 0 and self.ran == [7]

    def status(self, stream: ctypes.c_void_p) -> int:
        status = ctypes.c_int()
        assert self.acl.aclrtStreamQuery(stream, ctypes.byref(status)) == 0
        return status.value


def test_work_that_is_pending_on_a_stream_passes_on_through_events(acl):
    blocked, other = Blocked(acl), acl.handle("aclrtCreateStream")
    event = acl.handle("aclrtCreateEvent")
    assert acl.aclrtRecordEvent(event, blocked.stream) == 0
    assert acl.aclrtStreamWaitEvent(other, event) == 0
    reached = ctypes.c_int()
    assert acl.aclrtQueryEventStatus(event, ctypes.byref(reached)) == 0 and reached.value == 0
    assert blocked.status(blocked.stream) == blocked.status(other) == 1
    assert acl.aclrtSynchronizeStreamWithTimeout(other, 20) == 507046 and "within 20 ms" in acl.message()
    assert acl.aclrtSynchronizeEventWithTimeout(event, 20) == 507047
    blocked.release()
    assert acl.aclrtSynchronizeStream(other) == 0 and blocked.status(other) == 0
    assert acl.aclrtQueryEventStatus(event, ctypes.byref(reached)) == 0 and reached.value == 1


def test_a_blocking_call_gives_up_the_gil(acl):
    blocked = {}

    def service() -> None:  # needs the GIL for its callback while the main thread waits inside the runtime
        acl.aclrtSetDevice(0)
        blocked["stream"] = Blocked(acl)
        ready.set()
        time.sleep(0.1)
        blocked["stream"].release()

    ready = threading.Event()
    thread = threading.Thread(target=service)
    thread.start()
    ready.wait()
    assert Acl(ctypes.PyDLL).aclrtSynchronizeStreamWithTimeout(blocked["stream"].stream, 20000) == 0
    thread.join()


def test_values_in_device_memory(acl):
    word, waiting, writing = acl.handle("aclrtMalloc", 8, 0), *(acl.handle("aclrtCreateStream") for _ in range(2))
    assert acl.aclrtMemset(word, 8, 0, 8) == 0
    assert acl.aclrtValueWait(word, 3, 0, waiting) == 0
    assert acl.aclrtSynchronizeStreamWithTimeout(waiting, 20) == 507046
    assert acl.aclrtValueWrite(word, 3, 0, writing) == 0
    assert acl.aclrtSynchronizeStreamWithTimeout(waiting, 5000) == 0
    assert acl.aclrtFree(word) == 0


def test_callbacks_need_a_subscribed_thread(acl):
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)
    stream = acl.handle("aclrtCreateStream")
    assert acl.aclrtLaunchCallback(function, None, 0, stream) == 107015 and "aclrtSubscribeReport" in acl.message()


def test_graphs_are_refused_and_streams_are_never_capturing(acl):
    stream, status = acl.handle("aclrtCreateStream"), ctypes.c_int(9)
    assert acl.aclmdlRICaptureGetInfo(stream, ctypes.byref(status), ctypes.byref(ctypes.c_void_p())) == 0
    assert status.value == 0
    assert acl.aclmdlRICaptureBegin(stream, 0) == 207000 and "does not capture graphs" in acl.message()


def test_the_last_error_belongs_to_its_thread(acl):
    assert acl.aclrtFree(ctypes.c_void_p(0x1234)) == 107000
    assert acl.aclrtPeekAtLastError(0) == 107000
    elsewhere = []
    thread = threading.Thread(target=lambda: elsewhere.append((acl.aclrtPeekAtLastError(0), acl.message())))
    thread.start()
    thread.join()
    assert elsewhere == [(0, "")]
    assert acl.aclrtGetLastError(0) == 107000 and acl.aclrtPeekAtLastError(0) == 0
    assert "no allocation has this address" in acl.message() and acl.message() == ""


# ---- counters and trace --------------------------------------------------------------------------------------------


def test_counters_are_written_while_the_process_runs_and_at_its_end(tmp_path):
    code = """
import glob, json, sys, time, torch, torch_npu
def adds():
    state = json.load(open(glob.glob(sys.argv[1] + '/*.json')[0]))
    return sum(c['launches'] for c in state['counters'] if c['name'] == 'aclnnAdd')
x, y = (torch.ones(1000, device='npu') for _ in range(2))
for _ in range(3): x.add(y)
time.sleep(1.1)
x.add(y)
print(adds())
for _ in range(4): x.add(y)
"""
    assert python(code, str(tmp_path / "new"), CANN_EMULATOR_STATS=str(tmp_path / "new")).strip() == "4"
    (written,) = (tmp_path / "new").glob("*.json")
    state = json.loads(written.read_text())
    (add,) = [c for c in state["counters"] if c["name"] == "aclnnAdd"]
    assert (add["kind"], add["launches"], state["pid"]) == ("kernel", 8, int(written.stem))
    assert add["bytes"] >= 8 * 3 * 4000 and add["time_ns"] > 0
    assert state["devices"]["0"]["hbm_peak_bytes"] >= 2 << 20


@pytest.mark.parametrize(
    "ending, exit_code", [("pass", 0), ("raise SystemExit(3)", 3), ("os._exit(4)", 4), ("os.kill(os.getpid(), 9)", -9)]
)
def test_the_trace_is_valid_json_however_the_process_ends(tmp_path, ending, exit_code):
    trace = tmp_path / "trace.json"
    code = (
        ACL_SOURCE
        + f"""
import os
acl.aclrtSetDevice(0)
memory = ctypes.c_void_p()
acl.aclrtMalloc(ctypes.byref(memory), ctypes.c_size_t(64), 0)
for _ in range(5000): acl.aclrtMemset(memory, ctypes.c_size_t(64), 0, ctypes.c_size_t(64))
{ending}
"""
    )
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"CANN_EMULATOR_TRACE": str(trace)})
    assert done.returncode == exit_code
    events = json.loads(trace.read_text())
    assert events[0]["args"]["name"] == "device 0 stream 0"
    assert events[1]["name"] == "memset" and events[1]["ph"] == "X" and events[1]["args"]["bytes"] == 64
    if ending in ("pass", "raise SystemExit(3)"):
        assert len(events) == 5001


def test_each_process_has_its_own_trace(tmp_path):
    code = (
        ACL_SOURCE
        + """
import os, subprocess, sys
acl.aclrtSetDevice(0)
memory = ctypes.c_void_p()
acl.aclrtMalloc(ctypes.byref(memory), ctypes.c_size_t(64), 0)
acl.aclrtMemset(memory, ctypes.c_size_t(64), 0, ctypes.c_size_t(64))
if len(sys.argv) > 1: subprocess.run([sys.executable, '-c', sys.argv[1]])
"""
    )
    python(code, code, CANN_EMULATOR_TRACE=str(tmp_path / "trace.json"))
    files = sorted(tmp_path.glob("*.json"))
    assert len(files) == 2 and files[0] != files[1] and (tmp_path / "trace.json") in files
    assert len({json.loads(file.read_text())[1]["pid"] for file in files}) == 2


def test_torch_npus_profiler_runs_in_any_thread_and_writes_valid_json(tmp_path):
    code = """
import sys, threading, torch, torch_npu
from torch_npu.profiler import ProfilerActivity, profile, tensorboard_trace_handler
def work():
    with profile(activities=[ProfilerActivity.CPU], on_trace_ready=tensorboard_trace_handler(sys.argv[1])):
        torch.ones(10, device='npu').add(1)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
    python(code, str(tmp_path))
    (trace,) = tmp_path.glob("*/ASCEND_PROFILER_OUTPUT/trace_view.json")
    assert any("add" in event.get("name", "") for event in json.loads(trace.read_text()))
