"""The compiler: graph in, offline model out."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..graph.graph import Graph
from . import fuse, simplify, views
from .build import Builder
from .image import Weights, write
from .ir import Block, Operation
from .plan import Base, Place, plan, reuse_pairs
from .recompute import recompute


@contextmanager
def _no_collection() -> Iterator[None]:
    """A graph has many objects and no garbage until it is done: collections would cost a fifth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_no_collection()
def compile_graph(graph: Graph, soc: str, options: dict[str, str], autofuse: bool) -> bytes:
    """Compiles a graph.

    Args:
        graph: the graph.
        soc: the SoC that runs the model.
        options: graph-level options of GE.
        autofuse: whether chains of elementwise operators run as one.

    Returns:
        An offline model.

    Raises:
        GraphFault: the graph is not valid, or the SoC cannot run it.
    """
    block = Builder(soc).block(graph)
    pairs = reuse_pairs(options.get("ge.exec.outputReuseInputMemIndexes", ""), len(block.inputs), len(block.outputs))
    simplify.inline(block)
    simplify.remove_unused(block)
    views.make_views(block)
    simplify.remove_unused(block)
    folded: list[Operation] = []
    simplify.fold(block, {}, folded)
    recompute(block)
    fuse.fuse(block, autofuse)
    early = Block("init", [], folded, [value for op in folded for value in op.writes()])
    fuse.fuse(early, autofuse)
    weights, reserved = Weights(), 0
    for value in _roots(block) + [value for op in early.operations for value in op.reads()]:
        if value.root.data is not None and value.root.place is None:
            value.root.place = weights.add(value.root.data)
    for op in early.operations:
        for value in op.writes():
            if value.base is None:
                value.place, reserved = weights.reserve(value.bytes, reserved)
    for index, value in enumerate(block.inputs):
        value.place = Place(Base.INPUT, index)
    targets = [Place(Base.OUTPUT, index) for index in range(len(block.outputs))]
    work = plan(block, targets, pairs, Place(Base.WORK))
    return write(block, early.operations, weights, reserved, work)


def _roots(block: Block) -> list[Any]:
    found = list(block.outputs)
    for op in block.operations:
        found += op.reads()
        for child in op.blocks:
            found += _roots(child)
    return found
