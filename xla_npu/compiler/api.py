"""Compiles one program: StableHLO in, an executable out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from jaxlib.mlir import ir

from xla_npu.compiler import cache, dump, rules
from xla_npu.compiler.attributes import tensor_type
from xla_npu.compiler.backend import GraphEngine
from xla_npu.compiler.errors import Unsupported
from xla_npu.compiler.executable import Executable
from xla_npu.compiler.graph import Graph
from xla_npu.compiler.lowering import RULES, Lowering
from xla_npu.compiler.options import Options, parse_options
from xla_npu.compiler.program import Parser, flatten

rules.load()


@dataclass
class Settings:
    """What stays the same for a compile worker's life.

    Attributes:
        soc: CANN's name of the NPU, such as Ascend910_9391.
        allow_hf32: float32 matrix products may use HF32's shorter mantissa.
    """

    soc: str = "Ascend910_9391"
    allow_hf32: bool = False
    parser: Parser = field(default_factory=Parser, repr=False)
    engine: GraphEngine | None = field(default=None, repr=False)

    def graph_engine(self) -> GraphEngine:
        """GE, started at the first program that is not in the cache."""
        if self.engine is None:
            self.engine = GraphEngine(self.soc, self.allow_hf32)
        return self.engine


def compile_program(code: bytes, options_bytes: bytes, settings: Settings) -> Executable:
    """Compiles a program as JAX serialises it, or finds it in the cache.

    Args:
        code: StableHLO portable artifact, MLIR bytecode or text.
        options_bytes: a serialised xla.CompileOptionsProto.

    Raises:
        CompileError: the program cannot be compiled; the message says why, and where in the user's program.
    """
    options = parse_options(options_bytes)
    key = cache.key(code, options, settings.soc, settings.allow_hf32)
    found = cache.read(key)
    if found is not None:
        return found
    record = dump.Record(key)
    module = settings.parser.parse(code)
    record.text("stablehlo", module)
    with module.context:
        executable = _compile(module, options, settings, record)
    executable.fingerprint = key
    record.finish()
    cache.write(key, executable)
    return executable


def _main(module: ir.Module) -> Any:
    for op in module.body.operations:
        if op.operation.name == "func.func" and ir.StringAttr(op.attributes["sym_name"]).value == "main":
            return op
    raise Unsupported("the module has no function `main`")


def _compile(module: ir.Module, options: Options, settings: Settings, record: dump.Record) -> Executable:
    name = (
        str(module.operation.attributes["sym_name"]).strip('"') if "sym_name" in module.operation.attributes else "main"
    )
    flatten(module, frozenset(RULES))
    record.lap("parse")
    main = _main(module)
    block = main.regions[0].blocks[0]
    lowering = Lowering(Graph(_identifier(name)))
    arguments = [lowering.input(*tensor_type(argument)) for argument in block.arguments]
    results = lowering.lower_block(block, arguments)
    graph = lowering.graph
    graph.outputs = [lowering.output(result) for result in results]
    graph.prune()
    record.lap("lower")
    record.graph(graph)
    aliases = _aliases(main)
    model = settings.graph_engine().compile(graph, aliases)
    record.lap("graph engine")
    inputs = [_describe(argument) for argument in arguments]
    outputs = [{**_describe(result), "memory_kind": "device"} for result in results]
    values = [_buffer(value) for value in [*inputs, *outputs]]
    step = {
        "kind": "model",
        "model": 0,
        "inputs": list(range(len(inputs))),
        "outputs": list(range(len(inputs), len(values))),
    }
    return Executable(
        name=name,
        inputs=inputs,
        outputs=outputs,
        values=values,
        output_values=step["outputs"],
        steps=[step],
        num_replicas=options.replicas,
        num_partitions=options.partitions,
        device_assignment=options.devices or [[0]],
        donation=[[output, input_] for input_, output in aliases],
        models=[model],
    )


def _identifier(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)[:100]


def _describe(tensor: Any) -> dict[str, Any]:
    return {"dtype": tensor.type.xla, "dims": list(tensor.shape), "sharding": None}


def _buffer(description: dict[str, Any]) -> dict[str, Any]:
    return {"dtype": description["dtype"], "dims": description["dims"], "bytes": _bytes(description)}


def _bytes(description: dict[str, Any]) -> int:
    from xla_npu.compiler.dtypes import TYPES

    element = next(t for t in TYPES.values() if t.xla == description["dtype"])
    size = max(element.bits // 8, 1) * element.parts
    for dimension in description["dims"]:
        size *= dimension
    return size


def _aliases(main: Any) -> list[tuple[int, int]]:
    """(input, output) pairs of donated arguments, from the `tf.aliasing_output` attribute JAX sets."""
    pairs = []
    attributes = main.attributes
    if "arg_attrs" in attributes:
        for index, argument in enumerate(ir.ArrayAttr(attributes["arg_attrs"])):
            entries = ir.DictAttr(argument)
            if "tf.aliasing_output" in entries:
                pairs.append((index, int(ir.IntegerAttr(entries["tf.aliasing_output"]).value)))
    return pairs
