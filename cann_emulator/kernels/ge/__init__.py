"""Kernels of Graph Engine's operators: how the nodes of a loaded model become calls of ATen's operators."""
