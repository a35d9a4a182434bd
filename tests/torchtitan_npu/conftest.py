import json
import os
from pathlib import Path

import pytest
import torch

from torchtitan_npu.data import prepare


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text and tokenizer for every run here.

    The corpus of `make train`, the running Python's documentation, differs between Python's releases, and losses with
    it; these documents, torch's documentation of its functions, are those of the pinned torch.
    """
    root = tmp_path_factory.mktemp("prepared")
    file, folder = root / "torch.jsonl", root / "data"
    texts = (getattr(getattr(torch, name), "__doc__", None) for name in sorted(dir(torch)))
    file.write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in texts if isinstance(text, str)), encoding="utf-8"
    )
    prepare.run(
        files=[str(file)],
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
