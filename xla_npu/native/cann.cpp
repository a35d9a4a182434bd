#include "cann.h"

#include <dlfcn.h>

#include <cstdlib>
#include <mutex>
#include <string>

#include "failure.h"

namespace npu {
namespace {
Cann functions;

// CANN's set_env.sh sets both; only the first tells where to look when the loader's path does not have it.
void* open_library(const char* name) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_GLOBAL)) return library;
    const std::string first_error = dlerror();
    if (const char* home = std::getenv("ASCEND_HOME_PATH")) {
        if (void* library = dlopen((std::string(home) + "/lib64/" + name).c_str(), RTLD_NOW | RTLD_GLOBAL)) {
            return library;
        }
        fail(PJRT_NOT_FOUND, "CANN's %s could not be loaded from ASCEND_HOME_PATH=%s: %s", name, home, dlerror());
    }
    fail(PJRT_NOT_FOUND,
         "CANN was not found (%s). On a machine with an Ascend NPU install the CANN toolkit and source its set_env.sh; "
         "on any other, run the program under the emulator: pip install 'framework-adapter[emulator]' and "
         "cann-emulator run -- python ...",
         first_error.c_str());
}

void load() {
    void* library = open_library("libascendcl.so");
    std::string missing;
#define NPU_RESOLVE(result, name, arguments)                                       \
    functions.name = reinterpret_cast<result(*) arguments>(dlsym(library, #name)); \
    if (!functions.name) missing += std::string(missing.empty() ? "" : ", ") + #name;
    NPU_RUNTIME_FUNCTIONS(NPU_RESOLVE)
    NPU_MODEL_FUNCTIONS(NPU_RESOLVE)
#undef NPU_RESOLVE
    if (!missing.empty()) {
        fail(PJRT_FAILED_PRECONDITION,
             "CANN's libascendcl.so is too old for this plugin, it has no %s: install CANN 8.2 or newer",
             missing.c_str());
    }
    constexpr int already_initialised = 100002;  // another framework in this process was first
    const int code = functions.aclInit(nullptr);
    if (code != already_initialised) check(code, "aclInit");
}

PJRT_Error_Code category(int code) {
    switch (code) {
        case 207001:  // device memory
        case 207000:
        case 207002:
        case 207003:
            return PJRT_RESOURCE_EXHAUSTED;  // memory, streams, events
        case 107002:
            return PJRT_FAILED_PRECONDITION;  // no context
        case 207006:
        case 200000:
            return PJRT_UNIMPLEMENTED;  // feature not supported
        case 507010:
        case 507899:
        case 507901:
            return PJRT_UNAVAILABLE;  // the device does not answer
        default:
            return code >= 100000 && code < 108000 ? PJRT_INVALID_ARGUMENT : PJRT_INTERNAL;
    }
}
}  // namespace

void load_cann() {
    static std::mutex mutex;
    static bool loaded = false;
    std::lock_guard<std::mutex> lock(mutex);
    if (!loaded) load();
    loaded = true;
}

const Cann& cann() { return functions; }

void check(int code, const char* call) {
    if (code == 0) return;
    const char* message = functions.aclGetRecentErrMsg ? functions.aclGetRecentErrMsg() : nullptr;
    const PJRT_Error_Code kind = category(code);
    const char* advice = kind == PJRT_UNAVAILABLE
                             ? "\nWhat the device still had to compute is lost: go on from a checkpoint in a new process, "
                               "with ASCEND_RT_VISIBLE_DEVICES leaving the device out if npu-smi shows it as faulty"
                             : "";
    fail(kind, "%s failed with CANN's error %d%s%s%s", call, code, message && *message ? ": " : "",
         message ? message : "", advice);
}

void* find_symbol(const char* library, const char* name) { return dlsym(open_library(library), name); }

}  // namespace npu
