"""The compile worker: `python -m xla_npu.compiler --fd N`, started by the plugin.

Requests and replies are frames on the socket N: header length (u32), payload length (u64) - little endian - then a JSON
header, then the payload. The worker serves one request after the other until the socket closes. The operation `compile`
answers with an executable, `optimized` with the text of the program that one device runs.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import logging
import socket
import struct
import sys
import traceback
from typing import Any

from xla_npu.compiler.api import Settings, compile_program, local_program
from xla_npu.compiler.errors import CompileError, OtherPrecision
from xla_npu.compiler.executable import Executable

_FRAME = struct.Struct("<III")
_LARGE = 1 << 20  # bytes of a program after which memory is given back


def read_frame(stream: Any) -> tuple[dict[str, Any], bytes] | None:
    """The next frame, or None at the end of the stream."""
    head = stream.read(_FRAME.size)
    if len(head) < _FRAME.size:
        return None
    header_size, low, high = _FRAME.unpack(head)
    header = json.loads(stream.read(header_size))
    return header, stream.read(low | high << 32)


def write_frame(stream: Any, header: dict[str, Any], *payload: bytes) -> None:
    """Sends one frame."""
    head = json.dumps(header).encode()
    size = sum(map(len, payload))
    stream.write(_FRAME.pack(len(head), size & 0xFFFFFFFF, size >> 32) + head)
    for part in payload:
        stream.write(part)
    stream.flush()


def serve(stream: Any, allow_hf32: bool) -> None:
    """Answers requests until the stream ends."""
    workers: dict[str, Settings] = {}
    while (frame := read_frame(stream)) is not None:
        request, payload = frame
        settings = workers.setdefault(request["soc"], Settings(request["soc"], allow_hf32))
        size = len(payload)
        answer(stream, request, payload, settings)
        del frame, payload
        if size >= _LARGE:  # its constants, several times over, are of no more use
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)


def answer(stream: Any, request: dict[str, Any], payload: bytes, settings: Settings) -> None:
    """Answers one request."""
    try:
        code = payload[: request["code_size"]]
        options = payload[request["code_size"] : request["code_size"] + request["options_size"]]
        if request["op"] == "optimized":
            write_frame(stream, {"ok": True}, local_program(code, options, settings).encode())
            return
        executable: Executable = compile_program(code, options, settings, frozenset(request["host_targets"]))
        write_frame(stream, executable.header(), *executable.models)
    except OtherPrecision as error:
        write_frame(stream, {"ok": False, "retry_precision": str(error)})
    except CompileError as error:
        write_frame(stream, {"ok": False, "code": error.code, "message": str(error)})
    except Exception:
        message = f"the compiler failed on this program:\n{traceback.format_exc()}"
        write_frame(stream, {"ok": False, "code": "INTERNAL", "message": message})


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m xla_npu.compiler", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="file descriptor of the connected socket")
    parser.add_argument("--allow-hf32", action="store_true", help="let float32 matrix products use HF32")
    arguments = parser.parse_args()
    logging.basicConfig(stream=sys.stderr, format="xla_npu: %(message)s", level=logging.WARNING)
    with socket.socket(fileno=arguments.fd) as connection, connection.makefile("rwb") as stream:
        serve(stream, arguments.allow_hf32)


if __name__ == "__main__":
    main()
