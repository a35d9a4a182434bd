"""What JAX decides by a platform's name, registered for `npu`."""

import ctypes
import functools
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from xla_npu import PLATFORM, callbacks, dlpack, host_calls
from xla_npu.versions import VERSIONS


def check_versions() -> None:
    """Raises ImportError when jax or jaxlib is another release than this package was made for."""
    wrong = {name: found for name, wanted in VERSIONS.items() if (found := version(name)) != wanted}
    if wrong:
        have = ", ".join(f"{name} {found}" for name, found in wrong.items())
        want = " ".join(f"{name}=={wanted}" for name, wanted in VERSIONS.items())
        raise ImportError(f"xla_npu does not work with {have}: pip install {want}")


# Linear algebra that neither the Graph Engine nor JAX's default lowerings have: lowered as for JAX's CPU backend, to
# calls of LAPACK by names that JAX keeps stable, so that programs with them can be exported. Gradients are JAX's own.
HOST_PRIMITIVES = (
    "eig",
    "eigh",
    "geqp3",
    "geqrf",
    "hessenberg",
    "householder_product",
    "lu",
    "ormqr",
    "schur",
    "svd",
    "tridiagonal",
    "tridiagonal_solve",
)


def register(library: Path) -> None:
    """Makes JAX treat `npu` as it treats its own platforms. `library` is the plugin that serves it."""
    import jax
    from jax._src import checkify, config, debugging
    from jax._src.interpreters import mlir
    from jax._src.lax import linalg

    # Callbacks get their arguments on a CPU device, and host linear algebra runs there.
    if config.jax_platforms.value == PLATFORM:
        jax.config.update("jax_platforms", f"{PLATFORM},cpu")
    if PLATFORM not in mlir._platforms_with_donation:
        mlir._platforms_with_donation.append(PLATFORM)
    # The library that JAX has loaded: loading it again gives the same one.
    plugin = ctypes.CDLL(str(library))
    plugin.npu_set_interpreter(sys.executable.encode())
    callbacks.install(plugin)
    host_calls.install(plugin)
    dlpack.install()
    _keep_in_persistent_cache()
    mlir.register_lowering(debugging.debug_callback_p, debugging.debug_callback_lowering, platform=PLATFORM)
    mlir.register_lowering(debugging.debug_print_p, debugging.debug_print_lowering_rule, platform=PLATFORM)
    mlir.register_lowering(checkify.check_p, checkify.check_lowering_rule, platform=PLATFORM)
    for name in HOST_PRIMITIVES:
        primitive = getattr(linalg, f"{name}_p")
        mlir.register_lowering(primitive, functools.partial(_on_host, primitive), platform=PLATFORM)


def _on_host(primitive: Any, ctx: Any, *operands: Any, **parameters: Any) -> Any:
    """Lowers a primitive as for the CPU; matrices of bfloat16, which LAPACK lacks, in float32 (float16 JAX refuses)."""
    import jax.numpy as jnp
    from jax._src.interpreters import mlir

    def widened(*arrays: Any) -> list[Any]:
        wide = [x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x for x in arrays]
        results = primitive.bind(*wide, **parameters)
        results = results if primitive.multiple_results else [results]
        return [result.astype(aval.dtype) for result, aval in zip(results, ctx.avals_out, strict=True)]

    if any(aval.dtype == jnp.bfloat16 for aval in ctx.avals_in):
        return mlir.lower_fun(widened, multiple_results=True)(ctx, *operands)
    return mlir._platform_specific_lowerings["cpu"][primitive].rule(ctx, *operands, **parameters)


def _keep_in_persistent_cache() -> None:
    """Lets JAX's persistent cache, where a program turns it on, hold programs of `npu` too."""
    from jax._src import compilation_cache

    original = compilation_cache.is_cache_used
    if getattr(original, "knows_npu", False):
        return

    def is_cache_used(backend: Any) -> bool:
        # JAX has a fixed list of platforms; it asks a backend for nothing else.
        known = SimpleNamespace(platform="cpu", supports_executable_serialization=True)
        return original(known if backend.platform == PLATFORM else backend)

    is_cache_used.knows_npu = True  # type: ignore[attr-defined]
    compilation_cache.is_cache_used = is_cache_used
