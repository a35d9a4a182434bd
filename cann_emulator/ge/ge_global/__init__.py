"""The global state of Graph Engine."""

from .geapi import GeApi

__all__ = ["GeApi"]
