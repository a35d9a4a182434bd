import os
from pathlib import Path

import pytest

from torchtitan_npu.data import prepare


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default corpus and tokenizer, as `make train` uses them."""
    folder = tmp_path_factory.mktemp("prepared") / "data"
    prepare.run(
        files=[],
        output=str(folder),
        tokenizer=None,
        vocab_size=2048,
        field="text",
        held_out=0.05,
        say=lambda line: None,
    )
    return folder


@pytest.fixture(autouse=True)
def _environment() -> None:
    """Runs in this process set the ranks' variables; tests start without them."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
