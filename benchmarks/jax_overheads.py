"""What the platform `npu` adds to a JAX program: dispatch and copies, against JAX's CPU backend and memcpy.

Prints as its last line {"jax_dispatch_us", "jax_dispatch_cpu_us", "jax_dispatch_ratio", "jax_upload_ratio",
"jax_download_ratio"}. The first three are microseconds of a call of the cached `jit(x + 1)` on 16 floats; the last two
the time of 64 MiB to and from the device over that of a memcpy between pages as fresh as theirs.
"""

import json
import os
import time
from collections.abc import Callable

CALLS = 500
ROUNDS = 9
COPY_BYTES = 64 << 20


def best(*works: Callable[[], object]) -> list[float]:
    """The shortest time of each, in seconds, in turns: whatever else runs on the machine only adds to it."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(ROUNDS):
        for work, taken in zip(works, times, strict=True):
            start = time.perf_counter()
            work()
            taken.append(time.perf_counter() - start)
    return [min(taken) for taken in times]


def main() -> None:
    os.environ.setdefault("JAX_PLATFORMS", "npu,cpu")
    # Whether the kernel has huge pages left for a new array is chance: either side takes small ones.
    os.environ["NUMPY_MADVISE_HUGEPAGE"] = "0"
    import jax
    import numpy as np

    npu, cpu = jax.devices("npu")[0], jax.devices("cpu")[0]
    add = jax.jit(lambda x: x + 1)

    def calls(device: jax.Device) -> Callable[[], object]:
        x = jax.device_put(np.ones(16, np.float32), device)
        add(x).block_until_ready()

        def work() -> None:
            for _ in range(CALLS):
                add(x).block_until_ready()

        return work

    on_npu, on_cpu = (seconds / CALLS * 1e6 for seconds in best(calls(npu), calls(cpu)))

    host = np.ones(COPY_BYTES // 4, np.float32)
    there = np.empty_like(host)
    upload, memcpy = best(
        lambda: jax.device_put(host, npu).block_until_ready(),
        lambda: np.copyto(there, host),
    )
    # An array keeps what was read from it, so each round reads another one. Both sides write to new pages.
    on_device = [jax.device_put(host, npu) for _ in range(ROUNDS)]
    jax.block_until_ready(on_device)
    download, new_copy = best(lambda: np.asarray(on_device.pop()), lambda: host.copy())
    print(
        json.dumps(
            {
                "jax_dispatch_us": round(on_npu, 2),
                "jax_dispatch_cpu_us": round(on_cpu, 2),
                "jax_dispatch_ratio": round(on_npu / on_cpu, 3),
                "jax_upload_ratio": round(upload / memcpy, 3),
                "jax_download_ratio": round(download / new_copy, 3),
            }
        )
    )


if __name__ == "__main__":
    main()
