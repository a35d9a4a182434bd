"""`XLA_NPU_DUMP=DIR`: the StableHLO, the GE graph as text and as a picture, and timings of every compiled program."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from xla_npu.compiler.graph import Graph, Value

logger = logging.getLogger(__name__)


class Record:
    """What is written down about one program. Costs next to nothing when dumping is off."""

    def __init__(self, key: str):
        directory = os.environ.get("XLA_NPU_DUMP")
        self._folder = Path(directory) / key[:16] if directory else None
        self._times: dict[str, float] = {}
        self._last = time.perf_counter()
        self._write(lambda folder: folder.mkdir(parents=True, exist_ok=True))

    def _write(self, put: Callable[[Path], object]) -> None:
        """Lets `put` write into the folder; where it cannot, says so and writes nothing more of this program."""
        if self._folder:
            try:
                put(self._folder)
            except OSError as error:
                logger.warning("a program is not dumped: %s (XLA_NPU_DUMP names another folder)", error)
                self._folder = None

    def lap(self, stage: str) -> None:
        """Ends a stage; its time in milliseconds is kept."""
        now = time.perf_counter()
        self._times[stage] = self._times.get(stage, 0.0) + (now - self._last) * 1e3
        self._last = now

    def text(self, name: str, module: Any) -> None:
        """The module as MLIR text."""
        self._write(lambda folder: (folder / f"{name}.mlir").write_text(str(module)))

    def graph(self, graph: Graph, number: int = 0) -> None:
        """The GE graph as text (`graph0.txt`) and as a drawing (`graph0.svg`)."""
        self._write(lambda folder: (folder / f"graph{number}.txt").write_text("\n".join(_lines(graph)) + "\n"))
        self._write(lambda folder: (folder / f"graph{number}.svg").write_text(_drawing(graph)))

    def finish(self) -> None:
        """Writes the timings."""
        self._write(lambda folder: (folder / "timings_ms.json").write_text(json.dumps(self._times, indent=1) + "\n"))


def _value(value: Value) -> str:
    return f"{value.node.name}:{value.port}"


def _shape(value: Value) -> str:
    return f"{value.dtype}[{','.join(map(str, value.shape))}]"


def _lines(graph: Graph) -> list[str]:
    lines = []
    for one in graph.walk():
        lines.append(f"graph {one.name}({', '.join(_value(v) for v in one.inputs)})")
        for node in one.nodes:
            attributes = {k: _short(v) for k, v in node.attributes.items()}
            inside = "".join(f" {{{g.name}}}" for g in node.subgraphs)
            lines.append(
                f"  {node.name} = {node.type}({', '.join(_value(v) for v in node.inputs)}) {attributes}{inside}"
                f" -> {', '.join(_shape(v) for v in node.outputs)}"
            )
        lines.append(f"  return {', '.join(_value(v) for v in one.outputs)}")
    return lines


def _short(value: Any) -> Any:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _drawing(graph: Graph) -> str:
    """A layered drawing: every node one row below the lowest of its inputs."""
    boxes, lines, top = [], [], 20
    for one in graph.walk():
        depth: dict[Any, int] = {}
        rows: dict[int, list[Any]] = {}
        for node in one.nodes:
            depth[node] = max((depth[v.node] + 1 for v in node.inputs), default=0)
            rows.setdefault(depth[node], []).append(node)
        place = {
            node: (20 + 150 * column, top + 24 + 50 * row)
            for row, nodes in rows.items()
            for column, node in enumerate(nodes)
        }
        boxes.append(f'<text x="20" y="{top + 10}" font-weight="bold">{one.name}</text>')
        for node, (x, y) in place.items():
            shape = _shape(node.outputs[0]) if node.outputs else ""
            boxes.append(
                f'<rect x="{x}" y="{y}" width="140" height="32" fill="#eef" stroke="#446"/>'
                f'<text x="{x + 4}" y="{y + 13}">{node.type}</text><text x="{x + 4}" y="{y + 27}">{shape}</text>'
            )
            for value in node.inputs:
                from_x, from_y = place[value.node]
                lines.append(f'<line x1="{from_x + 70}" y1="{from_y + 32}" x2="{x + 70}" y2="{y}" stroke="#aaa"/>')
        top += 50 * (len(rows) + 1) + 24
    width = 200 + 150 * max((len(one.nodes) for one in graph.walk()), default=1)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" '
        'font-family="monospace" font-size="11">' + "".join([*lines, *boxes]) + "</svg>\n"
    )
