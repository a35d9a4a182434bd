"""Building graphs call by call: a builder, and modules with a function for every operator.

Modules: `math`, `nn`, `cv` and `transformer`, as CANN's plugins are mounted.
"""

from types import ModuleType

from ._plugins import load
from .graph_builder import GraphBuilder, InputType, attr_scope, control_dependency_scope
from .tensor_holder import TensorHolder

__all__ = [
    "GraphBuilder",
    "InputType",
    "TensorHolder",
    "attr_scope",
    "control_dependency_scope",
    "get_plugin",
    "list_plugins",
]

_plugins: dict[str, ModuleType] = load(__name__)
globals().update(_plugins)


def list_plugins() -> list[str]:
    """The names of the modules with operators."""
    return list(_plugins)


def get_plugin(plugin_name: str) -> ModuleType | None:
    """A module with operators."""
    return _plugins.get(plugin_name)
