"""Where in the user's program an operation comes from."""

from __future__ import annotations

import re
from typing import Any

from xla_npu.compiler.errors import CompileError

_FRAME = re.compile(r'"([^"\n]+)":(\d+)(?::(\d+))?')
_SCOPE = re.compile(r'"([^"\n]*)"\(')


def describe(op: Any) -> str:
    """The operation's path in the JAX program and the source line, as far as locations tell, and the operation."""
    return f"at {_place(op)}\n  {_shorten(str(op))}"


def _place(op: Any) -> str:
    """Operations in comparators have none of their own, nor have some of JAX's functions: then it is their parent's."""
    text = str(op.location)
    scope, frame = _SCOPE.search(text), _FRAME.search(text)
    if not (scope or frame):
        return "an unknown place" if op.parent is None else _place(op.parent)
    places = [scope.group(1)] if scope else []
    if frame:
        places.append(f"{frame.group(1)}:{frame.group(2)}")
    return ", ".join(places)


def locate(error: CompileError, op: Any) -> None:
    """Adds the operation and its place to an error's message that has none yet."""
    if not error.located:
        error.located = True
        error.args = (f"{op.name}: {error.args[0]}\n{describe(op)}",)


def _shorten(text: str, limit: int = 300) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else text[:limit] + " ..."
