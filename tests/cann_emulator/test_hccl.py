"""Collectives between real processes through the unmodified torch_npu, against gloo; and every fault that is named."""

import re
import socket
import sys

import pytest

sys.path.insert(0, __file__.rpartition("/")[0])
from hccl_ranks import Launcher, Rank

# torch_npu's watchdog would end the process at the first fault; the ranks here report several.
KEEP_GOING = {"TORCH_HCCL_ASYNC_ERROR_HANDLING": "0"}


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    launcher = Launcher(tmp_path_factory.mktemp("hccl"))
    yield launcher
    launcher.close()


# ---- results ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_collectives_agree_with_gloo(launcher, ranks):
    launcher.start(ranks, "collectives", "finish").check()


@pytest.mark.parametrize(
    ("ranks", "name"),
    [
        (3, "functions"),
        (4, "mesh"),
        (3, "point_to_point"),
        (2, "overlap"),
        (3, "determinism"),
        (3, "c_functions"),
        (2, "refusals"),
        (2, "counted"),
        (2, "sharded_training"),
    ],
)
def test_works(launcher, ranks, name):
    launcher.start(ranks, name, "finish").check()


def test_jobs_side_by_side(launcher):
    jobs = [launcher.start(2, "job", "finish", env={"VALUE": value}) for value in ("1", "5")]
    for job in jobs:
        job.check()


# ---- faults ----------------------------------------------------------------------------------------------------------
MISMATCHES = {
    "count": (
        r"rank 0 called HcclAllReduce\(count=4, dtype=float32, op=sum\); "
        r"ranks 1, 2 called HcclAllReduce\(count=8, dtype=float32, op=sum\)"
    ),
    "dtype": r"rank 0 called HcclAllReduce\(count=8, dtype=int32, .*; ranks 1, 2 called .*dtype=float32",
    "op": r"rank 0 called .* op=max\); ranks 1, 2 called .* op=sum\)",
    "root": r"rank 0 called HcclBroadcast\(.* root=0\); ranks 1, 2 called HcclBroadcast\(.* root=1\)",
    "operator": r"rank 0 called HcclAllReduce\(.*; ranks 1, 2 called HcclBroadcast\(",
    "uneven": r"rank 0 sends 1 elements to rank 1, which expects 2",
}


def cases(rank: Rank) -> dict[str, str]:
    """What a rank printed, by the name of the case."""
    parts = re.split(r"^case (\w+): ", rank.output, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_different_arguments_are_named_on_every_rank(launcher):
    for rank in launcher.start(3, "mismatches", env=KEEP_GOING).check():
        reports = cases(rank)
        assert reports.keys() == MISMATCHES.keys()
        for name, text in reports.items():
            assert "EI0005" in text and "collective 2 of" in text, text
            assert re.search(MISMATCHES[name], text), text


def test_different_arguments_end_a_job_that_does_not_look(launcher):
    for rank in launcher.start(2, "one_mismatch", timeout=30).wait():
        assert rank.code == -6  # torch_npu's watchdog gives up
        assert re.search(r"rank 0 called HcclAllReduce\(count=4.*rank 1 called HcclAllReduce\(count=8", rank.output)


def test_different_messages(launcher):
    for rank in launcher.start(2, "send_mismatch", env=KEEP_GOING).check():
        assert "rank 0 sends 4 elements of float32 to rank 1, which receives 8 elements of float32" in rank.output


def test_ranks_that_wait_for_each_other(launcher):
    ranks = launcher.start(3, "circle", env=KEEP_GOING, timeout=40).check()
    for rank in ranks[:2]:
        assert "wait for each other in a circle" in cases(rank)["sends"]
    for rank in ranks:
        text = cases(rank)["operators"]
        assert "EI0005" in text and "wait for each other in a circle" in text
        assert "is in HcclAllReduce" in text and "is in HcclRecv(count=8, dtype=float32, source=0)" in text


def test_communicator_goes_on_after_resuming(launcher):
    launcher.start(3, "resume", "finish", env=KEEP_GOING).check()


def test_late_rank_is_named(launcher):
    ranks = launcher.start(3, "late", env={**KEEP_GOING, "HCCL_EXEC_TIMEOUT": "2"}).check()
    for innocent in (ranks[0], ranks[2]):
        assert "EI0002" in innocent.output and "507048" in innocent.output
        assert "waited 2 s (HCCL_EXEC_TIMEOUT) for remote rank 1." in innocent.output
        assert re.search(r"Rank 1 \(PID \d+, device 1\) has called nothing since HcclAllReduce", innocent.output)


def test_absent_rank_is_named(launcher):
    ranks = launcher.start(2, "absent", env={**KEEP_GOING, "HCCL_CONNECT_TIMEOUT": "2"}).check()
    assert "EI0006" in ranks[0].output and "error code is 9" in ranks[0].output
    assert "waited 2 s (HCCL_CONNECT_TIMEOUT) for remote rank 1" in ranks[0].output


def test_dead_rank_is_named_at_once(launcher):
    survivor, killed = launcher.start(2, "dead", env=KEEP_GOING).wait()
    assert (survivor.code, killed.code) == (0, -9)
    assert "EI0002" in survivor.output and "the process of rank 1 ended before it took part in" in survivor.output
    assert float(re.search(r"seconds=(\S+)", survivor.output)[1]) < 5


def test_two_ranks_on_one_device(launcher):
    for rank in launcher.start(2, "same_device", env=KEEP_GOING).check():
        assert "EI0014" in rank.output and "error code is 1" in rank.output
        assert "ranks 0, 1 of communicator" in rank.output and "all use device 0" in rank.output


def test_port_clash_on_request(launcher):
    with socket.socket() as other_job:
        other_job.bind(("127.0.0.1", 0))
        other_job.listen()
        clash = {**KEEP_GOING, "CANN_EMULATOR_HCCL_PORT_CLASH": "1", "VALUE": "1", "HCCL_CONNECT_TIMEOUT": "10"}
        port = str(other_job.getsockname()[1])
        rank = launcher.start(1, "job", env={**clash, "HCCL_IF_BASE_PORT": port}).wait()[0]
        assert rank.code == 1
        assert "EJ0003" in rank.output and "error code is 11" in rank.output and f"port {port}" in rank.output
        launcher.start(1, "job", "finish", env={**clash, "HCCL_HOST_SOCKET_PORT_RANGE": "auto"}).check()

    # The same device in two jobs, whose ports on the host differ.
    first, second = (launcher.start(1, "job", env={**clash, "HCCL_HOST_SOCKET_PORT_RANGE": "auto"}) for _ in range(2))
    ended = [first.wait()[0], second.wait()[0]]
    assert sorted(rank.code for rank in ended) == [0, 1]
    assert any("EI0019" in rank.output and "error code is 7" in rank.output for rank in ended)
