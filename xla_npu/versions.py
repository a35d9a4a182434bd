"""The releases that this package was made for: it uses private hooks of JAX."""

VERSIONS = {"jax": "0.10.2", "jaxlib": "0.10.2"}
