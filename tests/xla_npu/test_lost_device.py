"""A device that stops answering in the middle of a step: the error says so, and the program goes on with the others."""

from tests.xla_npu.jax_process import succeed


def test_a_lost_device_is_named_and_the_others_go_on():
    lines = succeed(
        """
        first, second = jax.devices()[:2]
        step = jax.jit(lambda p, g: p - 0.5 * g)
        p = jax.device_put(np.ones(2, np.float32), second)
        try:
            for number in range(10):
                p = step(p, p)
                p.block_until_ready()
        except (ValueError, jax.errors.JaxRuntimeError) as error:
            print(number, str(error).splitlines()[0])
            advice = str(error)
        print(np.asarray(p))
        q = jax.device_put(np.ones(2, np.float32), first)
        print(step(q, q))
        mesh = jax.make_mesh((2,), ("a",))
        x = jax.device_put(np.arange(8.0), jax.NamedSharding(mesh, jax.P("a")))
        try:
            print(jax.jit(lambda x: x.sum())(x))
        except (ValueError, jax.errors.JaxRuntimeError) as error:
            print(str(error).splitlines()[0])
        print("from a checkpoint in a new process" in advice)
        """,
        CANN_EMULATOR_LOSE_DEVICE="1:4",
        HCCL_EXEC_TIMEOUT="2",
    )
    lost = "UNAVAILABLE: aclmdlExecuteAsync failed with CANN's error 507010: device 1 lost its heartbeat"
    assert lines[0].startswith(f"3 {lost}")
    assert lines[1:3] == ["[0.125 0.125]", "[0.5 0.5]"]
    assert lines[3].startswith(lost)  # the other devices wait for it until HCCL's time-out
    assert lines[4] == "True"
