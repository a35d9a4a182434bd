"""CANN's Graph Engine, emulated: builds, checks and compiles graphs of GE operators.

Installed into the emulated CANN home as top-level package `ge`, with the public names of CANN's own.
"""
