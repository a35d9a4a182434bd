"""A client of the plugin without JAX: programs come from a compiler that answers with the program itself."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pypjrt._loader import Plugin
from pypjrt.client import Client

from xla_npu.library import find_library

ECHO_COMPILER = Path(__file__).parent / "echo_compiler"


@pytest.fixture(scope="session")
def plugin() -> Plugin:
    return Plugin(str(find_library()))


@pytest.fixture(scope="module")
def client(plugin: Plugin) -> Iterator[Client]:
    previous = os.environ.get("XLA_NPU_PYTHON")
    os.environ["XLA_NPU_PYTHON"] = str(ECHO_COMPILER)
    made = Client(plugin)
    if previous is None:
        del os.environ["XLA_NPU_PYTHON"]
    else:
        os.environ["XLA_NPU_PYTHON"] = previous
    yield made
    made.close()


@pytest.fixture(autouse=True, scope="module")
def _own_graph_engine() -> Iterator[None]:
    """GE can be set up once in a process: what an earlier module set up ends, and so does this module's."""
    from ge.offline_compile import build_finalize

    from xla_npu.compiler.backend import release

    build_finalize()
    yield
    release()
