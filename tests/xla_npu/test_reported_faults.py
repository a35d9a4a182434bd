"""Small programs on which plugins for other devices were seen to break, against JAX on the CPU."""

import re

from tests.xla_npu.jax_process import run, succeed

# `same(function, *arguments)`: a jitted function gives on the NPU what it gives on the CPU, to the last bit or within
# float32's rounding.
SAME = """
cpu = jax.devices("cpu")[0]
def same(function, *arguments, rtol=0):
    there = jax.jit(function)(*arguments)
    here = jax.jit(function)(*jax.device_put(arguments, cpu))
    assert {d.platform for leaf in jax.tree.leaves(there) for d in leaf.devices()} == {"npu"}
    for t, h in zip(jax.tree.leaves(there), jax.tree.leaves(here), strict=True):
        assert t.dtype == h.dtype and t.shape == h.shape, (t, h)
        np.testing.assert_allclose(t, h, rtol=rtol, atol=rtol * np.abs(np.asarray(h)).max(initial=0))
"""


def test_rounding_bit_counts_and_padding_are_lowered():
    succeed(
        SAME
        + """
halves = np.arange(-9, 10, dtype=np.float32) / 2
same(jnp.round, halves)
same(lambda x: jax.lax.round(x, jax.lax.RoundingMethod.AWAY_FROM_ZERO), halves)
same(jax.lax.clz, np.array([0, 1, 2, 255, 2**31, 2**32 - 1], np.uint32))
same(jax.lax.clz, np.array([0, 1, -1, -(2**15)], np.int16))
for mode in ("constant", "edge", "reflect", "symmetric", "wrap", "mean", "linear_ramp"):
    same(lambda x: jnp.pad(x, ((1, 2), (0, 3)), mode=mode), np.arange(12, dtype=np.float32).reshape(3, 4), rtol=1e-6)
"""
    )


def test_complex_numbers_are_added_and_transformed():
    succeed(
        SAME
        + """
r = np.random.default_rng(0)
a, b = (r.normal(size=(8, 8)) + 1j * r.normal(size=(8, 8)) for _ in range(2))
a, b = a.astype(np.complex64), b.astype(np.complex64)
same(lambda a, b: (a + b, a - b, a * b, a / b, a @ b, jnp.conj(a), abs(a)), a, b, rtol=2e-6)
same(jnp.fft.fft2, a, rtol=2e-6)
same(jnp.fft.ifft2, a, rtol=2e-6)
same(jnp.fft.rfft2, a.real, rtol=2e-6)
same(lambda x: jax.grad(lambda x: jnp.sum(abs(jnp.fft.fft2(x)) ** 2))(x), a.real, rtol=2e-6)
"""
    )


def test_64_bit_floats_work_or_are_refused_alike_wherever_they_come_from():
    lines = succeed(
        """
        makers = {
            "array": lambda: jnp.array(1.0),
            "linspace": lambda: jnp.linspace(0, 1, 10),
            "arange": lambda: jnp.arange(4.0),
            "full": lambda: jnp.full((2,), 0.5),
            "eye": lambda: jnp.eye(3),
            "normal": lambda: jax.random.normal(jax.random.key(0), (3,)),
            "host": lambda: jnp.asarray(np.ones(3)) + 1,
        }
        for name, make in makers.items():
            try:
                print(name, np.asarray(make()).dtype)
            except Exception as error:
                print(name, type(error).__name__, str(error).splitlines()[0])
        print("integers", (jnp.arange(3) + 2**40).dtype, int(jnp.sum(jnp.arange(3) + 2**40)))
        """,
        JAX_ENABLE_X64="1",
    )
    assert lines[-1] == f"integers int64 {3 * 2**40 + 3}"
    for line in lines[:-1]:
        assert line.endswith(" float64") or re.search("UNIMPLEMENTED: stablehlo.* the NPU has no .* f64", line), line
    assert {"array", "linspace", "arange", "full"} <= {line.split()[0] for line in lines if line.endswith(" float64")}


def test_128_bit_complex_numbers_are_moved_by_their_bits():
    lines = succeed(
        """
        z = jnp.array([1 + 2j, 3 - 4j])
        parts = jax.jit(lambda z: (z.real, z.imag, z[::-1], z.astype(jnp.complex64)))(z)
        print(z.dtype, [part.tolist() for part in parts])
        """,
        JAX_ENABLE_X64="1",
    )
    assert lines == ["complex128 [[1.0, 3.0], [2.0, -4.0], [(3-4j), (1+2j)], [(1+2j), (3-4j)]]"]


def test_the_version_of_stablehlo_is_told_and_its_newest_types_arrive():
    lines = succeed(
        """
        from jaxlib.mlir.dialects import stablehlo
        print(".".join(map(str, jax.devices()[0].client.stablehlo_current_version)), stablehlo.get_current_version())
        x = jnp.arange(8, dtype=jnp.float32).astype(jnp.float8_e4m3fn)
        print(jax.jit(lambda x: x.astype(jnp.float32) + 1)(x).tolist())
        """
    )
    told, newest = lines[0].split()
    assert told == newest  # else JAX would hand programs over as those of twelve weeks ago
    assert lines[1] == str([float(i + 1) for i in range(8)])


def test_a_sharded_program_may_hold_constants():
    succeed(
        SAME
        + """
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
table = np.arange(16, dtype=np.float32).reshape(8, 2)
x = np.ones((8, 2), np.float32)
out = jax.jit(lambda x: x * table + jnp.arange(8.0)[:, None] + 1.5, out_shardings=NamedSharding(mesh, P("x")))(
    jax.device_put(x, NamedSharding(mesh, P("x"))))
np.testing.assert_array_equal(out, table + np.arange(8)[:, None] + 1.5)
assert len(out.sharding.device_set) == 2
""",
        CANN_EMULATOR_DEVICES="2",
    )


def test_a_failed_program_harms_no_later_one():
    lines = succeed(
        """
        f = jax.jit(lambda x: x * 2 + 1)
        want = f(jnp.arange(4)).tolist()
        def boom(x):
            raise ValueError("in the callback")
        failures = 0
        for broken in (
            lambda: jax.jit(lambda x: jax.pure_callback(boom, x, x))(jnp.ones(3)).block_until_ready(),
            lambda: jnp.zeros((1 << 20, 1 << 20), jnp.float32).block_until_ready(),
            lambda: jax.jit(lambda x: jnp.sin(x))(jax.device_put(np.ones(3))),  # float64
        ):
            try:
                broken()
            except Exception as error:
                failures += 1
            assert f(jnp.arange(4)).tolist() == want
            assert jax.jit(lambda x: x - 3)(jnp.arange(4)).tolist() == [-3, -2, -1, 0]
        print(failures)
        """,
        JAX_ENABLE_X64="1",
    )
    assert lines == ["3"]


def test_the_message_of_a_failing_compile_names_operation_type_and_place():
    result = run(
        """
        def model(x):
            y = x * 2
            return jnp.tan(y) + jnp.sin(y)
        jax.jit(model)(np.ones(3))
        """,
        JAX_ENABLE_X64="1",
    )
    assert result.returncode != 0
    assert re.search(
        r"UNIMPLEMENTED: stablehlo\.sine: the NPU has no Sin for type f64, but for bf16, f16, f32 \(.* assumed .*\)\. "
        r"Convert with astype, .*\nat jit\(model\)/sin, <string>:6",
        result.stderr,
    )
