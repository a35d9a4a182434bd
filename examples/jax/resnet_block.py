"""A residual convolution block with group normalisation reads handwritten digits. Usage as of digits_mlp.py."""

from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import runs
from sklearn.datasets import load_digits

BATCH, CHANNELS = 64, 16


class Block(eqx.Module):
    """relu(x + norm(conv(relu(norm(conv(x)))))) on [channels, height, width]."""

    convs: list[eqx.nn.Conv2d]
    norms: list[eqx.nn.GroupNorm]

    def __init__(self, key: jax.Array) -> None:
        self.convs = [eqx.nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, key=k) for k in jax.random.split(key)]
        self.norms = [eqx.nn.GroupNorm(4, CHANNELS) for _ in range(2)]

    def __call__(self, x_CHW: jax.Array) -> jax.Array:
        y_CHW = jax.nn.relu(self.norms[0](self.convs[0](x_CHW)))
        return jax.nn.relu(x_CHW + self.norms[1](self.convs[1](y_CHW)))


class Network(eqx.Module):
    stem: eqx.nn.Conv2d
    block: Block
    pool: eqx.nn.MaxPool2d
    head: eqx.nn.Linear

    def __init__(self, key: jax.Array) -> None:
        keys = jax.random.split(key, 3)
        self.stem = eqx.nn.Conv2d(1, CHANNELS, 3, padding=1, key=keys[0])
        self.block = Block(keys[1])
        self.pool = eqx.nn.MaxPool2d(2, stride=2)
        self.head = eqx.nn.Linear(CHANNELS * 16, 10, key=keys[2])

    def __call__(self, image_HW: jax.Array) -> jax.Array:
        return self.head(self.pool(self.block(self.stem(image_HW[None]))).reshape(-1))


def train(steps: int, seed: int = 0) -> Iterator[float]:
    """Yields the loss of each step."""
    digits = load_digits()
    images_SHW, labels_S = jnp.asarray(digits.images / 16, jnp.float32), jnp.asarray(digits.target, jnp.int32)
    model_key, order_key = jax.random.split(jax.random.key(seed))
    model = Network(model_key)
    optimizer = optax.sgd(0.05, momentum=0.9)
    state = optimizer.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit(donate="all")
    def step(model, state, x_BHW, y_B):
        def loss_of(model):
            return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(x_BHW), y_B).mean()

        loss, grads = eqx.filter_value_and_grad(loss_of)(model)
        updates, state = optimizer.update(grads, state)
        return eqx.apply_updates(model, updates), state, loss

    for chosen in jax.random.randint(order_key, (steps, BATCH), 0, len(labels_S)):
        model, state, loss = step(model, state, images_SHW[chosen], labels_S[chosen])
        yield float(loss)


if __name__ == "__main__":
    runs.main(__doc__, train, steps=40)
