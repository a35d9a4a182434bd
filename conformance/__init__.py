"""Operator conformance: PyTorch's own operator database, run on the NPU and compared with the CPU.

`python -m conformance` runs it; docs/design/conformance.md says what is measured and how.
"""
