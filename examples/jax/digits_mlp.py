"""An equinox MLP learns to read handwritten digits (scikit-learn's, real scans of 8 x 8 pixels).

Nothing in it is about NPUs:
    JAX_PLATFORMS=npu python examples/jax/digits_mlp.py                       # with an NPU
    cann-emulator run -- env JAX_PLATFORMS=npu python examples/jax/digits_mlp.py   # without
"""

from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import runs
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

BATCH = 128


def train(steps: int, seed: int = 0) -> Iterator[float]:
    """Yields the loss of each step."""
    images, labels = load_digits(return_X_y=True)
    images, held_out, labels, held_out_labels = train_test_split(
        images.astype("float32") / 16, labels.astype("int32"), test_size=0.2, random_state=seed
    )
    model_key, order_key = jax.random.split(jax.random.key(seed))
    model = eqx.nn.MLP(64, 10, width_size=128, depth=2, key=model_key)
    optimizer = optax.adam(3e-3)
    state = optimizer.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit
    def step(model, state, x_BP, y_B):
        def loss_of(model):
            return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(x_BP), y_B).mean()

        loss, grads = eqx.filter_value_and_grad(loss_of)(model)
        updates, state = optimizer.update(grads, state, model)
        return eqx.apply_updates(model, updates), state, loss

    order = jax.random.randint(order_key, (steps, BATCH), 0, len(images))
    for chosen in order:
        model, state, loss = step(model, state, jnp.asarray(images)[chosen], jnp.asarray(labels)[chosen])
        yield float(loss)
    right = jnp.argmax(jax.vmap(model)(held_out), -1) == held_out_labels
    runs.say(f"held-out accuracy {float(right.mean()):.1%}")


if __name__ == "__main__":
    runs.main(__doc__, train, steps=100)
