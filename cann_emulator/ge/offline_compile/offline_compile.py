"""Offline compilation: one `build_initialize` a process, then any number of models."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from .._compiler import options as known_options
from .._compiler.compile import compile_graph
from ..error import GeError, GraphFault, ge_error
from ..graph.graph import Graph

_state: dict[str, dict[str, str]] = {}  # "options" after build_initialize


@dataclass
class GraphWithOptions:
    """A graph and the options that it is built with."""

    graph: Graph
    build_options: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.graph, Graph):
            raise TypeError("graph must be a Graph")
        self.build_options = _texts(self.build_options, "build_options")


class ModelBuffer:
    """A compiled model. Made by `build_model`."""

    _data: bytes

    def __init__(self) -> None:
        raise RuntimeError("ModelBuffer objects should not be created directly")

    @classmethod
    def _make(cls, data: bytes) -> "ModelBuffer":
        buffer = cls.__new__(cls)
        buffer._data = data
        return buffer

    @property
    def length(self) -> int:
        """Bytes of the model."""
        return len(self._data)

    def get_length(self) -> int:
        """See `length`."""
        return len(self._data)


def _texts(options: dict[str, str] | None, name: str) -> dict[str, str]:
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise TypeError(f"{name} must be a dictionary")
    if not all(isinstance(text, str) for entry in options.items() for text in entry):
        raise TypeError(f"{name} keys and values must be strings")
    return dict(options)


def build_initialize(global_options: dict[str, str] | None = None) -> None:
    """Prepares this process for building models; a second call changes nothing, as in CANN.

    Args:
        global_options: options of all models; `ge.socVersion` names the SoC (default: that of the emulated device).

    Raises:
        GeError: an option is not known or has a value that it cannot have.
    """
    options = _texts(global_options, "global_options")
    try:
        known_options.check(options, known_options.GLOBAL)
        soc = options.get("ge.socVersion", "")
        if soc and not soc.startswith("Ascend"):
            raise GraphFault(
                "E10001", f"Value [{soc}] of option [ge.socVersion] is invalid. It is a name such as Ascend910B1."
            )
    except GraphFault as fault:
        raise ge_error("BuildInitialize", fault) from None
    _state.setdefault("options", options)


def build_finalize() -> None:
    """Ends what `build_initialize` began."""
    _state.clear()


def build_model(graph: Graph, build_options: dict[str, str] | None = None) -> ModelBuffer:
    """Compiles a graph into an offline model in memory.

    Args:
        graph: the graph.
        build_options: its options; they come before the global ones.

    Raises:
        GeError: the graph is not valid, the SoC cannot run it, or an option is wrong.
    """
    if not isinstance(graph, Graph):
        raise TypeError("graph must be a Graph")
    options = _texts(build_options, "build_options")
    try:
        if "options" not in _state:
            raise GraphFault("E19999", "build_initialize must be called first.")
        known_options.check(options, known_options.GRAPH)
        return ModelBuffer._make(_build(graph, {**_state["options"], **options}))
    except GraphFault as fault:
        raise ge_error("BuildModel", fault, graph=graph.name) from None


def _build(graph: Graph, options: dict[str, str]) -> bytes:
    known_options.check(options, known_options.GLOBAL)
    if not known_options.keeps_dtypes(options):
        raise GraphFault(
            "E10001",
            "without ge.exec.precision_mode_v2=origin (or ge.exec.precision_mode=must_keep_origin_dtype) CANN computes "
            "float32 in float16; the CANN emulator does not imitate that. Set the option.",
        )
    autofuse = "--enable_autofuse=false" not in os.environ.get("AUTOFUSE_FLAGS", "")
    return compile_graph(graph, known_options.soc_of(options), options, autofuse)


def save_model(output_file: str, model: ModelBuffer) -> None:
    """Writes a model to `output_file` + ".om".

    Raises:
        GeError: the file cannot be written.
    """
    if not isinstance(output_file, str):
        raise TypeError("output_file must be a string")
    if not isinstance(model, ModelBuffer):
        raise TypeError("model must be a ModelBuffer")
    path = Path(output_file if output_file.endswith(".om") else f"{output_file}.om")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(model._data)
    except OSError as error:
        raise ge_error("SaveModel", error, output_file=output_file) from error


def _no_bundles(api: str) -> GeError:
    return ge_error(api, GraphFault("E19999", "the CANN emulator has no bundles; build each graph with build_model."))


def bundle_build_model(graph_with_options: list[GraphWithOptions]) -> ModelBuffer:
    """Raises GeError: bundles are not emulated."""
    if not isinstance(graph_with_options, list):
        raise TypeError("graph_with_options must be a list")
    if len(graph_with_options) <= 1:
        raise ValueError("graph_with_options size must be larger than 1")
    raise _no_bundles("BundleBuildModel")


def bundle_save_model(output_file: str, model: ModelBuffer) -> None:
    """Raises GeError: bundles are not emulated."""
    raise _no_bundles("BundleSaveModel")
