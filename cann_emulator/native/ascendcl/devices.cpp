// Devices: how many there are, which one a thread uses, what they can do.
#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <deque>

#include "runtime.h"

namespace emu {

const Soc* wanted_soc();
std::string soc_names();

namespace {
constexpr const char* visible_variable = "ASCEND_RT_VISIBLE_DEVICES";

thread_local int thread_device = -1;
std::atomic<bool> used{false};      // a device was set in this process
std::atomic<bool> forked{false};    // this process is a fork of one that had used a device

// What the environment asked for when the library was loaded.
struct Visible {
    bool given = false;
    std::string text;
    std::vector<int> ids;
    std::string fault;   // why the list is refused
};

int physical_count() {
    const char* text = std::getenv("CANN_EMULATOR_DEVICES");
    const int count = text ? std::atoi(text) : 8;
    return count < 1 ? 1 : count > 1024 ? 1024 : count;
}

Visible read_visible() {
    Visible visible;
    const char* text = std::getenv(visible_variable);
    if (!text) return visible;
    visible.given = true;
    visible.text = text;
    const int count = physical_count();
    for (const char* at = text; *at;) {
        char* end = nullptr;
        const long id = std::strtol(at, &end, 10);
        if (end == at || (*end && *end != ',')) {
            visible.fault = "it is not a list of device ids separated by commas";
        } else if (id < 0 || id >= count) {
            visible.fault = "device " + std::to_string(id) + " does not exist, valid ids are 0 to " + std::to_string(count - 1);
        } else if (!visible.ids.empty() && id <= visible.ids.back()) {
            visible.fault = "the ids must be in ascending order";
        }
        if (!visible.fault.empty()) {
            visible.ids.clear();
            break;
        }
        visible.ids.push_back(static_cast<int>(id));
        at = *end ? end + 1 : end;
    }
    return visible;
}

const Visible& visible() {
    static const Visible instance = read_visible();
    return instance;
}

// The variable is read once, when the library is loaded, as hardware does.
__attribute__((constructor)) void remember_environment() {
    visible();
    pthread_atfork(nullptr, nullptr, [] {
        if (used) forked = true;
    });
}

int visible_error() {
    return fail(ACL_ERROR_RT_NO_DEVICE,
                "EE1001: [PID: %d] The argument is invalid. Reason: The value %s of the environment variable %s is "
                "invalid: %s.\n        Solution: Set %s to existing device ids in ascending order, such as 0,1, or "
                "unset it.",
                getpid(), visible().text.c_str(), visible_variable, visible().fault.c_str(), visible_variable);
}

// A context is no more than the device it belongs to.
struct Context {
    int device;
};

Context* context_of(int device) {
    static std::vector<Context> contexts = [] {
        std::vector<Context> all;
        for (int i = 0; i < device_count(); ++i) all.push_back({i});
        return all;
    }();
    return &contexts[device];
}

std::vector<std::atomic<bool>>& active() {
    static std::vector<std::atomic<bool>> flags(device_count() ? device_count() : 1);
    return flags;
}

}  // namespace

bool in_forked_child() { return forked; }

int device_count() {
    if (!visible().given) {
        static const int count = physical_count();
        return count;
    }
    return static_cast<int>(visible().ids.size());
}

int current_device() { return thread_device; }
void set_current_device(int device) { thread_device = device; }

int device_ready() {
    if (forked) {
        return fail(ACL_ERROR_RT_DEV_SETUP_ERROR,
                    "EE9999: this process was forked from one that had already used an NPU, and a forked process cannot "
                    "use it. Start it with the spawn method, or use the NPU only after the fork.");
    }
    if (!wanted_soc()) {
        return fail(ACL_ERROR_RT_DEV_SETUP_ERROR, "CANN_EMULATOR_SOC=%s is not a known SoC. Known are: %s.",
                    std::getenv("CANN_EMULATOR_SOC"), soc_names().c_str());
    }
    return 0;
}

int check_device(int device) {
    if (device >= 0 && device < device_count()) return 0;
    if (!visible().fault.empty()) {
        return fail(ACL_ERROR_RT_INVALID_DEVICEID, "EE1001: device %d does not exist: %s=%s shows no device (%s).", device,
                    visible_variable, visible().text.c_str(), visible().fault.c_str());
    }
    return fail(ACL_ERROR_RT_INVALID_DEVICEID,
                "EE1001: [PID: %d] The argument is invalid. Reason: Device id %d is out of range [0, %d).%s", getpid(),
                device, device_count(),
                visible().given ? (" ASCEND_RT_VISIBLE_DEVICES=" + visible().text + " limits what is visible.").c_str() : "");
}

int need_device(int* device) {
    if (thread_device < 0) {
        return fail(ACL_ERROR_RT_CONTEXT_NULL,
                    "EE1001: no device is set in this thread. Call aclrtSetDevice (torch.npu.set_device) before using "
                    "streams, events or memory.");
    }
    *device = thread_device;
    return forked ? device_ready() : 0;
}

}  // namespace emu

using namespace emu;

ACL_API int aclInit(const char*) {
    static std::atomic<bool> done{false};
    if (done.exchange(true)) return fail(ACL_ERROR_REPEAT_INITIALIZE, "aclInit was called before in this process.");
    return 0;
}

ACL_API int aclFinalize() { return 0; }

ACL_API int aclrtGetDeviceCount(uint32_t* count) {
    *count = 0;
    if (!visible().fault.empty()) return visible_error();
    *count = static_cast<uint32_t>(device_count());
    return 0;
}

ACL_API int aclrtSetDevice(int32_t device) {
    if (const int error = device_ready()) return error;
    const char* now = std::getenv(visible_variable);
    if ((now != nullptr) != visible().given || (now && visible().text != now)) {
        return fail(ACL_ERROR_RT_DEV_SETUP_ERROR,
                    "EE9999: %s was %s when CANN was loaded and is %s now. Set it before importing torch_npu.",
                    visible_variable, visible().given ? visible().text.c_str() : "not set", now ? now : "not set");
    }
    if (const int error = check_device(device)) return error;
    used = true;
    active()[device] = true;
    start_counters();
    thread_device = device;
    return 0;
}

ACL_API int aclrtResetDevice(int32_t device) {
    if (const int error = check_device(device)) return error;
    drain_device(device);
    active()[device] = false;
    if (thread_device == device) thread_device = -1;
    return 0;
}

ACL_API int aclrtGetDevice(int32_t* device) { return need_device(device); }

ACL_API int aclrtGetCurrentContext(void** context) {
    int device = -1;
    if (const int error = need_device(&device)) return error;
    *context = context_of(device);
    return 0;
}

ACL_API int aclrtSetCurrentContext(void* context) {
    for (int device = 0; device < device_count(); ++device) {
        if (context_of(device) == context) {
            thread_device = device;
            return 0;
        }
    }
    return fail(ACL_ERROR_RT_CONTEXT_NULL, "EE1001: %p is not a context of this process.", context);
}

ACL_API int aclrtGetPrimaryCtxState(int32_t device, uint32_t* flags, int32_t* is_active) {
    if (const int error = check_device(device)) return error;
    if (flags) *flags = 0;
    *is_active = active()[device] ? 1 : 0;
    return 0;
}

ACL_API int aclrtGetLogicDevIdByUserDevId(int32_t user, int32_t* logic) {
    if (const int error = check_device(user)) return error;
    *logic = visible().given ? visible().ids[user] : user;
    return 0;
}

ACL_API int aclGetDeviceCapability(uint32_t device, int info, int64_t* value) {
    if (const int error = check_device(static_cast<int>(device))) return error;
    switch (info) {
        case ACL_DEVICE_INFO_AI_CORE_NUM: *value = soc().cube_cores; return 0;
        case ACL_DEVICE_INFO_VECTOR_CORE_NUM: *value = soc().vector_cores; return 0;
        case ACL_DEVICE_INFO_L2_SIZE: *value = soc().l2_bytes; return 0;
    }
    return fail(ACL_ERROR_INVALID_PARAM, "aclGetDeviceCapability: unknown capability %d.", info);
}

ACL_API int aclrtGetDeviceInfo(uint32_t device, int attribute, int64_t* value) {
    if (const int error = check_device(static_cast<int>(device))) return error;
    switch (attribute) {
        case ACL_DEV_ATTR_AICPU_CORE_NUM: *value = 6; return 0;
        case ACL_DEV_ATTR_AICORE_CORE_NUM:
        case ACL_DEV_ATTR_CUBE_CORE_NUM: *value = soc().cube_cores; return 0;
        case ACL_DEV_ATTR_VECTOR_CORE_NUM: *value = soc().vector_cores; return 0;
        case ACL_DEV_ATTR_WARP_SIZE: *value = soc().npu_arch >= 3000 ? 32 : 0; return 0;
        case ACL_DEV_ATTR_UBUF_PER_VECTOR_CORE: *value = soc().ub_bytes; return 0;
        case ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE: *value = static_cast<int64_t>(hbm_limit()); return 0;
        case ACL_DEV_ATTR_L2_CACHE_SIZE: *value = soc().l2_bytes; return 0;
        case ACL_DEV_ATTR_PHY_CHIP_ID: *value = visible().given ? visible().ids[device] : device; return 0;
        case ACL_DEV_ATTR_NPU_ARCH: *value = soc().npu_arch; return 0;
    }
    *value = 0;   // limits and topology that an emulated device does not have
    return 0;
}

ACL_API int aclrtDeviceGetUuid(int32_t device, char* uuid) {
    if (const int error = check_device(device)) return error;
    const uint32_t id = visible().given ? visible().ids[device] : device;
    std::memcpy(uuid, "CANN-EMU", 8);
    std::memcpy(uuid + 8, &soc().npu_arch, 4);
    std::memcpy(uuid + 12, &id, 4);
    return 0;
}

ACL_API int aclrtDeviceGetBareTgid(int32_t* pid) {
    *pid = getpid();
    return 0;
}

ACL_API int aclrtDeviceCanAccessPeer(int32_t* can, int32_t device, int32_t peer) {
    if (const int error = check_device(device)) return error;
    if (const int error = check_device(peer)) return error;
    *can = device != peer;
    return 0;
}

ACL_API int aclrtDeviceEnablePeerAccess(int32_t peer, uint32_t) { return check_device(peer); }

ACL_API int aclrtGetDeviceUtilizationRate(int32_t device, int32_t* utilization) {
    if (const int error = check_device(device)) return error;
    // cube, vector, AI CPU, memory: kernels run at once in the caller, so the cores are idle when anybody can ask.
    utilization[0] = utilization[1] = utilization[2] = 0;
    utilization[3] = static_cast<int32_t>(100 * hbm_used(device) / hbm_limit());
    return 0;
}
