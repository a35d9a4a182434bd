// What is asked of the driver rather than of the runtime. torch_npu looks it up in libascend_hal.so, which is an empty
// library that depends on this one.
#include "runtime.h"

namespace {
constexpr int DRV_ERROR_NONE = 0;
constexpr int DRV_ERROR_NOT_SUPPORT = 0xfffe;
}  // namespace

// All devices of the machine: the caller applies ASCEND_RT_VISIBLE_DEVICES itself.
ACL_API int drvGetDevNum(uint32_t* count) {
    emu::mark_used();
    *count = static_cast<uint32_t>(emu::physical_count() < 0 ? 0 : emu::physical_count());
    return DRV_ERROR_NONE;
}

// A driver so old that callers take the host's clock instead of the device's cycle counter, which does not exist here.
ACL_API int halGetAPIVersion(int* version) {
    *version = 0;
    return DRV_ERROR_NONE;
}

ACL_API int halGetDeviceInfo(uint32_t, int32_t, int32_t, int64_t*) { return DRV_ERROR_NOT_SUPPORT; }
