"""Every test runs under the emulated CANN, as a program on a machine with an NPU runs under CANN."""

import os
from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    # `import torch` loads torch_npu, which links CANN's libraries: the loader reads this when the process starts.
    home = os.environ.get("ASCEND_HOME_PATH", "")
    if not (Path(home) / "lib64" / "libascendcl.so").exists():
        raise pytest.UsageError(
            "the tests need the emulated CANN's environment: run `make test TEST_ARGS=...`, "
            "or `cann-emulator run -- python -m pytest ...`"
        )
