"""The operators that pass keep passing, and their list only grows."""

import os

import pytest

from conformance import passing, pool
from conformance.verdicts import Verdict

# Of a case with many samples every nth is run, so that about this many are; `make conformance` runs all.
SAMPLES = 6


def test_the_list_only_grows():
    listed = passing.read()
    assert len(listed) > 1000
    before = passing.ever_committed()
    if before is None:
        pytest.skip("no git history here")
    lost = sorted(before - listed)
    assert not lost, f"passing.txt no longer lists {lost}: make them pass again, what once passed may not be given up"


@pytest.mark.timeout(600)
def test_listed_operators_pass():
    failed = []

    def done(result):
        # The few samples that are run may all be of those that need no kernel.
        if result["verdict"] not in (Verdict.PASSES, Verdict.NO_KERNEL):
            failed.append((result["op"], result["dtype"], result["verdict"], result["failures"][:1]))

    cases = [{"op": op, "dtype": dtype, "limit": SAMPLES} for op, dtype in sorted(passing.read())]
    pool.run(cases, done, jobs=1 if os.environ.get("PYTEST_XDIST_WORKER") else 2)
    assert not failed, (
        f"{len(failed)} listed cases do not pass; `python -m conformance --op NAME` shows one: {failed[:5]}"
    )
