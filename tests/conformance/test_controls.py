"""The conformance run must see what is broken: kernels are broken on purpose, in processes of their own."""

import json
import os
import sys
import textwrap
from pathlib import Path

import pytest

from conformance import pool
from conformance.verdicts import Verdict

pytestmark = pytest.mark.timeout(240)

# Runs when the worker's interpreter starts: the kernels are loaded later, at the first launch.
SITE = """
import os, sys, time
from cann_emulator.kernels import registry

def replace(name, kernel):
    # None takes the kernel away.
    rows, functions = registry.rows, registry.functions
    without = lambda table: {key: value for key, value in table.items() if key != name}
    registry.rows = lambda: without(rows())
    registry.functions = lambda: without(functions()) | ({name: kernel} if kernel else {})

"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs cases in workers whose kernels were changed by the given statements; verdict and text by case."""

    def run(changes: str, *cases: tuple[str, str], timeout: float = 60) -> dict[tuple[str, str], dict]:
        (tmp_path / "sitecustomize.py").write_text(SITE + textwrap.dedent(changes))
        path = [str(tmp_path), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
        found: dict[tuple[str, str], dict] = {}
        wanted = [{"op": op, "dtype": dtype} for op, dtype in cases]
        pool.run(wanted, lambda r: found.update({(r["op"], r["dtype"]): r}), jobs=1, timeout=timeout)
        return found

    return run


def test_broken_kernels_are_seen(run):
    found = run(
        """
        replace("aclnnSub", lambda x, other, alpha, out: out.copy_(x - alpha * other + 0.01))
        replace("aclnnMaximum", lambda x, other, out: out.copy_(x.maximum(other).flip(-1)))
        replace("aclnnTan", None)
        replace("aclnnErf", lambda x, out: registry.refuse(161002, "x is not taken"))
        replace("aclnnSigmoidBackward", lambda grad, y, out: out.copy_(grad))
        replace("aclnnAtan", lambda x, out: out.zero_())
        replace("aclnnInplaceAcos", lambda x: x.zero_())
        replace("aclnnAbs", lambda x, out: out.copy_(x.abs() if x.is_contiguous() else x))
        def failing(x, out):
            raise ZeroDivisionError("by a test")
        replace("aclnnCosh", failing)
        """,
        *[
            (op, "float32")
            for op in ("sub", "maximum", "tan", "erf", "sigmoid", "cosh", "acos", "abs", "add", "transpose")
        ],
        ("atan", "bfloat16"),
        # torch_npu warns of a fallback once; it must be seen every time.
        ("i0", "float32"),
        ("i0", "bfloat16"),
    )
    verdicts = {(op, dtype): (result["verdict"], _stage(result)) for (op, dtype), result in found.items()}
    assert verdicts == {
        ("sub", "float32"): (Verdict.WRONG, "forward"),
        ("maximum", "float32"): (Verdict.WRONG, "forward"),
        ("tan", "float32"): (Verdict.NOT_IMPLEMENTED, "forward"),
        ("erf", "float32"): (Verdict.REFUSED, "forward"),
        ("sigmoid", "float32"): (Verdict.WRONG, "backward"),
        ("cosh", "float32"): (Verdict.WRONG, "forward"),
        ("acos", "float32"): (Verdict.WRONG, "in place"),
        ("abs", "float32"): (Verdict.WRONG, "strided"),
        ("add", "float32"): (Verdict.PASSES, ""),
        ("transpose", "float32"): (Verdict.NO_KERNEL, ""),
        ("atan", "bfloat16"): (Verdict.WRONG, "forward"),
        ("i0", "float32"): (Verdict.FALLBACK, "forward"),
        ("i0", "bfloat16"): (Verdict.FALLBACK, "forward"),
    }
    message = {op: result["failures"][0]["message"] for (op, _), result in found.items() if result["failures"]}
    assert "elements differ" in message["sub"]
    assert "ZeroDivisionError: by a test" in message["cosh"]
    assert "aclnnTan" in message["tan"]


def _stage(result: dict) -> str:
    return result["failures"][0]["stage"] if result["failures"] else ""


def test_a_crash_and_a_hang_cost_one_case_each(run):
    found = run(
        """
        replace("aclnnTan", lambda x, out: os.abort())
        replace("aclnnErf", lambda x, out: time.sleep(600))
        """,
        ("tan", "float32"),
        ("add", "float32"),
        ("erf", "float32"),
        timeout=15,
    )
    assert found["add", "float32"]["verdict"] == Verdict.PASSES
    for op, says in (("tan", "sample 0: the process ended with code -6"), ("erf", "no answer within 15 s")):
        assert found[op, "float32"]["verdict"] == Verdict.WRONG
        assert says in found[op, "float32"]["failures"][0]["message"]


def test_the_cpu_agrees_with_itself():
    """What differs here would be the comparison's own fault: drawn numbers, layouts, gradients."""
    cases = [(op, "bfloat16") for op in ("nn.functional.dropout", "sort", "logsumexp", "empty_like", "normal", "var")]
    found = []
    pool.run([{"op": op, "dtype": dtype} for op, dtype in cases], found.append, device="cpu", jobs=1)
    assert [r["op"] for r in found if r["verdict"] != Verdict.NO_KERNEL] == [], json.dumps(found, indent=1)


def test_a_worker_that_cannot_start_says_why(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(pool.StartError, match="a worker does not start"):
        pool.run([{"op": "add", "dtype": "float32"}], print, jobs=1)
