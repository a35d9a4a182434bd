// Waiting without stopping other Python threads: the GIL is given up while a call blocks.
#include <dlfcn.h>

#include <chrono>

#include "runtime.h"

namespace emu {
namespace {
// Python's own functions, where the process has a Python: CANN must not depend on it.
struct Python {
    int (*is_initialized)() = nullptr;
    int (*holds_gil)() = nullptr;
    void* (*save)() = nullptr;
    void (*restore)(void*) = nullptr;
    Python() {
        const auto find = [](auto& function, const char* name) {
            function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(RTLD_DEFAULT, name));
        };
        find(is_initialized, "Py_IsInitialized");
        find(holds_gil, "PyGILState_Check");
        find(save, "PyEval_SaveThread");
        find(restore, "PyEval_RestoreThread");
    }
    bool can_pause() const { return is_initialized && holds_gil && save && restore && is_initialized() && holds_gil(); }
};

const Python& python() {
    static const Python instance;
    return instance;
}
}  // namespace

GilPause::GilPause() : saved_(python().can_pause() ? python().save() : nullptr) {}

GilPause::~GilPause() {
    if (saved_) python().restore(saved_);
}

void Fence::complete(int status, std::string message) {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        status_ = status;
        message_ = std::move(message);
        done_ns_ = now_ns();
        done_.store(true, std::memory_order_release);
    }
    changed_.notify_all();
}

int Fence::wait(int64_t timeout_ms) {
    if (!done()) {
        GilPause pause;
        std::unique_lock<std::mutex> lock(mutex_);
        const auto finished = [this] { return done(); };
        if (timeout_ms < 0) {
            changed_.wait(lock, finished);
        } else if (!changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), finished)) {
            return ACL_ERROR_RT_WAIT_TIMEOUT;
        }
    }
    return status_;
}

}  // namespace emu
