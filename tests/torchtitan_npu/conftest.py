import inspect
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
    it; these documents, what the pinned torch says of its built-in functions, are the same in every process. (Other
    names of `torch` are not: they hold Python's own modules and constants, and what other tests imported.)
    """
    root = tmp_path_factory.mktemp("prepared")
    file, folder = root / "torch.jsonl", root / "data"
    functions = filter(inspect.isbuiltin, (getattr(torch, name) for name in sorted(torch.__all__)))
    texts = (function.__doc__ for function in functions if function.__doc__)
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
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
