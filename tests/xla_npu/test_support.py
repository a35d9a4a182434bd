"""The table of operations says what holds."""

import json
import os
import subprocess
import sys

import pytest

from conformance import jaxsupport

PROGRAM = """
import json, sys
from conformance import jaxsupport
print("TABLE", json.dumps(jaxsupport.table(sys.argv[1:])))
"""


@pytest.mark.parametrize(
    "types",
    [
        ("float32", "int32", "bool"),
        pytest.param(jaxsupport.TYPES, marks=pytest.mark.slow),  # a minute and a half
    ],
    ids=["main types", "all types"],
)
def test_every_cell_of_the_table_is_what_a_program_shows(types: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *types],
        env={**os.environ, "JAX_PLATFORMS": "npu,cpu", "JAX_ENABLE_X64": "1"},
        capture_output=True,
        text=True,
    )
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("TABLE "))
    found = json.loads(line.removeprefix("TABLE "))
    documented = jaxsupport.documented()
    assert found.keys() == documented.keys()
    differ = {
        (name, dtype): (cell, documented[name][dtype], why[:200])
        for name, row in found.items()
        for dtype, (cell, why) in row.items()
        if cell != documented[name][dtype]
    }
    assert not differ, f"run python -m conformance.jaxsupport --write: {differ}"


def test_nothing_in_the_table_is_wrong() -> None:
    cells = [cell for row in jaxsupport.documented().values() for cell in row.values()]
    assert jaxsupport.WRONG not in cells and cells.count(jaxsupport.RIGHT) > 600
