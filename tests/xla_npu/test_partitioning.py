"""Programs over eight devices against the same programs on one."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

SPECS = [P(), P("a"), P("b"), P(None, "a"), P("a", "b"), P("b", "a"), P(("a", "b")), P(("b", "a")), P(None, ("a", "b"))]


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    devices = jax.devices("npu")
    if len(devices) < 8:
        pytest.fail("eight devices are needed: CANN_EMULATOR_DEVICES=8")
    return Mesh(np.array(devices[:8]).reshape(4, 2), ("a", "b"))


def data(*shape: int) -> np.ndarray:
    """Numbers that differ everywhere."""
    return (np.arange(np.prod(shape), dtype=np.float32).reshape(shape) % 37) / 7 - 2


def test_any_sharding_turns_into_any_other(mesh):
    x = data(16, 8)
    for before, after in itertools.product(SPECS, SPECS):
        source = jax.device_put(x, NamedSharding(mesh, before))
        moved = jax.jit(lambda t: t * 1, out_shardings=NamedSharding(mesh, after))(source)
        assert moved.sharding.is_equivalent_to(NamedSharding(mesh, after), 2)
        for shard in moved.addressable_shards:
            np.testing.assert_array_equal(shard.data, x[shard.index], err_msg=f"{before} to {after}")


PROGRAMS = {
    "product": lambda x: x @ x.T,
    "maximum": lambda x: x.max(0),
    "minimum of one side": lambda x: jnp.minimum(x.min(1), 3),
    "argmax": lambda x: jnp.argmax(x, 0),
    "softmax": lambda x: jax.nn.softmax(x, -1),
    "neighbours": lambda x: x[1:] - x[:-1],
    "cumulative": lambda x: jnp.cumsum(x, 0),
    "sorted": lambda x: jnp.sort(-x, 0),
    "gathered": lambda x: x[jnp.array([3, 1, 15])],
    "scattered": lambda x: x.at[jnp.array([3, 1, 15])].add(1),
    "padded": lambda x: jnp.pad(x, ((1, 2), (0, 3))),
    "reversed": lambda x: x[::-1, ::2],
    "any": lambda x: (x > 3).any(0),
    "product of elements": lambda x: (x / 3).prod(0),
    "loop": lambda x: jax.lax.scan(lambda c, y: (jnp.tanh(c + y), c.sum()), x[0], x),
    "loop over columns": lambda x: jax.lax.scan(lambda c, y: (c * 0.5 + y, (c @ x).max()), x[:, 0], x.T),
    "loop in a loop": lambda x: jax.lax.fori_loop(
        0, 3, lambda i, t: jax.lax.fori_loop(0, 2, lambda j, u: jnp.sin(u) + u[i + j], t), x
    ),
    "loop until a sum": lambda x: jax.lax.while_loop(lambda t: jnp.abs(t).sum() > 10, lambda t: t[::-1] * 0.7, x),
    "branch in a loop": lambda x: jax.lax.scan(
        lambda c, y: (jax.lax.cond(y.sum() > 0, lambda t: t + y, lambda t: t.cumsum(0), c), c[:, 0]), x, x
    ),
    "gradient of a loop": jax.grad(
        lambda x: jax.lax.scan(lambda c, y: (jnp.tanh(c @ x.T @ x) + y, None), x[0], x)[0].sum()
    ),
    "branch": lambda x: jax.lax.cond(x[0, 0] > 0, lambda t: t * 2, lambda t: t - 1, x),
    "random": lambda x: x + jax.random.normal(jax.random.PRNGKey(0), x.shape),
    "gradient": jax.grad(lambda x: jnp.sum(jnp.tanh(x @ x.T) ** 2)),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("spec", [P("a", "b"), P("b"), P(None, "a")], ids=str)
def test_a_sharded_program_computes_what_one_device_does(name, spec, mesh):
    x = data(16, 8)
    with jax.default_device(jax.devices("cpu")[0]):
        want = jax.jit(PROGRAMS[name])(x)
    got = jax.jit(PROGRAMS[name], in_shardings=NamedSharding(mesh, spec))(x)
    for mine, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_sums_that_are_not_made_yet(mesh):
    """Shards are terms: where a value becomes one, a device holds it and the others zeros."""
    mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    open_sum = NamedSharding(mesh, P(None, None, unreduced={"b"}))
    x, y = np.arange(16).reshape(8, 2), np.arange(8).reshape(2, 4)

    def terms(value: jax.Array) -> list[np.ndarray]:
        """The terms along "b" on the devices at a = 0."""
        shards = {shard.device.id: np.asarray(shard.data) for shard in value.addressable_shards}
        return [shards[device.id] for device in mesh.devices[0]]

    def settled(value: jax.Array) -> np.ndarray:
        return np.asarray(jax.jit(lambda t: t, out_shardings=NamedSharding(mesh, P()))(value))

    with jax.set_mesh(mesh):
        product = jax.jit(lambda x, y: jnp.einsum("ij,jk->ik", x, y, out_sharding=P(None, None, unreduced={"b"})))(
            jax.device_put(x, P(None, "b")), jax.device_put(y, P("b", None))
        )
        gradient = jax.jit(jax.grad(lambda t: (t + t).sum()))(jax.device_put(x * 1.0, P(reduced={"b"})))
    for got, want in zip(terms(product), (x[:, :1] @ y[:1], x[:, 1:] @ y[1:]), strict=True):
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(settled(product), x @ y)
    np.testing.assert_array_equal(settled(gradient), np.full(x.shape, 2.0))
    for spec, want in (
        (P(), [x, 0 * x]),
        (P("b"), [np.where(np.arange(8)[:, None] < 4, x, 0), np.where(np.arange(8)[:, None] < 4, 0, x)]),
    ):
        moved = jax.device_put(jax.device_put(x, NamedSharding(mesh, spec)), open_sum)
        for got, part in zip(terms(moved), want, strict=True):
            np.testing.assert_array_equal(got, part, err_msg=str(spec))
        np.testing.assert_array_equal(settled(moved), x)


def test_scatters_add_to_terms_where_the_updates_are(mesh):
    mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    values, places = np.arange(16, dtype=np.float32).reshape(8, 2), np.array([0, 2, 1, 1, 2, 0, 2, 2])
    with jax.set_mesh(mesh):
        sums = jax.jit(lambda v, p: jax.ops.segment_sum(v, p, 3, out_sharding=P(unreduced={"b"})))(
            jax.device_put(values, P("b")), jax.device_put(places, P("b"))
        )
    terms = {shard.device.id: np.asarray(shard.data) for shard in sums.addressable_shards}
    for half, device in enumerate(mesh.devices[0]):
        want = np.zeros((3, 2), np.float32)
        np.add.at(want, places[4 * half : 4 * half + 4], values[4 * half : 4 * half + 4])
        np.testing.assert_array_equal(terms[device.id], want)


def test_a_loop_works_on_shards(mesh):
    """Layers split over "b", examples over "a": no device has all of either, and one sum a layer is exchanged."""
    x, up, down = data(8, 6) / 9, data(3, 6, 10) / 9, data(3, 10, 6)[:, ::-1] / 9

    def layers(x, up, down):
        return jax.lax.scan(lambda c, w: (c + jax.nn.relu(c @ w[0]) @ w[1], None), x, (up, down))[0]

    specs = P("a"), P(None, None, "b"), P(None, "b")
    run = jax.jit(layers, in_shardings=[NamedSharding(mesh, spec) for spec in specs])
    with jax.default_device(jax.devices("cpu")[0]):
        want = jax.jit(layers)(x, up, down)
    np.testing.assert_allclose(run(x, up, down), want, rtol=1e-5, atol=1e-5)
    text = run.lower(x, up, down).compile().as_text()
    assert text.count("all-reduce(") == 1
    assert not any(f"{name}(" in text for name in ("all-gather", "all-to-all", "collective-permute"))


def test_sums_that_do_not_wait_for_each_other_are_made_at_once(mesh):
    x, y = data(8, 4), data(8, 2) + 1

    def program(x, y):
        a, b, c = x.sum(0), y.sum(0), (x * x).sum()
        return a * 2, b + 1, c, (x * c).sum(0)  # the last one waits for `c`

    run = jax.jit(program, in_shardings=NamedSharding(mesh, P("a")))
    for got, want in zip(run(x, y), program(x, y), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert run.lower(x, y).compile().as_text().count("all-reduce(") == 2


PARTS = {
    "slice": lambda x: x[:2],
    "odd slice": lambda x: x[:6],
    "reshape": lambda x: x.reshape(4, -1),
    "sum of groups": lambda x: x.reshape(4, 2, -1).sum(0),
    "sorted slice": lambda x: jnp.sort(x, 0)[:4],
}


@pytest.mark.parametrize("name", PARTS)
def test_dimensions_that_only_part_of_an_axis_divides_come_out_whole(name):
    """JAX can name whole axes only: by `pmap`'s one axis of eight, two rows cannot be spread."""
    x = data(8, 6)
    got = jax.jit(PARTS[name])(jax.pmap(lambda row: row)(x))
    np.testing.assert_allclose(got, PARTS[name](x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("spec", [P(), P("a")], ids=str)
def test_results_in_host_memory_and_back(spec, mesh):
    x = data(8, 4)
    host, device = (NamedSharding(mesh, spec, memory_kind=kind) for kind in ("pinned_host", "device"))
    put = jax.jit(lambda t: (t * 2, jax.device_put(t + 1, jax.memory.Space.Host)), out_shardings=(host, None))
    doubled, more = put(jax.device_put(x, device))
    assert {doubled.sharding.memory_kind, more.sharding.memory_kind} == {"pinned_host"}
    back = jax.jit(lambda t: jax.device_put(t, jax.memory.Space.Device) - x, donate_argnums=0)(doubled)
    assert back.sharding.memory_kind == "device"
    np.testing.assert_array_equal(back, x)
    np.testing.assert_array_equal(more, x + 1)


def test_collectives_by_name(mesh):
    x = data(8, 8)

    def body(t):
        return (
            jax.lax.psum(t, "a"),
            jax.lax.pmax(t, ("a", "b")),
            jax.lax.all_gather(t, "b", axis=1, tiled=True),
            jax.lax.psum_scatter(t, "b", scatter_dimension=0, tiled=True),
            jax.lax.all_to_all(t, "b", 0, 1, tiled=True),
            jax.lax.ppermute(t, "a", [(i, (i + 1) % 4) for i in range(4)]),
            t + jax.lax.axis_index("a") * 10 + jax.lax.axis_index("b"),
            jax.lax.psum(t.astype(jnp.complex64) * 1j, "b"),
            jax.lax.all_to_all(t * 1j, "b", 0, 1, tiled=True),
        )

    sharded = jax.shard_map(body, mesh=mesh, in_specs=P("a", "b"), out_specs=P("a", "b"), check_vma=False)
    got = [np.asarray(part) for part in jax.jit(sharded)(x)]
    blocks = x.reshape(4, 2, 2, 4).transpose(0, 2, 1, 3)  # [a, b, rows, columns]
    whole = lambda parts: np.concatenate([np.concatenate(list(row), 1) for row in parts], 0)  # noqa: E731
    parts = [[blocks[i, j] for j in range(2)] for i in range(4)]
    exchanged = whole(
        [[np.concatenate([parts[i][k][j : j + 1] for k in range(2)], 1) for j in range(2)] for i in range(4)]
    )
    want = [
        whole([[sum(parts[k][j] for k in range(4)) for j in range(2)] for _ in range(4)]),
        whole([[blocks.max((0, 1)) for _ in range(2)] for _ in range(4)]),
        whole([[np.concatenate(parts[i], 1) for _ in range(2)] for i in range(4)]),
        whole([[(parts[i][0] + parts[i][1])[j : j + 1] for j in range(2)] for i in range(4)]),
        exchanged,
        whole([[parts[(i - 1) % 4][j] for j in range(2)] for i in range(4)]),
        whole([[parts[i][j] + i * 10 + j for j in range(2)] for i in range(4)]),
        whole([[(parts[i][0] + parts[i][1]) * 1j for _ in range(2)] for i in range(4)]),
        exchanged * 1j,
    ]
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def test_a_donated_argument_is_gone_though_no_output_can_take_its_memory(mesh):
    rows = NamedSharding(mesh, P("a"))
    x = jax.device_put(data(8, 4), rows)
    reverse = jax.jit(lambda t: t[::-1], out_shardings=rows, donate_argnums=0)  # a gather comes first
    np.testing.assert_array_equal(reverse(x), data(8, 4)[::-1])
    assert x.is_deleted()


def test_a_callback_of_a_sharded_program_is_made_once(mesh):
    calls = []

    def host(t):
        calls.append(t.shape)
        return np.asarray(t) * 2

    def program(t):
        return jax.pure_callback(host, jax.ShapeDtypeStruct(t.shape, t.dtype), t) + 1

    x = data(8, 4)
    np.testing.assert_array_equal(jax.jit(program, in_shardings=NamedSharding(mesh, P("a")))(x), x * 2 + 1)
    assert calls == [(8, 4)]


def test_each_device_makes_its_own_callback_in_a_manual_program(mesh):
    seen = []

    def host(t):
        seen.append(np.asarray(t).tolist())
        return np.asarray(t) * 2

    def body(t):
        return jax.pure_callback(host, jax.ShapeDtypeStruct(t.shape, t.dtype), t)

    x = np.arange(8, dtype=np.float32)
    manual = jax.shard_map(body, mesh=mesh, in_specs=P(("a", "b")), out_specs=P(("a", "b")))
    np.testing.assert_array_equal(jax.jit(manual)(x), x * 2)
    assert sorted(seen) == [[number] for number in x]


def test_axes_that_a_manual_program_leaves_free_are_partitioned(mesh):
    def body(t):  # manual along "a", sharded along "b"
        t = jax.lax.with_sharding_constraint(t, P(None, "b"))
        total, steps = jax.lax.scan(lambda c, row: (c + row, c * 2), jnp.zeros(t.shape[1]), t)
        return jnp.cumsum(t, 1)[:, 1:] + total[1:] + steps[:, :-1]

    x = data(8, 6)
    mixed = jax.shard_map(body, mesh=mesh, in_specs=P("a"), out_specs=P("a"), axis_names={"a"}, check_vma=False)
    parts = [np.asarray(part) for part in np.split(x, 4)]
    want = []
    for part in parts:
        steps = 2 * np.stack([0 * part[0], part[0]])
        want.append(np.cumsum(part, 1)[:, 1:] + part.sum(0)[1:] + steps[:, :-1])
    with jax.set_mesh(mesh):
        np.testing.assert_allclose(jax.jit(mixed)(x), np.concatenate(want), rtol=1e-5, atol=1e-5)


def test_jax_is_told_how_a_value_inside_a_program_is_spread(mesh):
    told = []

    def program(t):
        t = jax.lax.with_sharding_constraint(jnp.sin(t), NamedSharding(mesh, P("b", "a")))
        jax.debug.inspect_array_sharding(t, callback=told.append)
        return t.sum()

    jax.jit(program)(data(8, 4))
    (sharding,) = told
    assert sharding.is_equivalent_to(NamedSharding(mesh, P("b", "a")), 2)
