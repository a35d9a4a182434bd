"""DLPack for arrays on NPUs. jaxlib knows no such device, so what is handed over is a copy on the host."""

from typing import Any

from xla_npu import PLATFORM


def install() -> None:
    """Lets `np.from_dlpack`, torch and others read JAX arrays of `npu`."""
    import jax
    from jax._src.array import ArrayImpl
    from jax._src.dlpack import DLDeviceType

    original, original_device = ArrayImpl.__dlpack__, ArrayImpl.__dlpack_device__
    if getattr(original, "knows_npu", False):
        return

    def dlpack(self: Any, *, copy: bool | None = None, **options: Any) -> Any:
        if self.platform() != PLATFORM or len(self.devices()) != 1:
            return original(self, copy=copy, **options)
        if copy is False:
            raise BufferError(
                "an array on an NPU is handed over by DLPack as a copy on the host; copy=False forbids that"
            )
        options.pop("stream", None)  # the copy is done
        return jax.device_put(self, jax.local_devices(backend="cpu")[0]).__dlpack__(**options)

    def dlpack_device(self: Any) -> tuple[Any, int]:
        if self.platform() != PLATFORM or len(self.devices()) != 1:
            return original_device(self)
        return DLDeviceType.kDLCPU, 0

    dlpack.knows_npu = True  # type: ignore[attr-defined]
    ArrayImpl.__dlpack__ = dlpack  # type: ignore[method-assign]
    ArrayImpl.__dlpack_device__ = dlpack_device  # type: ignore[method-assign]
