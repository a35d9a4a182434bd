// The backend runs kernels on torch, so it needs a Python process; libopapi itself must not: torch_npu links it before
// Python code of ours could run. Hence the interpreter is found with dlsym, once, when the first operator is launched.
#include "backend.h"

#include <dlfcn.h>

#include <condition_variable>
#include <mutex>
#include <thread>

namespace emu {
namespace {

enum class State { unloaded, loading, loaded, failed };

std::atomic<State> g_state{State::unloaded};
std::mutex g_mutex;
std::condition_variable g_changed;
std::thread::id g_loader;
Backend g_backend;
ModelBackend g_models;
std::string g_reason;

template <typename F>
F symbol(const char* name) {
    return reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name));
}

// torch brings the libraries that the bridge is linked to. Its device back ends are not autoloaded if it is we who
// import it: a JAX process has no use for torch_npu.
constexpr const char* kImportTorch =
    "import os as _os, sys as _sys\n"
    "if 'torch' not in _sys.modules:\n"
    "    _os.environ.setdefault('TORCH_DEVICE_BACKEND_AUTOLOAD', '0')\n"
    "    import torch as _torch\n";

std::string load_bridge() {
    const auto initialized = symbol<int (*)()>("Py_IsInitialized");
    if (!initialized || !initialized()) {
        return "the CANN emulator runs its kernels in Python, and this process has no Python interpreter; start the "
               "program from Python";
    }
    const auto ensure = symbol<int (*)()>("PyGILState_Ensure");
    const auto release = symbol<void (*)(int)>("PyGILState_Release");
    const auto run = symbol<int (*)(const char*, void*)>("PyRun_SimpleStringFlags");
    const int gil = ensure();
    std::string reason;
    if (run(kImportTorch, nullptr) != 0) {
        reason = "the CANN emulator could not import torch (its traceback is above); install framework-adapter[emulator]";
    } else {
        Dl_info self{};
        dladdr(reinterpret_cast<void*>(&load_backend), &self);
        std::string path(self.dli_fname);
        path = path.substr(0, path.rfind('/') + 1) + "libcann_bridge.so";
        void* library = dlopen(path.c_str(), RTLD_NOW);
        if (!library) {
            reason = std::string("the CANN emulator's bridge cannot be loaded: ") + dlerror() +
                     ". It is built for one version of torch: rebuild it (make native)";
        } else {
            const auto load = reinterpret_cast<const char* (*)()>(dlsym(library, "emu_bridge_load"));
            if (const char* problem = load()) reason = problem;
        }
    }
    release(gil);
    return reason;
}

}  // namespace

void set_backend(const Backend& backend) { g_backend = backend; }
void set_model_backend(const ModelBackend& backend) { g_models = backend; }

const Backend* load_backend() {
    if (g_state.load(std::memory_order_acquire) == State::loaded) return &g_backend;
    bool mine = false;
    {
        const GilPause pause;  // the loading thread needs the GIL; whoever waits for it must not keep it
        std::unique_lock lock(g_mutex);
        if (g_state == State::unloaded) {
            g_state = State::loading;
            g_loader = std::this_thread::get_id();
            mine = true;
        } else if (g_state == State::loading && g_loader == std::this_thread::get_id()) {
            lock.unlock();
            fail(561000, "an operator was launched while the CANN emulator's kernels were being imported");
            return nullptr;
        } else {
            g_changed.wait(lock, [] { return g_state != State::loading; });
        }
    }
    if (mine) {
        g_reason = load_bridge();
        {
            const std::lock_guard lock(g_mutex);
            g_state.store(g_reason.empty() ? State::loaded : State::failed, std::memory_order_release);
        }
        g_changed.notify_all();
    }
    if (g_state.load(std::memory_order_acquire) == State::loaded) return &g_backend;
    fail_text(561000, g_reason);
    return nullptr;
}

}  // namespace emu

// For libascendcl.so, which runs models and does not link this library. Null, with the thread's error set, on failure.
extern "C" EMU_API const emu::ModelBackend* emu_model_backend() {
    return emu::load_backend() ? &emu::g_models : nullptr;
}
