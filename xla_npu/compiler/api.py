"""Compiles one program: StableHLO in, an executable out."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from jaxlib.mlir import ir

from xla_npu.compiler import cache, dump, rules
from xla_npu.compiler.annotations import entries, function_types, main_function
from xla_npu.compiler.backend import GraphEngine, graph_engine
from xla_npu.compiler.cost import cost
from xla_npu.compiler.errors import NeedsExpansion, OtherPrecision
from xla_npu.compiler.executable import Executable
from xla_npu.compiler.lowering import ProgramInfo
from xla_npu.compiler.options import Options, parse_options
from xla_npu.compiler.partition import Partitioned, partition
from xla_npu.compiler.program import Parser, expand, resolve_composites, without_places
from xla_npu.compiler.schedule import Schedule
from xla_npu.compiler.sharding import REPLICATED

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

    def graph_engine(self) -> GraphEngine:
        """GE, started at the first program that is not in the cache."""
        return graph_engine(self.soc, self.allow_hf32)


def compile_program(
    code: bytes, options_bytes: bytes, settings: Settings, host_targets: frozenset[str] = frozenset()
) -> Executable:
    """Compiles a program as JAX serialises it, or finds it in the cache.

    Args:
        code: StableHLO portable artifact, MLIR bytecode or text.
        options_bytes: a serialised xla.CompileOptionsProto.
        host_targets: names of the functions on the host that custom calls may mean.

    Raises:
        CompileError: the program cannot be compiled; the message says why, and where in the user's program.
    """
    options = parse_options(options_bytes)
    module = settings.parser.parse(code)
    key = cache.key(without_places(module), options, settings.soc, settings.allow_hf32)
    found = cache.read(key)
    if found is not None:
        return found
    record = dump.Record(key)
    record.text("stablehlo", module)
    with module.context:
        resolve_composites(module, code)
        executable = _compile(module, options, settings, host_targets, record)
    executable.fingerprint = key
    record.finish()
    cache.write(key, executable)
    return executable


def local_program(code: bytes, options_bytes: bytes, settings: Settings) -> str:
    """The StableHLO text of the program that each device runs, after partitioning.

    Raises:
        CompileError: as compile_program.
    """
    options = parse_options(options_bytes)
    module = settings.parser.parse(code)
    with module.context:
        resolve_composites(module, code)
        return str(_localize(module, options).module)


def _localize(module: ir.Module, options: Options) -> Partitioned:
    """The program of one device."""
    if options.partitions == 1:
        return Partitioned(module)
    expand(module)
    return partition(module, options)


def _compile(
    module: ir.Module, options: Options, settings: Settings, host_targets: frozenset[str], record: dump.Record
) -> Executable:
    name = _name(module)
    kinds_in, kinds_out = (_memory_kinds(module, which) for which in ("arg_attrs", "res_attrs"))
    local = _localize(module, options)
    module = local.module
    record.text("local", module)
    record.lap("partition")
    try:
        schedule, (arguments, results, steps) = _schedule(module, options, name, host_targets)
    except NeedsExpansion:
        expand(module)
        schedule, (arguments, results, steps) = _schedule(module, options, name, host_targets)
    record.lap("lower")
    if not settings.allow_hf32 and _takes_hf32(schedule.program.precisions):
        raise OtherPrecision(ALLOW_HF32)
    main = schedule.program.functions["main"]
    values = [buffer.describe() for buffer in schedule.buffers]
    sharding_in, sharding_out = (
        [(s.op_sharding() if s else REPLICATED).hex() for s in one] for one in (local.arguments, local.results)
    )
    inputs = _ends(values, arguments, sharding_in, kinds_in)
    outputs = _ends(values, results, sharding_out, kinds_out)
    given = _aliases(main, inputs, outputs)
    # Only a program of one model can let an output take an input's memory: steps before the last may still read it.
    aliases = given if len(steps) == 1 else []
    models = []
    for number, model in enumerate(schedule.models):
        record.graph(model.graph, number)
        models.append(settings.graph_engine().compile(model.graph, aliases))
    record.lap("graph engine")
    return Executable(
        name=name,
        inputs=inputs,
        outputs=outputs,
        values=values,
        steps=steps,
        num_replicas=options.replicas,
        num_partitions=options.partitions,
        device_assignment=options.devices or [[0]],
        donation=[[output, input_] for input_, output in aliases],
        inspections=[[key.hex(), answer.hex()] for key, answer in local.inspections],
        consumed=[] if aliases else [input_ for input_, _ in given],
        cost=cost(model.graph for model in schedule.models),
        models=models,
    )


ALLOW_HF32 = "allow-hf32"


def _takes_hf32(precisions: set[str]) -> bool:
    """Whether HF32's 11 bits are enough for a program's float32 products.

    They are for jax's precision HIGH ("tensorfloat32"), not for HIGHEST. DEFAULT means float32 as on JAX's CPU backend,
    unless `XLA_NPU_HF32=1` lets it take the faster products, as on GPUs.
    """
    enough = {"HIGH", "DEFAULT"} if os.environ.get("XLA_NPU_HF32") == "1" else {"HIGH"}
    return bool(precisions) and precisions <= enough


def _schedule(module: ir.Module, options: Options, name: str, host_targets: frozenset[str]) -> tuple[Schedule, Any]:
    schedule = Schedule(ProgramInfo(module, host_targets), options.replicas, options.partitions)
    return schedule, schedule.run(_identifier(name))


def _ends(
    values: list[dict[str, Any]], buffers: list[int], shardings: list[str], kinds: list[str]
) -> list[dict[str, Any]]:
    """Inputs or outputs as the plugin is told of them."""
    spread: list[str | None] = [*shardings] or [None] * len(buffers)
    return [
        {**values[i], "value": i, "memory_kind": kind, "sharding": sharding}
        for i, sharding, kind in zip(buffers, spread, kinds, strict=True)
    ]


def _memory_kinds(module: ir.Module, which: str) -> list[str]:
    """The memories of arguments ("arg_attrs") or results ("res_attrs"): the device's unless the program names one."""
    main = main_function(module)
    arguments, results = function_types(main)
    found = ["device"] * len(arguments if which == "arg_attrs" else results)
    if which in main.attributes:
        for index, attributes in enumerate(map(entries, ir.ArrayAttr(main.attributes[which]))):
            if "mhlo.memory_kind" in attributes:
                found[index] = ir.StringAttr(attributes["mhlo.memory_kind"]).value
    return found


def _name(module: ir.Module) -> str:
    attributes = module.operation.attributes
    return ir.StringAttr(attributes["sym_name"]).value if "sym_name" in attributes else "main"


def _identifier(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)[:100]


def _aliases(main: Any, inputs: list[dict[str, Any]], outputs: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """(input, output) pairs that share memory, from JAX's attributes of donated arguments.

    `tf.aliasing_output` names the output; `jax.buffer_donor` leaves the choice: the first free one of the same kind.
    """
    if "arg_attrs" not in main.attributes:
        return []
    pairs, donors = [], []
    for index, argument in enumerate(ir.ArrayAttr(main.attributes["arg_attrs"])):
        told = entries(argument)
        if "tf.aliasing_output" in told:
            output = int(ir.IntegerAttr(told["tf.aliasing_output"]).value)
            if outputs[output]["memory_kind"] == inputs[index]["memory_kind"]:
                pairs.append((index, output))
        elif "jax.buffer_donor" in told:
            donors.append(index)
    taken = {output for _, output in pairs}
    for index in donors:
        same = [
            i
            for i, output in enumerate(outputs)
            if i not in taken and all(output[k] == inputs[index][k] for k in ("dtype", "dims", "memory_kind"))
        ]
        if same:
            taken.add(same[0])
            pairs.append((index, same[0]))
    return pairs
