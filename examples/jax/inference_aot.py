"""Compile ahead of time, keep the compiled program in a file, and serve from it in another process.

    python examples/jax/inference_aot.py compile FILE    # traces, compiles, writes
    python examples/jax/inference_aot.py serve FILE      # loads and runs; nothing is traced or compiled
Start it as digits_mlp.py is started. The file is for one SoC and one version of this software.
"""

import pickle
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import serialize_executable

BATCH, WIDTH, CLASSES = 32, 256, 10


def classify(params: dict, x_BD: jax.Array) -> jax.Array:
    """Class probabilities [B, CLASSES] of a two-layer network."""
    return jax.nn.softmax(jax.nn.relu(x_BD @ params["w1"] + params["b1"]) @ params["w2"], axis=-1)


def parameters() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    shapes = {"w1": (64, WIDTH), "b1": (WIDTH,), "w2": (WIDTH, CLASSES)}
    return {name: (draw.standard_normal(shape) * 0.1).astype(np.float32) for name, shape in shapes.items()}


def compile_to(path: Path) -> None:
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), parameters())
    compiled = jax.jit(classify).lower(shapes, jax.ShapeDtypeStruct((BATCH, 64), jnp.float32)).compile()
    path.write_bytes(pickle.dumps(serialize_executable.serialize(compiled)))
    print(f"wrote {path}, {path.stat().st_size} bytes, for {jax.devices()[0].device_kind}")


def serve(path: Path) -> None:
    begin = time.perf_counter()
    # A pickle: load only files that you wrote.
    program = serialize_executable.deserialize_and_load(
        *pickle.loads(path.read_bytes()), execution_devices=jax.devices()[:1]
    )
    loaded = time.perf_counter()
    params, x_BD = parameters(), np.random.default_rng(1).standard_normal((BATCH, 64)).astype(np.float32)
    probabilities = np.asarray(program(params, x_BD))
    print(f"loaded in {1e3 * (loaded - begin):.0f} ms, first answer after {1e3 * (time.perf_counter() - begin):.0f} ms")
    print(
        "sum of probabilities",
        probabilities.sum(-1).round(4)[:3].tolist(),
        "class",
        probabilities.argmax(-1)[:5].tolist(),
    )


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("compile", "serve"):
        sys.exit(__doc__)
    {"compile": compile_to, "serve": serve}[sys.argv[1]](Path(sys.argv[2]))
