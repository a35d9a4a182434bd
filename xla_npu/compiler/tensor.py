"""A StableHLO tensor while it is lowered."""

from __future__ import annotations

from dataclasses import dataclass

from xla_npu.compiler.dtypes import ElementType
from xla_npu.compiler.graph import Value


@dataclass(slots=True, eq=False)
class Tensor:
    """A tensor of `type` and `shape`, held in one GE value, or two (real and imaginary part) for complex types.

    A part may be smaller than `shape`: a scalar, or of the same rank with some dimensions 1. Broadcasts cost nothing
    until something other than an elementwise operator needs the whole tensor.
    """

    type: ElementType
    shape: tuple[int, ...]
    parts: tuple[Value, ...]

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def value(self) -> Value:
        """The only part."""
        (value,) = self.parts
        return value

    @property
    def constant(self):
        """The numpy array of a constant's stored part (a scalar when all elements are equal), or None."""
        return self.parts[0].array if len(self.parts) == 1 else None
