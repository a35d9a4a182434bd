"""A small transformer learns the letters of Python's own language reference, in plain JAX with optax.

Usage as of digits_mlp.py. Tensor names carry their axes: B batch, L length, D model, N heads, H head size,
V vocabulary.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax
import runs

LAYERS, D, N, LENGTH, BATCH, VOCABULARY = 2, 64, 4, 64, 16, 128


def text() -> np.ndarray:
    from pydoc_data import topics

    whole = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    return np.frombuffer(whole.encode("ascii", "replace"), np.uint8).astype(np.int32)


def initial(key: jax.Array) -> dict:
    def dense(key: jax.Array, *shape: int) -> jax.Array:
        return jax.random.normal(key, shape) * shape[0] ** -0.5

    keys = iter(jax.random.split(key, 2 + 4 * LAYERS))
    return {
        "embed_VD": jax.random.normal(next(keys), (VOCABULARY, D)) * 0.02,
        "position_LD": jax.random.normal(next(keys), (LENGTH, D)) * 0.02,
        "layers": [
            {
                "qkv": dense(next(keys), D, 3 * D),
                "out": dense(next(keys), D, D),
                "up": dense(next(keys), D, 4 * D),
                "down": dense(next(keys), 4 * D, D),
                "norms": jnp.ones((2, D)),
            }
            for _ in range(LAYERS)
        ],
    }


def norm(x_BLD: jax.Array, weight_D: jax.Array) -> jax.Array:
    return x_BLD * jax.lax.rsqrt(jnp.mean(x_BLD**2, -1, keepdims=True) + 1e-6) * weight_D


def attention(x_BLD: jax.Array, layer: dict) -> jax.Array:
    q_BLNH, k_BLNH, v_BLNH = (
        part.reshape(*part.shape[:2], N, D // N) for part in jnp.split(x_BLD @ layer["qkv"], 3, axis=-1)
    )
    mixed_BLNH = jax.nn.dot_product_attention(q_BLNH, k_BLNH, v_BLNH, is_causal=True)
    return mixed_BLNH.reshape(x_BLD.shape) @ layer["out"]


def logits(params: dict, tokens_BL: jax.Array) -> jax.Array:
    x_BLD = params["embed_VD"][tokens_BL] + params["position_LD"]
    for layer in params["layers"]:
        x_BLD = x_BLD + attention(norm(x_BLD, layer["norms"][0]), layer)
        x_BLD = x_BLD + jax.nn.gelu(norm(x_BLD, layer["norms"][1]) @ layer["up"]) @ layer["down"]
    return x_BLD @ params["embed_VD"].T


def train(steps: int, seed: int = 0) -> Iterator[float]:
    """Yields the loss of each step, in nats a letter."""
    letters = text()
    params = initial(jax.random.key(seed))
    optimizer = optax.adamw(optax.warmup_cosine_decay_schedule(0, 3e-3, 10, max(steps, 20)))
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, tokens_BL):
        def loss_of(params):
            predicted = logits(params, tokens_BL[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(predicted, tokens_BL[:, 1:]).mean()

        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    draw = np.random.default_rng(seed)
    for _ in range(steps):
        starts = draw.integers(0, len(letters) - LENGTH - 1, BATCH)
        params, state, loss = step(params, state, np.stack([letters[s : s + LENGTH + 1] for s in starts]))
        yield float(loss)


if __name__ == "__main__":
    runs.main(__doc__, train, steps=100)
