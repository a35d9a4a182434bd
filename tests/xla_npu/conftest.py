"""A client of the plugin without JAX: programs come from a compiler that answers with the program itself."""

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
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_NPU_PYTHON", str(ECHO_COMPILER))
        made = Client(plugin)
        yield made
        made.close()
