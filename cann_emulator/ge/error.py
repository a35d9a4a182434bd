"""What Graph Engine raises."""

from typing import Any


class GeError(RuntimeError):
    """A call of Graph Engine failed.

    Attributes:
        error_message: GE's own message, with its code.
        api_name: the call.
        context: what the call was about.
    """

    def __init__(
        self,
        message: str,
        error_message: str | None = None,
        api_name: str | None = None,
        context: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.error_message = error_message
        self.api_name = api_name
        self.context = context or {}


class GraphFault(Exception):
    """What is wrong with a graph, an option or a node; the public calls turn it into a `GeError`.

    Attributes:
        code: CANN's error code, e.g. "E10501".
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


def ge_error(api_name: str, fault: Exception, **context: Any) -> GeError:
    """The exception that a failed call raises."""
    about = ", ".join(f"{key}={value}" for key, value in context.items())
    parts = [f"{api_name} failed", *([about] if about else []), str(fault)]
    return GeError("; ".join(parts), error_message=str(fault), api_name=api_name, context=context)
