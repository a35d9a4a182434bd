"""JAX programs in a process of their own, on the platform `npu`."""

import os
import subprocess
import sys
import textwrap


def run(program: str, *, cann: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a process of its own; `cann=False` hides CANN from it."""
    environment = os.environ | {"JAX_PLATFORMS": "npu"} | variables
    if not cann:
        for name in ("ASCEND_HOME_PATH", "LD_LIBRARY_PATH"):
            environment.pop(name, None)
    environment["PYTHONPATH"] = os.pathsep.join([os.getcwd(), environment.get("PYTHONPATH", "")])
    # The entry point's part: what JAX's discovery does with the installed package.
    header = "import xla_npu; xla_npu.initialize()\nimport jax, jax.numpy as jnp, numpy as np\n"
    return subprocess.run(
        [sys.executable, "-c", header + textwrap.dedent(program)], env=environment, capture_output=True, text=True
    )


def succeed(program: str, **variables: str) -> list[str]:
    """The lines that a program prints."""
    result = run(program, **variables)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout.splitlines()
