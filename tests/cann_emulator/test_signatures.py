"""The built libraries export what the tables promise."""

import ctypes
import os
from functools import cache
from pathlib import Path

import pytest

from cann_emulator.kernels import registry


@cache
def library(name: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(os.environ["ASCEND_HOME_PATH"]) / "lib64" / name))


def c_functions(name: str, form: str | None) -> list[str]:
    if form == "workspace_only" or form == "direct":
        return [name]
    return [name, f"{name}GetWorkspaceSize"]


def test_every_signature_has_its_trampolines():
    missing = [
        function
        for name, entry in registry.signatures().items()
        for function in c_functions(name, entry.get("form"))
        if not hasattr(library("libopapi.so"), function)
    ]
    assert not missing


def test_the_signature_table_covers_torch_npu():
    assert len(registry.signatures()) > 850


@pytest.mark.parametrize("text", ["add(self", "add.out(self, nonsense, out=out)", "fast add(self, other)"])
def test_a_malformed_row_is_refused_with_its_file_and_name(text):
    with pytest.raises((ValueError, SyntaxError), match=r"aclnnAdd|never closed"):
        registry.parse_row("aclnnAdd", text, "rows/elementwise.toml")


def test_a_row_of_an_unknown_operator_is_refused():
    with pytest.raises(ValueError, match="aclnnNope is not in"):
        registry.parse_row("aclnnNope", "add(self)", "rows/elementwise.toml")
