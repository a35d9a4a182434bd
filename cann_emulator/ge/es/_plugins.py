"""The modules of operators: a function for every operator, made from its definition.

A function takes the inputs in the prototype's order (None for an optional one that is absent, a list for a dynamic
one); the builder, where no input is required; the numbers of dynamic outputs; graphs; and attributes by name.
"""

import inspect
import sys
from collections import namedtuple
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .._compiler.prototypes import Prototype, prototype, types_of_plugin
from ..graph.graph import Graph
from ..graph.tensor_desc import TensorDesc
from ..graph.types import DataType
from .graph_builder import GraphBuilder
from .tensor_holder import TensorHolder

PLUGINS = ("math", "nn", "cv", "transformer")
_RESERVED = frozenset({
    "else", "if", "for", "while", "do", "switch", "case", "default", "and", "or", "not", "xor", "int", "float", "bool",
    "double", "long", "short", "signed", "unsigned", "const", "union", "new", "delete", "operator", "template", "this",
    "lambda", "in", "is", "from", "import", "pass", "with",
})  # fmt: skip


def _name(name: str, prefix: str, taken: set[str]) -> str:
    shown = f"{prefix}{name}" if name in _RESERVED or name in taken else name
    taken.add(shown)
    return shown


def as_tensor(builder: GraphBuilder, value: Any) -> TensorHolder:
    """A tensor; numbers and nested lists become float or int64 constants."""
    if isinstance(value, TensorHolder):
        return value
    shape: list[int] = []
    inner = value
    while isinstance(inner, list):
        shape.append(len(inner))
        inner = inner[0] if inner else 0
    flat = value
    for _ in shape[1:]:
        flat = [entry for row in flat for entry in row]
    if not shape:
        flat = [value]
    if all(type(entry) is int for entry in flat):
        return builder._constant(flat, shape, DataType.DT_INT64)
    if all(type(entry) in (int, float) for entry in flat):
        return builder._constant(flat, shape, DataType.DT_FLOAT)
    raise TypeError(f"a tensor, a number or a list of numbers is wanted, not {value!r}")


def apply(builder: GraphBuilder, type: str, inputs: list[Any]) -> TensorHolder:
    """Adds an operator without attributes that has one output."""
    return _add(builder, prototype(type), inputs, {}, [], {})


def _add(
    builder: GraphBuilder,
    definition: Prototype,
    inputs: list[Any],
    counts: dict[str, int],
    graphs: list[Graph],
    attrs: dict[str, Any],
) -> Any:
    sources: list[tuple[Any, int] | None] = []
    for port, value in zip(definition.inputs, inputs, strict=True):
        if port.kind == "dynamic":
            sources += [(holder._node, holder._port) for entry in value for holder in (as_tensor(builder, entry),)]
        elif value is None and port.kind == "optional":
            sources.append(None)
        else:
            holder = as_tensor(builder, value)
            sources.append((holder._node, holder._port))
    node = builder._add(definition.type)
    node._inputs = sources
    node._attrs.update(attrs)
    for graph in graphs:
        if graph._owner is not None:
            raise RuntimeError(f"Graph {graph.name} belongs to {graph._owner} already")
        graph._owner = node.name
        graph._name = f"{node.name}/{graph.name}_{len(node._subgraphs)}"
        node._subgraphs.append(graph._name)
        builder._open()._children[graph._name] = graph
    results: dict[str, Any] = {}
    at = 0
    for port in definition.outputs:
        size = counts.get(port.name, 1)
        holders = [TensorHolder._make(builder, node, at + i) for i in range(size)]
        results[port.name] = holders if port.kind == "dynamic" else holders[0]
        at += size
    node._output_descs = [TensorDesc(data_type=DataType.DT_UNDEFINED) for _ in range(at)]
    if len(results) == 1:
        return next(iter(results.values()))
    return namedtuple(f"{definition.type}Output", results, rename=True)(**results)


def _function(type: str) -> Callable:
    definition = prototype(type)
    taken: set[str] = set()
    parameters = []
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    inputs = [_name(port.name, "in_", taken) for port in definition.inputs]
    required = any(not port.kind for port in definition.inputs)
    for name, port in zip(inputs, definition.inputs, strict=True):
        optional = port.kind == "optional"
        parameters.append(inspect.Parameter(name, kind, default=None if optional else inspect.Parameter.empty))
    if not required:
        parameters.append(inspect.Parameter("owner_builder", kind, default=None))
    dynamic = {f"{port.name}_num": port.name for port in definition.outputs if port.kind == "dynamic"}
    graphs = [_name(entry[0], "subgraph_", taken) for entry in definition.graphs]
    late = [*dynamic, *graphs]
    if late and any(parameter.default is None for parameter in parameters):
        parameters = [p.replace(default=None) for p in parameters]
        parameters += [inspect.Parameter(name, kind, default=None) for name in late]
    else:
        parameters += [inspect.Parameter(name, kind) for name in late]
    attrs = {_name(name, "attr_", taken): (name, facts) for name, facts in definition.attrs.items()}
    for name, (_, facts) in attrs.items():
        default = facts[1] if len(facts) > 1 else inspect.Parameter.empty
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default))
    signature = inspect.Signature(parameters)

    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        given = dict(bound.arguments)
        values = [given.get(name) for name in inputs]
        flat = [entry for value in values for entry in (value if isinstance(value, list) else [value])]
        builder = given.get("owner_builder") or next(
            (holder._builder for holder in flat if isinstance(holder, TensorHolder)), None
        )
        if builder is None:
            raise ValueError(f"{type}: no input is a tensor of a graph, and owner_builder is not given")
        below = [g for name in graphs for g in (given[name] if isinstance(given[name], list) else [given[name]])]
        counts = {port: given[name] for name, port in dynamic.items()}
        set_attrs = {attrs[name][0]: value for name, value in given.items() if name in attrs}
        return _add(builder, definition, values, counts, below, set_attrs)

    call.__name__ = call.__qualname__ = type
    call.__doc__ = f"Adds a {type}."
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


class _Operators(ModuleType):
    """A module whose functions are made when they are first asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in types_of_plugin(self.__name__.rpartition(".")[2]):
            raise AttributeError(f"{self.__name__} has no operator {name}")
        function = _function(name)
        setattr(self, name, function)
        return function

    def __dir__(self) -> list[str]:
        return types_of_plugin(self.__name__.rpartition(".")[2])


def load(package: str) -> dict[str, ModuleType]:
    """The modules by name, mounted below `package`."""
    modules: dict[str, ModuleType] = {}
    for name in PLUGINS:
        if types_of_plugin(name):
            modules[name] = sys.modules[f"{package}.{name}"] = _Operators(f"{package}.{name}")
    return modules
