// CANN's profiler. It collects nothing here: the emulator's own trace (CANN_EMULATOR_TRACE) does. Starting and stopping
// it is allowed from any thread.
#include "runtime.h"

namespace {
std::atomic<bool> initialised{false};
}

struct aclprofConfig {
    uint64_t types;
};
struct aclprofStepInfo {};

ACL_API int aclprofInit(const char*, size_t) {
    initialised = true;
    return 0;
}
ACL_API int aclprofFinalize() {
    initialised = false;
    return 0;
}
ACL_API aclprofConfig* aclprofCreateConfig(uint32_t*, uint32_t, int, const void*, uint64_t types) {
    return new aclprofConfig{types};
}
ACL_API int aclprofDestroyConfig(const aclprofConfig* config) {
    delete config;
    return 0;
}
ACL_API int aclprofStart(const aclprofConfig*) {
    if (initialised) return 0;
    return emu::fail(ACL_ERROR_PROF_NOT_RUN, "aclprofStart: call aclprofInit first.");
}
ACL_API int aclprofStop(const aclprofConfig*) { return 0; }
ACL_API aclprofStepInfo* aclprofCreateStepInfo() { return new aclprofStepInfo; }
ACL_API void aclprofDestroyStepInfo(aclprofStepInfo* info) { delete info; }
ACL_API int aclprofGetStepTimestamp(aclprofStepInfo*, int, void*) { return 0; }

// torch_npu looks these up in libmsprofiler.so, which is an empty library that depends on this one.
ACL_API int aclprofGetSupportedFeatures(size_t*, void**) { return ACL_ERROR_PROF_MODULES_UNSUPPORTED; }
ACL_API int aclprofGetSupportedFeaturesV2(size_t*, void**) { return ACL_ERROR_PROF_MODULES_UNSUPPORTED; }
ACL_API int aclprofSetConfig(int, const char*, size_t) { return 0; }
ACL_API int aclprofMarkEx(const char*, size_t, void*) { return 0; }
ACL_API int aclprofWarmup(const aclprofConfig*) { return 0; }
ACL_API int aclprofRegisterDeviceCallback() { return 0; }

ACL_API uint64_t MsprofGetHashId(const char* text, size_t length) {
    return std::hash<std::string>()(std::string(text, length));
}
ACL_API int32_t MsprofRegisterCallback(uint32_t, void*) { return 0; }
ACL_API int32_t MsprofReportAdditionalInfo(uint32_t, const void*, uint32_t) { return 0; }
ACL_API int32_t MsprofReportApi(uint32_t, const void*) { return 0; }
ACL_API int32_t MsprofReportCompactInfo(uint32_t, const void*, uint32_t) { return 0; }
ACL_API uint64_t MsprofSysCycleTime() { return static_cast<uint64_t>(emu::now_ns()); }
