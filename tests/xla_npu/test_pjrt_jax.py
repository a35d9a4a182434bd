"""JAX programs on the platform `npu`: what the plugin and its registration do, as a user sees it."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.xla_npu.jax_process import run, succeed


def test_the_platform_is_the_default_and_has_the_devices():
    lines = succeed(
        """
        print(jax.default_backend(), len(jax.devices()), jax.devices()[0].platform, jax.devices()[3])
        print(jax.devices()[0].device_kind, jax.devices()[0].coords)
        print([str(memory.kind) for memory in jax.devices()[0].addressable_memories()])
        print(sorted(jax.devices()[0].memory_stats())[:2])
        """,
        CANN_EMULATOR_DEVICES="4",
        CANN_EMULATOR_SOC="Ascend910B1",
    )
    assert lines[0] == "npu 4 npu npu:3"
    assert lines[1] == "Ascend910B1 [0]"
    assert lines[2] == "['device', 'pinned_host', 'unpinned_host']"
    assert lines[3] == "['bytes_in_use', 'bytes_limit']"


def test_without_cann_the_error_says_how_to_get_it():
    result = run("jax.devices()", cann=False)
    assert result.returncode != 0
    assert "CANN was not found" in result.stderr
    assert "set_env.sh" in result.stderr
    assert "cann-emulator run -- python" in result.stderr


def test_without_cann_and_without_asking_for_it_jax_runs_on_the_cpu():
    result = run("print(jax.default_backend(), jnp.arange(3).sum())", cann=False, JAX_PLATFORMS="")
    assert result.stdout.strip() == "cpu 3", result.stderr


@pytest.mark.parametrize("name", ["jax", "jaxlib"])
def test_another_release_of_jax_is_refused_with_the_one_to_install(monkeypatch, name):
    from xla_npu import platform

    monkeypatch.setitem(platform.VERSIONS, name, "9.9.9")
    with pytest.raises(ImportError, match=rf"does not work with {name} 0\.10\.2: pip install .*{name}==9\.9\.9"):
        platform.check_versions()


def test_jax_s_own_error_says_why_the_platform_is_not_there():
    program = (
        "import xla_npu, xla_npu.platform as platform; platform.VERSIONS['jaxlib'] = '9.9.9'\n"
        "try: xla_npu.initialize()\n"
        "except ImportError: import jax; jax.devices()\n"
    )
    environment = os.environ | {"JAX_PLATFORMS": "npu", "PYTHONPATH": os.getcwd()}
    result = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert re.search(r"Unable to initialize backend 'npu': .* does not work with jaxlib .*pip install", result.stderr)


def test_a_forked_child_is_told_that_it_cannot_use_npus():
    lines = succeed(
        """
        import os, signal
        x = (jnp.arange(3) + 1).block_until_ready()
        for use in (lambda: x + 1, lambda: jax.device_put(np.ones(3))):
            child = os.fork()
            if not child:
                signal.alarm(20)
                try:
                    use()
                except Exception as error:
                    print(error, flush=True)
                x.delete()  # the parent's stays
                os._exit(0)
            os.waitpid(child, 0)
        print(x.tolist(), (x * 2).tolist())
        """
    )
    *told, last = lines
    assert len(told) == 2 and all("forked" in line and "'spawn'" in line for line in told), lines
    assert last == "[1, 2, 3] [2, 4, 6]"


def test_a_share_of_memory_that_is_no_share_is_refused():
    for fraction in ("nan", "0.5x"):
        result = run("jax.devices()", XLA_NPU_MEMORY_FRACTION=fraction)
        assert f"XLA_NPU_MEMORY_FRACTION is '{fraction}'" in result.stderr


def test_a_compiler_that_ended_between_two_programs_is_replaced():
    lines = succeed(
        """
        import os, pathlib, signal, time
        print((jnp.arange(3) + 1).tolist())
        me = f"PPid:\\t{os.getpid()}\\n"
        compilers = [
            int(path.name)
            for path in pathlib.Path("/proc").glob("[0-9]*")
            if path.joinpath("status").exists()
            and me in path.joinpath("status").read_text()
            and b"xla_npu.compiler" in path.joinpath("cmdline").read_bytes()
        ]
        for compiler in compilers:
            os.kill(compiler, signal.SIGKILL)
            os.waitid(os.P_PID, compiler, os.WEXITED | os.WNOWAIT)
        print(len(compilers), jax.jit(lambda x: x * 7 - 2)(jnp.arange(3)).tolist())
        """,
        XLA_NPU_CACHE="0",
    )
    assert lines == ["[1, 2, 3]", "1 [-2, 5, 12]"]


def test_a_donated_argument_is_deleted_and_its_memory_reused():
    lines = succeed(
        """
        import warnings; warnings.simplefilter("error")
        x = jnp.arange(1024, dtype=jnp.float32)
        address = x.unsafe_buffer_pointer()
        y = jax.jit(lambda x: x + 1, donate_argnums=0)(x)
        print(x.is_deleted(), y.unsafe_buffer_pointer() == address, float(y[3]))
        """
    )
    assert lines == ["True True 4.0"]


def test_callbacks_run_in_order_and_their_errors_reach_the_program():
    lines = succeed(
        """
        from jax.experimental import io_callback
        seen = []
        @jax.jit
        def f(x):
            jax.debug.print("sum {s}", s=x.sum(), ordered=True)
            for i in range(3):
                io_callback(lambda i: seen.append(int(i)), None, i + x[0].astype(int), ordered=True)
            return jax.pure_callback(lambda a: np.sort(a), x, x) * 2
        print(f(jnp.array([3.0, 1.0, 2.0])))
        jax.effects_barrier()
        print(seen)
        def fail(a):
            raise ValueError("no such number")
        try:
            jax.block_until_ready(jax.jit(lambda x: jax.pure_callback(fail, x, x))(jnp.ones(2)))
        except jax.errors.JaxRuntimeError as error:
            print("ValueError: no such number" in str(error))
        print(jnp.ones(2) + 1)
        """
    )
    assert lines == ["sum 6.0", "[2. 4. 6.]", "[3, 4, 5]", "True", "[2. 2.]"]


def test_threads_use_devices_at_once_and_leave_nothing_behind():
    lines = succeed(
        """
        import threading
        from jax.sharding import Mesh, NamedSharding, PartitionSpec
        devices = jax.devices()
        double = jax.jit(lambda x: x * 2)
        add = jax.jit(lambda x: x + 1, donate_argnums=0)
        spread = NamedSharding(Mesh(np.array(devices[:4]), "x"), PartitionSpec("x"))
        total = jax.jit(lambda x: x.sum(), in_shardings=spread)
        print(int(total(np.arange(8.0, dtype=np.float32))))
        wrong = []

        def work(seed):
            random = np.random.default_rng(seed)
            for i in range(20):
                x = np.full(random.choice([1, 4096, 100000]), i, np.float32)
                y = add(double(jax.device_put(x, random.choice(devices))))
                y = jax.device_put(y, random.choice(devices))
                if not (np.asarray(y) == 2 * i + 1).all() or int(total(np.full(8, i, np.float32))) != 8 * i:
                    wrong.append((seed, i))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print(wrong)
        """
    )
    assert lines == ["28", "[]"]


def test_linear_algebra_on_the_host_is_the_cpu_s_and_differentiable():
    lines = succeed(
        """
        a = np.random.default_rng(0).normal(size=(2, 4, 4)).astype(np.float32)
        a = a @ a.transpose(0, 2, 1) + np.eye(4, dtype=np.float32)
        functions = [
            lambda a: jnp.linalg.eigh(a)[0],
            lambda a: jnp.linalg.svd(a, compute_uv=False),
            lambda a: jnp.linalg.qr(a)[1],
            lambda a: jax.lax.linalg.lu(a)[0],
        ]
        cpu = jax.devices("cpu")[0]
        for f in functions:
            for g in (f, jax.grad(lambda a: jnp.sum(f(a) ** 2))):
                there = jax.jit(g)(a)
                here = jax.jit(g)(jax.device_put(a, cpu))
                assert there.devices() == {jax.devices()[0]}
                np.testing.assert_allclose(there, here, rtol=1e-3, atol=1e-3 * np.abs(np.asarray(here)).max())
        print("same")
        """
    )
    assert lines == ["same"]


def test_out_of_memory_is_an_error_and_the_process_goes_on():
    lines = succeed(
        """
        try:
            jax.block_until_ready(jax.device_put(np.ones(1 << 28, np.float32)))
        except jax.errors.JaxRuntimeError as error:
            print(str(error).split(":")[0], "Out of memory on npu:0" in str(error))
        try:
            jax.jit(lambda x: jnp.broadcast_to(x, (1 << 28, 4)) + 1)(1.0)
        except jax.errors.JaxRuntimeError as error:
            print(str(error).split(":")[0])
        print(jnp.arange(3).sum())
        """,
        CANN_EMULATOR_HBM_GB="0.5",
    )
    assert lines == ["RESOURCE_EXHAUSTED True", "RESOURCE_EXHAUSTED", "3"]


def test_programs_are_serialised_and_run_in_another_process(tmp_path):
    file = tmp_path / "program"
    succeed(
        f"""
        import pickle
        from jax.experimental.serialize_executable import serialize
        compiled = jax.jit(lambda x: x * 2 + 1).lower(jnp.zeros(3)).compile()
        pickle.dump(serialize(compiled), open({str(file)!r}, "wb"))
        """
    )
    lines = succeed(
        f"""
        import pickle
        from jax.experimental.serialize_executable import deserialize_and_load
        loaded = deserialize_and_load(*pickle.load(open({str(file)!r}, "rb")), execution_devices=jax.devices()[:1])
        print(loaded(jnp.arange(3.0)))
        """
    )
    assert lines == ["[1. 3. 5.]"]


def test_arrays_are_handed_over_by_dlpack():
    lines = succeed(
        """
        x = jnp.arange(6, dtype=jnp.float32).reshape(2, 3)
        print(np.from_dlpack(x).sum(), jnp.from_dlpack(x).sum(), jnp.from_dlpack(np.array(x)).sum())
        print(jnp.from_dlpack(x.astype(jnp.bfloat16)).dtype)
        try:
            np.from_dlpack(x, copy=False)
        except BufferError as error:
            print(error)
        """
    )
    assert lines[:2] == ["15.0 15.0 15.0", "bfloat16"]
    assert "copy=False forbids that" in lines[2]


def test_a_compiled_program_s_cost_and_memory_are_those_that_xla_reports():
    lines = succeed(
        """
        def analysis(function, device):
            x, w = (jax.device_put(jnp.ones(shape), device) for shape in ((64, 128), (128, 32)))
            compiled = jax.jit(function).lower(x, w).compile()
            cost, memory = compiled.cost_analysis(), compiled.memory_analysis()
            sizes = memory.argument_size_in_bytes, memory.output_size_in_bytes, memory.alias_size_in_bytes
            return *(cost.get(name, 0) for name in ("flops", "transcendentals", "bytes accessed")), *sizes

        for function in (lambda x, w: x @ w, lambda x, w: jnp.exp(x), lambda x, w: x + 1):
            ours, xlas = (analysis(function, jax.devices(name)[0]) for name in ("npu", "cpu"))
            np.testing.assert_allclose(ours, xlas, rtol=1e-3, err_msg=f"{ours} {xlas}")
        print("same")
        """,
        JAX_PLATFORMS="npu,cpu",
    )
    assert lines == ["same"]


def test_a_trace_shows_what_the_devices_ran(tmp_path):
    succeed(
        f"""
        f = jax.jit(lambda x: x + 1)
        jax.block_until_ready(f(jnp.ones(3)))
        with jax.profiler.trace({str(tmp_path)!r}):
            jax.block_until_ready(f(jnp.ones(3)))
        """
    )
    (file,) = tmp_path.rglob("*.xplane.pb")
    assert b"/device:NPU:0" in file.read_bytes()


def test_the_persistent_cache_of_jax_holds_programs(tmp_path):
    program = """
        from jax import monitoring
        hits = []
        monitoring.register_event_listener(lambda name, **_: hits.append(name) if "cache_hits" in name else None)
        print(jax.jit(lambda x: x * 3)(np.float32(2)), bool(hits))
    """
    folder = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    assert [succeed(program, **folder) for _ in range(2)] == [["6.0 False"], ["6.0 True"]]


def test_programs_that_end_at_once_end_well_on_a_busy_machine():
    """Threads that release programs meet the interpreter's end; six at a time make it likely."""
    program = "print(jax.jit(lambda x: x * 3)(np.float32(2)))"
    with ThreadPoolExecutor(6) as pool:
        ended = list(pool.map(run, [program] * 6))
    assert [(done.returncode, done.stdout) for done in ended] == [(0, "6.0\n")] * 6, ended


def test_programs_that_still_call_the_host_in_the_background_end_well():
    """Python ends threads that ask for it after its end, and C++ on their stacks would end the process."""
    program = """
    function = jax.jit(lambda x: jnp.sort(jnp.linalg.svd(jnp.sort(x))[1]))
    results = [function(np.eye(8, dtype=np.float32)) for _ in range(20)]
    print("launched")
    """
    with ThreadPoolExecutor(3) as pool:
        ended = list(pool.map(run, [program] * 3))
    assert [(done.returncode, done.stdout) for done in ended] == [(0, "launched\n")] * 3, [
        done.stderr for done in ended
    ]
