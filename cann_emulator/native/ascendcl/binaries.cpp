// Kernel binaries for the AI cores: there are no cores to run them on. Every call that would is refused with the
// reason.
#include "runtime.h"

namespace {
int no_cores(const char* call) {
    return emu::fail(
        ACL_ERROR_RT_FEATURE_NOT_SUPPORT,
        "%s: the emulator has no AI cores and runs no kernel binaries (triton or AscendC code). Use the operator "
        "that torch_npu offers, or eager mode.",
        call);
}
}  // namespace

#define NO_CORES(name, ...) \
    ACL_API int name(__VA_ARGS__) { return no_cores(#name); }

NO_CORES(aclrtBinaryGetFunction, void*, const char*, void**)
NO_CORES(aclrtBinaryLoadFromData, const void*, size_t, const void*, void**)
NO_CORES(aclrtGetFunctionAddr, void*, void**, void**)
NO_CORES(aclrtGetHardwareSyncAddr, void**)
NO_CORES(aclrtLaunchKernelWithHostArgs, void*, uint32_t, void*, void*, void*, size_t, void*, size_t)
NO_CORES(rtDevBinaryRegister, const void*, void**)
NO_CORES(rtFunctionRegister, void*, const void*, const char*, const void*, uint32_t)
NO_CORES(rtGetC2cCtrlAddr, uint64_t*, uint32_t*)
NO_CORES(rtKernelLaunch, const void*, uint32_t, void*, uint32_t, void*, void*)
