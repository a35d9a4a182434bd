"""Kernels of the emulated CANN, one file a domain; `registry` finds them by their aclnn name."""
