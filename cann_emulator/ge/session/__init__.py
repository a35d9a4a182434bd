"""Compiling and running graphs in one process."""

from ..error import GeError
from .session import Session

__all__ = ["GeError", "Session"]
