"""Functions on the host that programs call by name: linear algebra, and what users register."""

from tests.xla_npu.jax_process import run, succeed

MATRICES = """
rng = np.random.RandomState(0)
square = rng.rand(2, 4, 4).astype(np.float32) + 4 * np.eye(4, dtype=np.float32)
symmetric = square + square.swapaxes(-1, -2)

def algebra(a, s):
    u, sizes, v = jnp.linalg.svd(a, full_matrices=False)
    vectors = jnp.linalg.eigh(s)[1]
    q, r = jnp.linalg.qr(a)
    return (
        (u * sizes[..., None, :]) @ v, jnp.abs(jnp.linalg.eigvals(a)).max(-1), jnp.linalg.eigvalsh(s), jnp.abs(vectors),
        q @ r, jnp.linalg.solve(a, a), jnp.linalg.det(a), jax.grad(lambda x: jnp.linalg.slogdet(x)[1].sum())(a),
        jax.scipy.linalg.lu(a[0])[2], jax.lax.linalg.tridiagonal(s)[1],
    )
"""


def test_an_exported_program_with_linear_algebra_runs_in_another_process(tmp_path):
    file = tmp_path / "program"
    succeed(
        f"{MATRICES}\n"
        "from jax import export\n"
        "batch = export.symbolic_shape('b, 4, 4')\n"
        "shape = jax.ShapeDtypeStruct(batch, np.float32)\n"
        f"open('{file}', 'wb').write(export.export(jax.jit(algebra))(shape, shape).serialize())"
    )
    lines = succeed(
        f"{MATRICES}\n"
        "from jax import export\n"
        f"got = export.deserialize(bytearray(open('{file}', 'rb').read())).call(square, symmetric)\n"
        "with jax.default_device(jax.devices('cpu')[0]): wanted = jax.jit(algebra)(square, symmetric)\n"
        "for one, other in zip(got, wanted): np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)\n"
        "print(len(got), {d.platform for d in got[0].devices()})"
    )
    assert lines == ["10 {'npu'}"]


def test_the_cache_and_compiled_executables_hold_linear_algebra(tmp_path):
    file, cache = tmp_path / "compiled", tmp_path / "cache"
    header = "import pickle\nfrom jax.experimental import serialize_executable\none = jax.devices()[:1]\n"
    make = "compiled = jax.jit(lambda a: jnp.linalg.svd(a, compute_uv=False)).lower(jnp.ones((4, 4))).compile()\n"
    write = f"pickle.dump(serialize_executable.serialize(compiled), open('{file}', 'wb'))\n"
    load = f"*pickle.load(open('{file}', 'rb')), execution_devices=one"
    read = f"compiled = serialize_executable.deserialize_and_load({load})\n"
    use = "print(np.round(compiled(np.diag(np.arange(1, 5, dtype=np.float32))), 4).tolist())"

    def kept() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()}

    first = succeed(header + make + write + use, XLA_NPU_CACHE=str(cache))
    assert first == ["[4.0, 3.0, 2.0, 1.0]"]
    assert succeed(header + read + use, XLA_NPU_CACHE="0") == first
    compiled = kept()
    assert succeed(header + make + use, XLA_NPU_CACHE=str(cache)) == first
    assert compiled and kept() == compiled  # found, not compiled again


# Functions of XLA's foreign function interface that nobody has to compile: jaxlib's own, under names of a user's.
REGISTER = """
from jax.experimental.layout import Layout
from jax._src.lib import lapack
kernels = {name: function for name, function, _ in lapack.registrations()["cpu"]}
def register(name, kernel): jax.ffi.register_ffi_target(name, kernels[kernel], platform="npu")
def factor(a, **attributes):
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype), jax.ShapeDtypeStruct(a.shape[-1:], a.dtype)]
    layout = Layout((1, 0))
    return jax.ffi.ffi_call("users_qr", shapes, input_layouts=[layout], output_layouts=[layout, None])(a, **attributes)
a = np.random.RandomState(0).rand(4, 4).astype(np.float32)
"""


def test_a_user_s_function_is_called_by_name_with_its_layouts_and_its_errors_arrive():
    lines = succeed(
        f"{REGISTER}\n"
        "register('users_qr', 'lapack_sgeqrf_ffi')\n"
        "got = jax.jit(lambda a: factor(a + 1)[0] * 2)(a)\n"
        "np.testing.assert_allclose(np.triu(got), 2 * np.linalg.qr(a + 1)[1], rtol=1e-4, atol=1e-5)\n"
        "register('later', 'lapack_ssyevd_ffi')\n"
        "shapes = [jax.ShapeDtypeStruct(shape, kind) for shape, kind in (((4, 4), 'f'), ((4,), 'f'), ((), 'i'))]\n"
        "values = jax.ffi.ffi_call('later', shapes)(a + a.T, mode=np.uint8(ord('N')), uplo=np.uint8(ord('L')))[1]\n"
        "np.testing.assert_allclose(values, np.linalg.eigvalsh(a + a.T), rtol=1e-4, atol=1e-5)\n"
        "try: jax.block_until_ready(jax.ffi.ffi_call('later', shapes)(a))\n"
        "except jax.errors.JaxRuntimeError as error: print('later' in str(error), 'attributes' in str(error))\n"
        "print(float(jnp.sum(jnp.ones(3))))"
    )
    assert lines == ["True True", "3.0"]


def test_an_unknown_custom_call_is_refused_with_its_name_its_place_and_advice(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import jax, numpy as np\n"
        "def unknown(x):\n"
        "    return jax.ffi.ffi_call('nobody_s', jax.ShapeDtypeStruct(x.shape, x.dtype))(x)\n"
        "jax.jit(unknown)(np.ones(3, np.float32))\n"
    )
    result = run(f"exec(compile(open('{script}').read(), '{script}', 'exec'))")
    assert result.returncode == 1
    assert "custom call `nobody_s` has no implementation on the NPU" in result.stderr
    assert 'jax.ffi.register_ffi_target("nobody_s", FUNCTION, platform="npu")' in result.stderr
    assert f"{script}:3" in result.stderr


def test_an_executable_is_refused_where_its_host_function_is_not_registered(tmp_path):
    file = tmp_path / "compiled"
    succeed(
        f"{REGISTER}\n"
        "register('users_qr', 'lapack_sgeqrf_ffi')\n"
        "from jax.experimental import serialize_executable\n"
        "import pickle\n"
        "compiled = jax.jit(factor).lower(a).compile()\n"
        f"pickle.dump(serialize_executable.serialize(compiled), open('{file}', 'wb'))"
    )
    load = (
        "from jax.experimental import serialize_executable\n"
        "import pickle\n"
        f"stored = pickle.load(open('{file}', 'rb'))\n"
        "compiled = serialize_executable.deserialize_and_load(*stored, execution_devices=jax.devices()[:1])\n"
    )
    refused = run(load)
    assert refused.returncode == 1
    assert "calls the host function `users_qr`, which this process has not registered" in refused.stderr
    lines = succeed(f"{REGISTER}\nregister('users_qr', 'lapack_sgeqrf_ffi')\n{load}print(compiled(a)[1].shape)")
    assert lines == ["(4,)"]


def test_linear_algebra_takes_empty_matrices_half_precision_and_shards():
    lines = succeed(
        """
        linalg = jax.lax.linalg
        print(linalg.lu(jnp.zeros((3, 0)))[0].shape, linalg.eigh(jnp.zeros((2, 0, 0)))[1].shape,
              jnp.linalg.qr(jnp.zeros((3, 0)), "complete")[0].sum(),
              linalg.tridiagonal_solve(*[jnp.ones(3)] * 3, jnp.zeros((3, 0))).shape)
        a = np.random.RandomState(0).rand(4, 4).astype(np.float32)
        half = jax.jit(lambda a: jnp.linalg.svd(a, compute_uv=False))(jnp.asarray(a, jnp.bfloat16))
        print(half.dtype, np.allclose(np.asarray(half, np.float32), np.linalg.svd(a)[1], rtol=2e-2, atol=2e-2))
        mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        batch = np.random.RandomState(1).rand(8, 3, 3).astype(np.float32)
        over = jax.NamedSharding(mesh, jax.P("x"))
        values = jax.jit(lambda a: jnp.linalg.svd(a, compute_uv=False), out_shardings=over)(jax.device_put(batch, over))
        np.testing.assert_allclose(values, np.linalg.svd(batch)[1], rtol=1e-5, atol=1e-6)
        each = jax.shard_map(lambda a: jnp.linalg.det(a), mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x"))
        np.testing.assert_allclose(each(jax.device_put(batch, over)), np.linalg.det(batch), rtol=1e-4, atol=1e-6)
        print(values.sharding.spec)
        """
    )
    assert lines == ["(3, 0) (2, 0) 3.0 (3, 0)", "bfloat16 True", "P('x',)"] or lines[2].startswith("P")
