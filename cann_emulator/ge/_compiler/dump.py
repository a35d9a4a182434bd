"""Graphs as text."""

from typing import TYPE_CHECKING, Any

from ..graph.tensor import Tensor
from ..graph.tensor_desc import TensorDesc
from . import proto

if TYPE_CHECKING:
    from ..graph.graph import DumpFormat, Graph


def text(graph: "Graph", format: "DumpFormat") -> str:
    """A graph in one of the forms: readable lines, or GE IR as protobuf's text."""
    if format.name == "kReadable":
        return "\n".join(line for part in (graph, *graph.get_all_subgraphs()) for line in _lines(part)) + "\n"
    from .air import save

    model = proto.message("ModelDef")()
    model.ParseFromString(save(graph))
    return str(model)


def _lines(graph: "Graph") -> list[str]:
    lines = [f'graph("{graph.name}"):']
    for node in graph._nodes:
        inputs = ", ".join("_" if source is None else f"%{source[0].name}:{source[1]}" for source in node._inputs)
        attrs = ", ".join(f"{name}: {_value(value)}" for name, value in node._attrs.items())
        graphs = f" graphs({', '.join(node._subgraphs)})" if node._subgraphs else ""
        results = ", ".join(_desc(desc) for desc in node._output_descs)
        lines.append(f"  %{node.name} : [{results}] = {node.type}({inputs}) {{{attrs}}}{graphs}")
    return lines


def _desc(desc: TensorDesc) -> str:
    return f"{desc.data_type.name.removeprefix('DT_').lower()}{list(desc.shape)}"


def _value(value: Any) -> str:
    if isinstance(value, Tensor):
        shown = str(value.data) if value.shape.get_shape_size() <= 8 and value.data_type.name != "DT_BF16" else "..."
        return f"{_desc(value._desc)} {shown}"
    return repr(value)
