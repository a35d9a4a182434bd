"""Which ATen operators a call really reaches, and which of them torch_npu registers a kernel for."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Allocation, views, copies and reading one number: every operator needs them, so that torch_npu's having them says
# nothing about the operator that is looked at.
PLUMBING = {
    "aten::_conj",
    "aten::_local_scalar_dense",
    "aten::_neg_view",
    "aten::_reshape_alias",
    "aten::_to_copy",
    "aten::_unsafe_view",
    "aten::alias",
    "aten::as_strided",
    "aten::clone",
    "aten::copy_",
    "aten::detach",
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::expand",
    "aten::lift_fresh",
    "aten::permute",
    "aten::resize_",
    "aten::select",
    "aten::set_",
    "aten::slice",
    "aten::squeeze",
    "aten::t",
    "aten::transpose",
    "aten::unsqueeze",
    "aten::view",
}


class _Calls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        self.names.add(func.name())
        return func(*args, **(kwargs or {}))


def calls_of(call: Callable[[], Any]) -> set[str]:
    """The ATen overloads that `call` reaches, as far as it gets."""
    # The overload that failed is in the list too, and the failure is reported elsewhere.
    with _Calls() as calls, contextlib.suppress(Exception):
        call()
    return calls.names


def computing(calls: set[str]) -> dict[str, bool]:
    """Overload -> whether torch_npu registers a kernel for it, plumbing left out."""
    return {name: has_kernel(name) for name in sorted(calls) if name.split(".")[0] not in PLUMBING}


def has_kernel(name: str) -> bool:
    """Whether the NPU has a kernel for the overload, or for the `out=` form that it is computed through."""
    if torch._C._dispatch_has_kernel_for_dispatch_key(name, "PrivateUse1"):
        return True
    if not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeExplicitAutogradNonFunctional"):
        return False
    base = name.split(".")[0]
    namespace, operator = base.split("::")
    overloads = getattr(getattr(torch.ops, namespace), operator).overloads()
    return any(
        "out" in overload and torch._C._dispatch_has_kernel_for_dispatch_key(f"{base}.{overload}", "PrivateUse1")
        for overload in overloads
    )
