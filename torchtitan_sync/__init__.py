"""Keeps a plugin on top of torchtitan in step with upstream: finds what a range of upstream changes breaks, and adapts.

Nothing here imports the plugin, torch or torchtitan: both sides are read as source text.
"""
