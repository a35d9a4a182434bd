"""Compiled programs on disk, dumps, and the messages of programs that cannot be compiled."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.xla_npu.programs import compile_function, on_npu, serialize, settings
from xla_npu.compiler import cache
from xla_npu.compiler.__main__ import read_frame, write_frame
from xla_npu.compiler.api import compile_program
from xla_npu.compiler.errors import InvalidProgram, Unsupported
from xla_npu.compiler.executable import Executable
from xla_npu.compiler.options import parse_options
from xla_npu.compiler.program import without_places


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XLA_NPU_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def entries(folder: Path) -> list[Path]:
    """The files of a cache."""
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_program_is_compiled_once(folder, monkeypatch):
    code = serialize(lambda x: x * 3 + 1, np.ones(4, np.float32))
    first = compile_program(code, b"", settings())
    assert len(entries(folder)) == 1
    monkeypatch.setattr(type(settings().graph_engine()), "compile", None)  # a second compilation would fail
    again = compile_program(code, b"", settings())
    assert again == first and again.fingerprint == first.fingerprint


def test_a_program_whose_lines_were_moved_is_the_same_program(folder):
    text = """func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {{
      %0 = stablehlo.add %a, %a : tensor<2xf32> {}
      return %0 : tensor<2xf32> }}"""
    first, moved = (
        compile_program(text.format(f'loc("net.py":{line}:3)').encode(), b"", settings()) for line in (12, 14)
    )
    assert moved == first and len(entries(folder)) == 1


def test_a_damaged_entry_is_compiled_again(folder, caplog):
    code = serialize(lambda x: x * 3 + 2, np.ones(4, np.float32))
    first = compile_program(code, b"", settings())
    (path,) = entries(folder)
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with caplog.at_level(logging.WARNING):
        again = compile_program(code, b"", settings())
    assert "compiled again" in caplog.text and str(path) in caplog.text
    assert again.models == first.models and Executable.from_bytes(path.read_bytes()) == first


def test_a_cache_that_cannot_be_written_is_said_once_and_harms_nothing(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XLA_NPU_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        for number in (5, 6):
            (got,) = on_npu(lambda x, number=number: x + number, np.ones(2, np.float32))
            np.testing.assert_array_equal(got, 1.0 + number)
    assert caplog.text.count("are not kept") == 1


def test_two_processes_share_a_cache(folder):
    code = serialize(lambda x: jnp.tanh(x) * 7, np.ones(4, np.float32))
    program = folder.parent / "program.bin"
    program.write_bytes(code)
    script = (
        "import sys; from xla_npu.compiler.api import Settings, compile_program; "
        f"compile_program(open({str(program)!r}, 'rb').read(), b'', Settings())"
    )
    workers = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(2)]
    assert [worker.wait(120) for worker in workers] == [0, 0]
    (path,) = entries(folder)
    module = settings().parser.parse(code)
    assert path.name == cache.key(without_places(module), parse_options(b""), settings().soc, False)
    Executable.from_bytes(path.read_bytes())


def test_a_dump_holds_program_graph_picture_and_times(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_NPU_CACHE", "0")
    monkeypatch.setenv("XLA_NPU_DUMP", str(tmp_path))
    compile_function(lambda x: lax.fori_loop(0, 3, lambda i, c: c * 2, x), np.ones(3, np.float32))
    (folder,) = tmp_path.iterdir()
    assert "stablehlo.while" in (folder / "stablehlo.mlir").read_text()
    assert "While(" in (folder / "graph0.txt").read_text()
    assert (folder / "graph0.svg").read_text().startswith("<svg")
    assert set(json.loads((folder / "timings_ms.json").read_text())) >= {"partition", "lower", "graph engine"}


def test_a_dump_that_cannot_be_written_is_said_and_stops_no_program(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XLA_NPU_CACHE", "0")
    monkeypatch.setenv("XLA_NPU_DUMP", str(tmp_path / "file"))
    compile_function(lambda x: x + 1, np.ones(3, np.float32))
    (message,) = caplog.messages
    assert re.search("not dumped: .*file.*XLA_NPU_DUMP", message)


def test_an_operation_without_lowering_is_named_with_its_place():
    text = b"""func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {
      %0 = stablehlo.custom_call @cuda_kernel(%a) : (tensor<2xf32>) -> tensor<2xf32>
           loc("model/attention"("net.py":12:3))
      return %0 : tensor<2xf32> }"""
    with pytest.raises(Unsupported) as caught:
        compile_program(text, b"", settings())
    message = str(caught.value)
    assert all(
        word in message
        for word in ("stablehlo.custom_call", "cuda_kernel", "model/attention", "net.py:12", "pure_callback")
    )


def test_dynamic_shapes_are_refused_with_what_to_do():
    text = b"func.func @main(%a: tensor<?xf32>) -> tensor<?xf32> { return %a : tensor<?xf32> }"
    with pytest.raises(Unsupported, match=r"tensor<\?xf32> has a dimension .* static shapes"):
        compile_program(text, b"", settings())


def test_a_type_the_npu_lacks_is_named():
    text = b"""func.func @main(%a: tensor<2xf64>) -> tensor<2xf64> {
      %0 = stablehlo.tanh %a : tensor<2xf64>
      return %0 : tensor<2xf64> }"""
    with pytest.raises(Unsupported, match="f64"):
        compile_program(text, b"", settings())


def test_bytes_that_are_no_program_are_refused():
    with pytest.raises(InvalidProgram, match="not StableHLO that this jaxlib"):
        compile_program(b"not a program", b"", settings())


def test_the_worker_answers_programs_and_errors_and_goes_on(tmp_path):
    ours, theirs = socket.socketpair()
    environment = {**os.environ, "XLA_NPU_CACHE": "0"}
    with theirs:
        worker = subprocess.Popen(
            [sys.executable, "-m", "xla_npu.compiler", "--fd", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
        )
    good = serialize(lambda x: x + 1, np.ones(3, np.float32))
    with ours, ours.makefile("rwb") as stream:
        for code, ok in ((good, True), (b"nonsense", False), (good, True)):
            header = {
                "op": "compile",
                "code_size": len(code),
                "options_size": 0,
                "soc": settings().soc,
                "host_targets": [],
            }
            write_frame(stream, header, code)
            frame = read_frame(stream)
            assert frame is not None
            reply, payload = frame
            assert reply["ok"] is ok, reply
            if ok:
                assert [step["kind"] for step in reply["steps"]] == ["model"]
                assert len(payload) == reply["models"][0]["size"]
            else:
                assert reply["code"] == "INVALID_ARGUMENT" and "StableHLO" in reply["message"]
    assert worker.wait(20) == 0


@pytest.mark.parametrize("batch", [64, 128])
def test_convolution_gradients_have_no_size_cliff(batch):
    def loss(w, x):
        return (lax.conv_general_dilated(x, w, (1, 1), "SAME") ** 2).sum()

    w, x = np.ones((2, 1, 3, 3), np.float32) / 9, np.ones((batch, 1, 6, 6), np.float32)
    (got,) = on_npu(jax.grad(loss), w, x)
    assert np.isfinite(got).all() and got.shape == w.shape
