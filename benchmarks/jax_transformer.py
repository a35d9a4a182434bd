"""A training step of a 12-layer transformer in JAX on the NPU against JAX's CPU backend, both in this process.

Prints as its last line {"jax_compile_ratio", "jax_cached_compile_ratio", "jax_step_ratio", "jax_memory_ratio", ...}:
times over those of the CPU backend, and peak device memory over what XLA's own memory analysis says for the CPU.
"""

import functools
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LAYERS, BATCH, LENGTH = 12, 8, 64
STEPS = 7


def build() -> tuple[Any, tuple]:
    """(the step, its arguments on the host): parameters, optimizer state and tokens; the first two are donated."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "jax"))
    import jax
    import numpy as np
    import optax
    import transformer

    transformer.LAYERS = LAYERS
    optimizer = optax.adamw(1e-3)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        params = transformer.initial(jax.random.key(0))
        state = optimizer.init(params)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, tokens_BL):
        def loss_of(params):
            predicted = transformer.logits(params, tokens_BL[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(predicted, tokens_BL[:, 1:]).mean()

        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    letters = transformer.text()[: BATCH * (LENGTH + 1)].reshape(BATCH, LENGTH + 1)
    return step, jax.tree.map(np.asarray, (params, state, letters))


def measure(device: Any, step: Any, arguments: tuple) -> dict[str, Any]:
    """Compile twice (the second time from the disk cache, where there is one), then train."""
    import jax

    on_device = jax.device_put(arguments, device)
    lowered = step.lower(*on_device)
    start = time.perf_counter()
    compiled = lowered.compile()
    compile_seconds = time.perf_counter() - start
    del lowered
    jax.clear_caches()
    lowered = step.lower(*on_device)
    start = time.perf_counter()
    lowered.compile()
    again_seconds = time.perf_counter() - start
    del lowered
    params, state, tokens = on_device
    seconds, losses = [], []
    for _ in range(STEPS):
        start = time.perf_counter()
        params, state, loss = compiled(params, state, tokens)
        loss.block_until_ready()
        seconds.append(time.perf_counter() - start)
        losses.append(float(loss))
    return {
        "compile": compile_seconds,
        "again": again_seconds,
        "step": statistics.median(seconds[1:]),
        "losses": losses,
        "memory": compiled.memory_analysis(),
    }


def main() -> None:
    os.environ.setdefault("JAX_PLATFORMS", "npu,cpu")
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XLA_NPU_CACHE"] = cache
        import jax

        npu, cpu = jax.devices("npu")[0], jax.devices("cpu")[0]
        step, arguments = build()
        # The compiler and the kernels of either backend start at their first program.
        for device in (npu, cpu):
            jax.jit(lambda x: x @ x)(jax.device_put(arguments[0]["position_LD"], device)).block_until_ready()
        on_cpu = measure(cpu, step, arguments)
        on_npu = measure(npu, step, arguments)
        peak = npu.memory_stats()["peak_bytes_in_use"]
    analysis = on_cpu["memory"]
    cpu_bytes = (
        analysis.argument_size_in_bytes
        + analysis.output_size_in_bytes
        - analysis.alias_size_in_bytes
        + analysis.temp_size_in_bytes
    )
    difference = max(abs(a - b) for a, b in zip(on_npu["losses"], on_cpu["losses"], strict=True))
    if difference > 1e-4:
        raise SystemExit(f"the losses differ by {difference}: {on_npu['losses']}, {on_cpu['losses']}")
    result = {
        "jax_compile_ratio": on_npu["compile"] / on_cpu["compile"],
        "jax_cached_compile_ratio": on_npu["again"] / on_cpu["compile"],
        "jax_step_ratio": on_npu["step"] / on_cpu["step"],
        "jax_memory_ratio": peak / cpu_bytes,
        "jax_compile_seconds": on_npu["compile"],
        "jax_compile_seconds_cpu": on_cpu["compile"],
        "jax_step_seconds": on_npu["step"],
        "jax_step_seconds_cpu": on_cpu["step"],
        "jax_peak_bytes": peak,
        "jax_peak_bytes_cpu": cpu_bytes,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
