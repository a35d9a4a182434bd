"""Runs cases in worker processes, and outlives them: a worker that dies or hangs costs its case, not the run."""

import json
import os
import queue
import selectors
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from conformance.verdicts import Verdict

START_TIMEOUT = 180.0

ENVIRONMENT = {
    # torch_npu then raises where it would compute on the CPU: the fallback is seen at every call, not once a process.
    "TORCH_NPU_FALLBACK_CPU_DISABLE": "1",
    # torch_npu's switch for PyTorch's own meaning of an operator where its default is another (gelu's `approximate`,
    # the indices of max_pool2d).
    "TORCH_NPU_USE_COMPATIBLE_IMPL": "1",
    "TASK_QUEUE_ENABLE": "0",
    "OMP_NUM_THREADS": "1",
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    "PYTHONWARNINGS": "ignore",
}


class StartError(Exception):
    """No worker can be started; the text is what it printed."""


class _Died(Exception):
    """The worker ended, or said nothing for too long."""


class _Worker:
    def __init__(self, device: str) -> None:
        handle, self._log = tempfile.mkstemp(prefix="conformance-", suffix=".log")
        os.close(handle)
        command = [sys.executable, "-m", "conformance.worker", device, self._log]
        if device == "npu" and "ASCEND_HOME_PATH" not in os.environ:
            command = [sys.executable, "-m", "cann_emulator.cli", "run", "--", *command]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=open(self._log, "ab"),  # noqa: SIM115
            env={**os.environ, **ENVIRONMENT},
            cwd=Path(__file__).resolve().parents[1],
        )
        self._selector = selectors.DefaultSelector()
        assert self._process.stdout and self._process.stdin
        os.set_blocking(self._process.stdout.fileno(), False)
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        self._pending = b""
        try:
            self._answer(START_TIMEOUT)
        except _Died as error:
            self.stop()
            raise StartError(f"a worker does not start: {error}") from None

    def _answer(self, timeout: float) -> dict[str, Any]:
        assert self._process.stdout
        while b"\n" not in self._pending:
            if not self._selector.select(timeout):
                raise _Died(f"no answer within {timeout:g} s")
            chunk = os.read(self._process.stdout.fileno(), 1 << 20)
            if not chunk:
                code = self._process.wait()
                raise _Died(f"the process ended with code {code}\n{self.printed()}")
            self._pending += chunk
        line, self._pending = self._pending.split(b"\n", 1)
        return json.loads(line)

    def run(self, case: dict[str, Any], timeout: float) -> dict[str, Any]:
        assert self._process.stdin
        sample = -1
        try:
            self._process.stdin.write(json.dumps(case).encode() + b"\n")
            self._process.stdin.flush()
            while True:
                answer = self._answer(timeout)
                if "result" in answer:
                    return answer["result"]
                sample = answer["sample"]
        except (_Died, BrokenPipeError) as error:
            raise _Died(f"sample {sample}: {error}") from None

    def printed(self) -> str:
        """The end of it, without torch_npu's warnings."""
        lines = Path(self._log).read_text(errors="replace").splitlines()
        return "\n".join(line for line in lines if "Warning:" not in line)[-2000:]

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._selector.close()
        Path(self._log).unlink(missing_ok=True)


def _crashed(case: dict[str, Any], message: str) -> dict[str, Any]:
    failure = {"sample": None, "verdict": Verdict.WRONG, "stage": "crash", "message": message}
    return {
        **{key: case[key] for key in ("op", "dtype")},
        "verdict": Verdict.WRONG,
        "backward": None,
        "samples": {Verdict.WRONG: 1},
        "skipped": 0,
        "failures": [failure],
        "seconds": 0.0,
        "variants": {},
        "kernels": [],
        "calls": {},
        "ends_worker": True,
    }


def run(
    cases: Iterable[dict[str, Any]],
    done: Callable[[dict[str, Any]], None],
    *,
    device: str = "npu",
    jobs: int = 2,
    timeout: float = 60.0,
) -> None:
    """Runs every case and calls `done` with its result, from one thread at a time."""
    waiting: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    for case in cases:
        waiting.put(case)
    lock = threading.Lock()
    failed: list[BaseException] = []

    def serve() -> None:
        worker = None
        try:
            while not failed:
                try:
                    case = waiting.get_nowait()
                except queue.Empty:
                    break
                worker = worker or _Worker(device)
                try:
                    result = worker.run(case, timeout)
                except _Died as error:
                    result = _crashed(case, str(error))
                if result["ends_worker"]:
                    worker.stop()
                    worker = None
                with lock:
                    done(result)
        except BaseException as error:
            failed.append(error)
        finally:
            if worker:
                worker.stop()

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
