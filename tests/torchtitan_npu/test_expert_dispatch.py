"""The all-to-all dispatcher between ranks: values, gradients, what is sent, and how often the host waits."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RANKS = 2


@pytest.mark.parametrize(
    ("choices", "soc"),
    [
        ("random", "Ascend910B1"),  # an Atlas A2, which has no fused dispatch
        ("first rank only", "Ascend910_9391"),
        ("one set a rank", "Ascend910_9391"),
    ],
)
def test_tokens_reach_their_experts_and_come_back(choices: str, soc: str) -> None:
    """Every rank compares with the formula; the last two leave ranks or experts without tokens."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), "--rdzv-backend", "c10d",
         "--rdzv-endpoint", "localhost:0", "tests/torchtitan_npu/dispatch_ranks.py", choices],
        capture_output=True, text=True, timeout=200, cwd=Path.cwd(),
        env={**os.environ, "CANN_EMULATOR_SOC": soc, "OMP_NUM_THREADS": "1",
             "PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(ranks) == RANKS
    for rank in ranks:  # Counts, rows there, rows back; the host reads one tensor: rows to and from each rank.
        assert rank["took"]["collective HcclAlltoAllV launches"] == 3
        assert rank["took"]["copy memcpy D2H launches"] == 1
        assert rank["took"]["copy memcpy D2H bytes"] == 2 * 8 * RANKS
    # Each of a token's choices is sent once there and once back, and little else; one rank alone may send more or less.
    sent = sum(rank["took"]["collective HcclAlltoAllV bytes"] for rank in ranks)
    assert 2 * sum(rank["row_bytes"] for rank in ranks) <= sent <= 1.02 * 2 * sum(rank["row_bytes"] for rank in ranks)
