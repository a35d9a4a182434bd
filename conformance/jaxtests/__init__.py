"""JAX's own tests on the NPU: `make jax-conformance JAX_TESTS=DIR`, DIR a clone of the jax repository at jax-v0.10.2.

The tests are in no package, so they are taken from there, unmodified, and are not part of this repository.
"""
