"""A process's memory does not grow with the number of programs that it compiles and forgets."""

import pytest

from tests.xla_npu.jax_process import succeed

GROWTH = """
import gc, os
from pathlib import Path

def resident(process):
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

def compiler():
    return next(int(p) for p in os.listdir("/proc") if p.isdigit() and "xla_npu.compiler" in
                Path(f"/proc/{p}/cmdline").read_text()
                and f"PPid:\\t{os.getpid()}\\n" in Path(f"/proc/{p}/status").read_text())

def compile_one(i):
    constant = np.random.RandomState(i).rand(500, 500 + i).astype(np.float32)  # 1 MB, and another size each time
    jax.block_until_ready(jax.jit(lambda x: jnp.sort(x * constant, axis=0))(jnp.ones((500, 500 + i))))
    if i % 10 == 9:
        jax.clear_caches()
        gc.collect()
"""


@pytest.mark.slow  # 160 programs
def test_hundreds_of_distinct_programs_with_constants_leave_nothing_behind():
    lines = succeed(
        f"{GROWTH}\n"
        "for i in range(40): compile_one(i)\n"
        "before = resident(os.getpid()), resident(compiler())\n"
        "for i in range(40, 160): compile_one(i)\n"
        "print(resident(os.getpid()) - before[0], resident(compiler()) - before[1])",
        XLA_NPU_CACHE="0",
    )
    grown = [int(number) for number in lines[0].split()]
    assert grown[0] < 70 and grown[1] < 70, f"MiB of the process and of its compiler: {grown}"  # of constants: 120


def test_freed_memory_of_ever_larger_arrays_goes_back_before_more_is_taken():
    lines = succeed(
        "for i in range(1, 9):\n"
        "    a = jax.device_put(np.zeros(i * 12_000_000, np.float32)); a.block_until_ready(); a.delete()\n"
        "print(jax.devices()[0].memory_stats()['bytes_reserved'] >> 20)"
    )
    assert int(lines[0]) <= 256 + 367  # what is kept for reuse, and the largest; all together are 1,648 MiB
