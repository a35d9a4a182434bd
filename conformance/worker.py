"""A process that runs cases for the pool: one JSON line in for each case, one line out for each sample and case.

`python -m conformance.worker DEVICE LOG`. What the libraries print goes to LOG, where torch_npu's fallback warnings are
looked for.
"""

import json
import os
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from conformance.verdicts import FALLBACK_WARNING, Verdict, worst

SHOWN = 3  # failures of each verdict whose text is kept


class _Log:
    """This process's standard output and error, in a file."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        os.dup2(self._file, 1)
        os.dup2(self._file, 2)
        self._seen = 0

    def new(self) -> bytes:
        """What was printed since the last call."""
        end = os.fstat(self._file).st_size
        if end == self._seen:
            return b""
        text = os.pread(self._file, end - self._seen, self._seen)
        self._seen = end
        return text


def run_case(name: str, dtype: str, device: str, limit: int | None, log: _Log, say: Any) -> dict[str, Any]:
    """All samples of one case, as the report's entry for it."""
    from conformance import launches, registered
    from conformance.probe import Outcome, Probe

    start = time.monotonic()
    before = launches.by_operator()
    verdicts: Counter[Verdict] = Counter()
    failures: list[dict[str, Any]] = []
    skipped = 0
    warned_once = False
    probe = Probe(name, dtype, device)
    for judge in probe.samples(limit):
        say({"sample": judge.args[0]})
        outcome = judge()
        warned = FALLBACK_WARNING.search(log.new()) is not None
        warned_once |= warned
        if outcome is None:
            skipped += 1
            continue
        if warned and outcome.verdict is not Verdict.WRONG:
            outcome = Outcome(
                outcome.sample, Verdict.FALLBACK, outcome.stage, "torch_npu warned that it computes on the CPU"
            )
        verdicts[outcome.verdict] += 1
        if outcome.message and verdicts[outcome.verdict] <= SHOWN:
            failures.append(outcome._asdict())
    return {
        "op": name,
        "dtype": dtype,
        "verdict": worst(set(verdicts)) if verdicts else None,
        "backward": probe.backward,
        "samples": dict(verdicts),
        "skipped": skipped,
        "failures": failures,
        "seconds": round(time.monotonic() - start, 2),
        "variants": dict(probe.variants),
        "kernels": sorted(launches.by_operator() - before),
        "calls": registered.computing(probe.calls),
        # torch_npu's warnings come once a process: the next case must be able to see them.
        "ends_worker": warned_once,
    }


def main() -> None:
    device, log_path = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    log = _Log(log_path)
    warnings.simplefilter("ignore")

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")

    import torch

    torch.set_num_threads(1)
    if device == "npu":
        import torch_npu  # noqa: F401

        torch.zeros(1, device="npu")  # first use prints about the device
    say({"ready": True})
    for line in sys.stdin:
        case = json.loads(line)
        log.new()
        say({"result": run_case(case["op"], case["dtype"], device, case.get("limit"), log, say)})


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    main()
