// Settings of the runtime: system parameters, time limits, core limits, versions.
#include <cstring>
#include <map>

#include "runtime.h"

namespace emu {
namespace {
std::mutex mutex;
std::map<int, int64_t> parameters;                       // aclSysParamOpt
std::map<std::pair<int, int>, uint32_t> device_cores;    // (device, aclrtDevResLimitType)
std::map<std::pair<void*, int>, uint32_t> stream_cores;  // (stream, aclrtDevResLimitType)
thread_local void* limiting_stream = nullptr;

constexpr const char* version = "9.0.0";

uint32_t all_cores(int type) {
    return static_cast<uint32_t>(type == ACL_RT_DEV_RES_CUBE_CORE ? soc().cube_cores : soc().vector_cores);
}

int check_cores(int type, uint32_t value) {
    if (type != ACL_RT_DEV_RES_CUBE_CORE && type != ACL_RT_DEV_RES_VECTOR_CORE) {
        return fail(ACL_ERROR_RT_PARAM_INVALID, "EE1001: unknown kind of core %d.", type);
    }
    if (value < 1 || value > all_cores(type)) {
        return fail(ACL_ERROR_RT_PARAM_INVALID, "EE1001: %u cores, allowed are 1 to %u.", value, all_cores(type));
    }
    return 0;
}

uint32_t device_limit(int device, int type) {
    const auto found = device_cores.find({device, type});
    return found == device_cores.end() ? all_cores(type) : found->second;
}

uint32_t stream_limit(void* stream, int device, int type) {
    const auto found = stream_cores.find({stream, type});
    return found == stream_cores.end() ? device_limit(device, type) : found->second;
}
}  // namespace
}  // namespace emu

using namespace emu;

ACL_API int aclrtSetSysParamOpt(int option, int64_t value) {
    std::lock_guard<std::mutex> lock(mutex);
    parameters[option] = value;
    return 0;
}
ACL_API int aclrtCtxSetSysParamOpt(int option, int64_t value) { return aclrtSetSysParamOpt(option, value); }

ACL_API int aclrtGetSysParamOpt(int option, int64_t* value) {
    std::lock_guard<std::mutex> lock(mutex);
    *value = parameters.count(option) ? parameters[option] : 0;
    return 0;
}
ACL_API int aclrtCtxGetSysParamOpt(int option, int64_t* value) { return aclrtGetSysParamOpt(option, value); }

ACL_API int aclrtSetDeviceSatMode(int) { return 0; }
ACL_API int aclrtSetOpWaitTimeout(uint32_t) { return 0; }
ACL_API int aclrtSetOpExecuteTimeOut(uint32_t) { return 0; }
ACL_API int aclrtSetOpExecuteTimeOutV2(uint64_t timeout, uint64_t* actual) {
    if (actual) *actual = timeout;
    return 0;
}

ACL_API int aclrtGetDeviceResLimit(int32_t device, int type, uint32_t* value) {
    if (const int error = check_device(device)) return error;
    std::lock_guard<std::mutex> lock(mutex);
    *value = device_limit(device, type);
    return 0;
}
ACL_API int aclrtSetDeviceResLimit(int32_t device, int type, uint32_t value) {
    if (const int error = check_device(device)) return error;
    if (const int error = check_cores(type, value)) return error;
    std::lock_guard<std::mutex> lock(mutex);
    device_cores[{device, type}] = value;
    return 0;
}
ACL_API int aclrtResetDeviceResLimit(int32_t device) {
    if (const int error = check_device(device)) return error;
    std::lock_guard<std::mutex> lock(mutex);
    for (const int type : {0, 1}) device_cores.erase({device, type});
    return 0;
}

ACL_API int aclrtGetStreamResLimit(void* stream, int type, uint32_t* value) {
    const int device = stream_device(stream);
    if (device < 0) return last_error_code();
    std::lock_guard<std::mutex> lock(mutex);
    *value = stream_limit(stream, device, type);
    return 0;
}
ACL_API int aclrtSetStreamResLimit(void* stream, int type, uint32_t value) {
    if (stream_device(stream) < 0) return last_error_code();
    if (const int error = check_cores(type, value)) return error;
    std::lock_guard<std::mutex> lock(mutex);
    stream_cores[{stream, type}] = value;
    return 0;
}
ACL_API int aclrtResetStreamResLimit(void* stream) {
    std::lock_guard<std::mutex> lock(mutex);
    for (const int type : {0, 1}) stream_cores.erase({stream, type});
    return 0;
}
ACL_API int aclrtUseStreamResInCurrentThread(void* stream) {
    if (stream_device(stream) < 0) return last_error_code();
    limiting_stream = stream;
    return 0;
}
ACL_API int aclrtUnuseStreamResInCurrentThread(void*) {
    limiting_stream = nullptr;
    return 0;
}
ACL_API int aclrtGetResInCurrentThread(int type, uint32_t* value) {
    int device = -1;
    if (const int error = need_device(&device)) return error;
    std::lock_guard<std::mutex> lock(mutex);
    *value = limiting_stream ? stream_limit(limiting_stream, device, type) : device_limit(device, type);
    return 0;
}

ACL_API int aclGetCannAttribute(int attribute, int32_t* value) {
    switch (attribute) {
        case ACL_CANN_ATTR_INF_NAN:
        case ACL_CANN_ATTR_BF16: *value = soc().npu_arch >= 2200 ? 1 : 0; return 0;
        case ACL_CANN_ATTR_JIT_COMPILE: *value = 1; return 0;  // operators run without being compiled first
    }
    return fail(ACL_ERROR_INVALID_PARAM, "aclGetCannAttribute: unknown attribute %d.", attribute);
}

ACL_API int aclGetCannAttributeList(const int** attributes, size_t* count) {
    static const int known[] = {ACL_CANN_ATTR_INF_NAN, ACL_CANN_ATTR_BF16, ACL_CANN_ATTR_JIT_COMPILE};
    *attributes = known;
    *count = sizeof known / sizeof *known;
    return 0;
}

struct aclCANNPackageVersion {
    char version[128], major[64], minor[64], release[64], patch[64], reserved[128];
};

ACL_API int aclsysGetCANNVersion(int, aclCANNPackageVersion* out) {
    *out = {};
    std::strcpy(out->version, version);
    std::strcpy(out->major, "9");
    std::strcpy(out->minor, "0");
    std::strcpy(out->release, "0");
    std::strcpy(out->patch, "0");
    return 0;
}

ACL_API int aclsysGetVersionStr(char*, char* out) {
    std::strcpy(out, version);
    return 0;
}
