"""Where in the user's program an operation comes from."""

from __future__ import annotations

import re
from typing import Any

from xla_npu.compiler.errors import CompileError

_FRAME = re.compile(r'"([^"\n]+)":(\d+)(?::(\d+))?')
_SCOPE = re.compile(r'"([^"\n]*)"\(')


def describe(op: Any) -> str:
    """One line: the operation's path in the JAX program and the source line, as far as its location tells."""
    text = str(op.location)
    scope, frame = _SCOPE.search(text), _FRAME.search(text)
    places = []
    if scope:
        places.append(scope.group(1))
    if frame:
        places.append(f"{frame.group(1)}:{frame.group(2)}")
    return "at " + (", ".join(places) or "an unknown place") + f"\n  {_shorten(str(op))}"


def locate(error: CompileError, op: Any) -> None:
    """Adds the operation and its place to an error's message that has none yet."""
    if not error.located:
        error.located = True
        error.args = (f"{op.name}: {error.args[0]}\n{describe(op)}",)


def _shorten(text: str, limit: int = 300) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else text[:limit] + " ..."
