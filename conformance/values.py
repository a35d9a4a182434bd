"""Moving a sample to a device, and comparing what came back."""

from collections.abc import Callable, Container
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

# (relative, absolute), those of torch.testing.assert_close: of float32 ten units in the last place, of bfloat16 and
# float16 two; near zero, what is left of terms of the size of 10 when they cancel in float32.
_TOLERANCE = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1.3e-6, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float16: (2e-3, 1e-5),
    torch.complex128: (1e-7, 1e-7),
    torch.complex64: (1.3e-6, 1e-5),
}

# The dtype in which the CPU computes what both results are measured by when they differ.
WIDER = {torch.bfloat16: torch.float32, torch.float32: torch.float64}

# torch_npu computes and stores in the narrower one where the wider one is asked for: devices have no float64.
_NARROWED = {torch.float64: torch.float32, torch.complex128: torch.complex64}


def tensors_of(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def copy_to(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """A leaf with the same values, strides and offset: the whole storage is copied."""
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        return tensor.detach().clone().to(device).requires_grad_(tensor.requires_grad)
    elements = tensor.untyped_storage().nbytes() // tensor.element_size()
    storage = tensor.detach().resolve_conj().resolve_neg().as_strided((elements,), (1,), 0).clone().to(device)
    copy = storage.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    if tensor.is_conj():
        copy = copy.conj()
    if tensor.is_neg():
        copy = torch._neg_view(copy)
    return copy.requires_grad_(tensor.requires_grad)


def map_sample(sample: Any, convert: Callable[[Any], Any]) -> tuple[Any, tuple, dict]:
    """(input, args, kwargs) with `convert` applied to every leaf; what is the same tensor twice stays so."""
    seen: dict[int, Any] = {}

    def once(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return convert(leaf)
        if id(leaf) not in seen:
            seen[id(leaf)] = convert(leaf)
        return seen[id(leaf)]

    return tree_map(once, (sample.input, tuple(sample.args), dict(sample.kwargs)))


def to_device(device: str) -> Callable[[Any], Any]:
    """Moves tensors, and lets an argument that names the CPU name `device`."""

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return copy_to(leaf, device)
        if leaf == "cpu" if isinstance(leaf, str) else leaf == torch.device("cpu"):
            return device if isinstance(leaf, str) else torch.device(device)
        return leaf

    return convert


def widen(dtype: torch.dtype) -> Callable[[Any], Any]:
    """On the CPU, tensors and dtype arguments of `dtype` become those of the wider one; integers stay what they are."""
    wider = WIDER.get(dtype, dtype)

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            copy = copy_to(leaf.detach(), "cpu")
            return (copy.to(wider) if leaf.dtype is dtype else copy).requires_grad_(leaf.requires_grad)
        return wider if leaf is dtype else leaf

    return convert


def _close(actual: torch.Tensor, expected: torch.Tensor, loosest: torch.dtype, absolute: float) -> torch.Tensor:
    """Elementwise, with the tolerance of whichever of the two dtypes is coarser, `absolute` at least."""
    if not (expected.dtype.is_floating_point or expected.dtype.is_complex):
        return actual == expected
    rtol, atol = max(_TOLERANCE.get(dtype, (0.0, 0.0)) for dtype in (expected.dtype, loosest))
    return torch.isclose(actual, expected, rtol=rtol, atol=max(atol, absolute), equal_nan=True)


def differences(
    actual: Any,
    expected: Any,
    truth: Any,
    *,
    dtype: torch.dtype,
    values: bool,
    device: str,
    skip: Container[int] = (),
    absolute: float = 0.0,
) -> list[str]:
    """How `actual` (on the device) differs from `expected` (on the CPU, in the same dtype): nothing, if it is right.

    `truth` is what the CPU computes in a wider dtype from the same numbers, or None: see `_right`. Results whose index
    is in `skip` are not compared.
    """
    got, shape = tree_flatten(actual)
    want, wanted_shape = tree_flatten(expected)
    best: list[Any] = tree_flatten(truth)[0] if truth is not None else []
    if shape != wanted_shape:
        return [f"the result is {shape}, not {wanted_shape}"]
    if len(best) != len(want):
        best = [None] * len(want)
    found = []
    for index, (a, e, t) in enumerate(zip(got, want, best, strict=True)):
        if index in skip:
            continue
        if problem := _difference(a, e, t, dtype=dtype, values=values, device=device, absolute=absolute):
            found.append((f"result {index}: " if len(want) > 1 else "") + problem)
    return found


def _difference(a: Any, e: Any, t: Any, *, dtype: torch.dtype, values: bool, device: str, absolute: float = 0.0) -> str:
    if not isinstance(e, torch.Tensor) or not isinstance(a, torch.Tensor):
        if type(a) is not type(e):
            return f"{type(a).__name__}, not {type(e).__name__}"
        if not values or not isinstance(e, (bool, int, float, complex)):
            return ""
        return _difference(torch.tensor(a), torch.tensor(e), None, dtype=dtype, values=True, device="cpu")
    if a.device.type != device:
        return f"on {a.device}, not on {device}"
    if a.shape != e.shape:
        return f"shape {tuple(a.shape)}, not {tuple(e.shape)}"
    if device != "cpu" and a.dtype is _NARROWED.get(e.dtype):
        e = e.to(a.dtype)
    if a.dtype != e.dtype:
        return f"{a.dtype}, not {e.dtype}"
    if a.layout != e.layout:
        return f"{a.layout}, not {e.layout}"
    if not values or not e.numel():
        return ""
    a, e = a.detach().cpu(), e.detach()
    t = t.detach() if isinstance(t, torch.Tensor) and t.shape == e.shape else None
    if e.layout is not torch.strided:
        a, e, t = a.to_dense(), e.to_dense(), None
    right = _right(a, e, t, dtype, absolute)
    if bool(right.all()):
        return ""
    at = tuple(int(i) for i in (~right).nonzero()[0])
    share = f"{int((~right).sum())} of {right.numel()} elements differ"
    best = f" ({str(t.dtype).removeprefix('torch.')}: {t[at].item()!r})" if t is not None else ""
    return f"{share}; at {at}: {a[at].item()!r}, not {e[at].item()!r}{best}"


def _right(
    a: torch.Tensor, e: torch.Tensor, t: torch.Tensor | None, dtype: torch.dtype, absolute: float
) -> torch.Tensor:
    """Elementwise: near the CPU's result, or the wider one, or no further from that than four times the CPU's worst.

    The last is for what cancels: there the CPU's result is off by more than a few units in the last place as well.
    """
    right = _close(a, e, dtype, absolute)
    if t is None or not (e.dtype.is_floating_point or e.dtype.is_complex) or bool(right.all()):
        return right
    right |= _close(a, t.to(e.dtype), dtype, absolute)
    error, size = (e.to(t.dtype) - t).abs(), t.abs()
    known = torch.isfinite(error) & torch.isfinite(size)
    if not bool(known.any()):
        return right
    # No more than 16 units in the last place of the largest element, however far off the CPU is.
    cap = (
        16
        * max(torch.finfo(d).eps for d in (e.dtype, dtype) if d.is_floating_point or d.is_complex)
        * size[known].max()
    )
    allowed = torch.minimum(4 * error[known].max(), cap)
    return right | (torch.isfinite(a) & known & ((a.to(t.dtype) - t).abs() <= allowed))
