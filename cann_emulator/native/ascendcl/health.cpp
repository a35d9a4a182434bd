// Hardware faults: an emulated device has none, so there is nothing to report and nothing to repair. Faults on request
// belong here, out of the path of a launch.
#include <cstring>

#include "runtime.h"

ACL_API int aclrtGetErrorVerbose(int32_t device, void* info) {
    constexpr size_t size_of_info = 2576;  // aclrtErrorInfo
    if (const int error = emu::check_device(device)) return error;
    std::memset(info, 0, size_of_info);
    return 0;
}
ACL_API int aclrtRepairError(int32_t device, const void*) { return emu::check_device(device); }
ACL_API int aclrtGetMemUceInfo(int32_t device, void*, size_t, size_t* count) {
    if (count) *count = 0;
    return emu::check_device(device);
}
ACL_API int aclrtMemUceRepair(int32_t device, void*, size_t) { return emu::check_device(device); }

ACL_API int aclmdlInitDump() { return 0; }
ACL_API int aclmdlSetDump(const char*) { return 0; }
ACL_API int aclmdlFinalizeDump() { return 0; }
