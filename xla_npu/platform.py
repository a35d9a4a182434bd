"""What JAX decides by a platform's name, registered for `npu`."""

from importlib.metadata import version
from pathlib import Path

from xla_npu import PLATFORM

# The releases whose private hooks are used below.
VERSIONS = {"jax": "0.10.2", "jaxlib": "0.10.2"}


def check_versions() -> None:
    """Raises ImportError when jax or jaxlib is another release than this package was made for."""
    wrong = {name: found for name, wanted in VERSIONS.items() if (found := version(name)) != wanted}
    if wrong:
        have = ", ".join(f"{name} {found}" for name, found in wrong.items())
        want = " ".join(f"{name}=={wanted}" for name, wanted in VERSIONS.items())
        raise ImportError(f"xla_npu does not work with {have}: pip install {want}")


def register(library: Path) -> None:
    """Makes JAX treat `npu` as it treats its own platforms. `library` is the plugin that serves it."""
    from jax._src.interpreters import mlir

    if PLATFORM not in mlir._platforms_with_donation:
        mlir._platforms_with_donation.append(PLATFORM)
