"""CANN for machines without an NPU: the libraries that torch_npu loads, with kernels on torch's CPU operators.

Programs reach it as they reach CANN, through its libraries and the environment (`cann-emulator run -- COMMAND`), never
by importing this package. What is here serves the command line and the kernels; importing it does nothing.
"""
