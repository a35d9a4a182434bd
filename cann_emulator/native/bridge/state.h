// A launch happens in the middle of somebody's program: under autocast, a dispatch mode, functorch, inference mode or
// `torch.device("npu")`. The kernel must compute as if none of these were there.
#pragma once

#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace emu {

// Plain torch for the lifetime of the scope: no dispatch or function modes, no autocast, no gradients.
class PlainTorch {
public:
    PlainTorch()
        : function_state_(at::impl::PythonTorchFunctionTLS::get_disabled_state()),
          autograd_state_(c10::AutogradState::get_tls_state()) {
        c10::impl::PODLocalDispatchKeySet plain{};
        plain.set_included(c10::default_included_set);
        plain.set_excluded(excluded());
        c10::impl::_force_tls_local_dispatch_key_set(plain);
        at::impl::PythonTorchFunctionTLS::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
        c10::AutogradState::set_tls_state(plain_autograd());
    }
    ~PlainTorch() {
        c10::AutogradState::set_tls_state(autograd_state_);
        at::impl::PythonTorchFunctionTLS::set_disabled_state(function_state_);
    }
    PlainTorch(const PlainTorch&) = delete;
    PlainTorch& operator=(const PlainTorch&) = delete;

private:
    // Autograd's keys stay: a kernel may differentiate its own formula under torch.enable_grad().
    static c10::DispatchKeySet excluded() {
        return c10::default_excluded_set | c10::python_ks | c10::functorch_transforms_ks |
               c10::DispatchKeySet(c10::DispatchKey::Functionalize) |
               c10::DispatchKeySet(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) |
               c10::DispatchKeySet(c10::DispatchKey::FuncTorchDynamicLayerBackMode);
    }
    static c10::AutogradState plain_autograd() {
        return c10::AutogradState(/*grad_mode=*/false, /*inference_mode=*/false, /*fw_grad_mode=*/true,
                                  /*multithreading_enabled=*/true);
    }

    c10::impl::ForceDispatchKeyGuard keys_;  // restores the keys that it found
    at::impl::TorchFunctionDisabledState function_state_;
    c10::AutogradState autograd_state_;
};

}  // namespace emu
