"""Tools around graphs."""

from .ge_utils import GeUtils

__all__ = ["GeUtils"]
