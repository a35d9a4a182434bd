"""CANN's Graph Engine: from a graph to the bytes of a compiled model."""

from __future__ import annotations

import os
import re
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from xla_npu.compiler.air import encode
from xla_npu.compiler.errors import CompileError, Unsupported
from xla_npu.compiler.graph import Graph
from xla_npu.compiler.location import locate


def autofuse() -> str:
    """CANN's setting for fusing operators: elementwise ones, and with these passes reductions and joins as well."""
    return os.environ.get("AUTOFUSE_FLAGS", "--enable_autofuse=true;--autofuse_enable_pass=reduce,concat")


class GraphEngine:
    """Compiles graphs with `ge.offline_compile`, set up once per process for one SoC and one precision."""

    def __init__(self, soc: str, allow_hf32: bool = False):
        os.environ["AUTOFUSE_FLAGS"] = autofuse()  # GE reads it when it starts
        try:
            import ge.graph
            import ge.offline_compile
        except ImportError as error:
            raise CompileError(
                "CANN's Python package `ge` cannot be imported. Source CANN's set_env.sh, or run the program under "
                f"the emulator: cann-emulator run -- python ... ({error})"
            ) from error
        self._ge: Any = ge
        self._folder = tempfile.TemporaryDirectory(prefix="xla_npu_", dir=_scratch())
        options = {
            "ge.socVersion": soc,
            # GE's default turns float32 and bfloat16 into float16.
            "ge.exec.precision_mode_v2": "origin",
            "ge.exec.allow_hf32": "11" if allow_hf32 else "00",
        }
        self._call(ge.offline_compile.build_initialize, options)
        _running.append(self)

    def _call(self, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:
            raise Unsupported(f"CANN's Graph Engine refused the program: {error}") from error

    def compile(self, graph: Graph, aliases: list[tuple[int, int]]) -> bytes:
        """The model of `graph`; `aliases` are (input, output) pairs that share memory."""
        try:
            return self._compile(graph, aliases)
        except CompileError as error:
            if (origin := _origin(graph, str(error))) is not None:
                locate(error, origin)
            raise

    def _compile(self, graph: Graph, aliases: list[tuple[int, int]]) -> bytes:
        folder = Path(self._folder.name)
        air = folder / "graph.air"
        air.write_bytes(encode(graph))
        loaded = self._ge.graph.Graph()
        self._call(loaded.load_from_air, str(air))
        options = {"input_format": "ND"}
        if aliases:
            options["ge.exec.outputReuseInputMemIndexes"] = "|".join(f"{i},{o}" for i, o in aliases)
        model = self._call(self._ge.offline_compile.build_model, loaded, options)
        self._call(self._ge.offline_compile.save_model, str(folder / "model"), model)
        # GE may add the platform to the name.
        (path,) = folder.glob("model*.om")
        data = path.read_bytes()
        path.unlink()
        return data

    def close(self) -> None:
        """Ends GE."""
        _running.remove(self)
        self._ge.offline_compile.build_finalize()
        self._folder.cleanup()


def _origin(graph: Graph, message: str) -> Any:
    """The StableHLO operation of the node that GE's message names, if it names one."""
    names = set(re.findall(r"\w+", message))
    nodes = (node for part in graph.walk() for node in part.nodes)
    return next((node.origin for node in nodes if node.name in names and node.origin is not None), None)


@cache
def graph_engine(soc: str, allow_hf32: bool) -> GraphEngine:
    """The process's Graph Engine, which can be set up once: a second one of other settings is refused by GE."""
    return GraphEngine(soc, allow_hf32)


def release() -> None:
    """Ends the process's Graph Engine, if there is one."""
    for engine in _running[:]:
        engine.close()
    graph_engine.cache_clear()


_running: list[GraphEngine] = []


def _scratch() -> str | None:
    """Memory rather than disk for the files that GE wants."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
