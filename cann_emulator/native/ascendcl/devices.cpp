// Devices: how many there are, which one a thread uses, what they can do.
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "runtime.h"

namespace emu {

constexpr int most_devices = 1024;

int physical_count() {
    static const int count = [] {
        const char* text = std::getenv("CANN_EMULATOR_DEVICES");
        if (!text || !*text) return 8;
        char* end = nullptr;
        const long value = std::strtol(text, &end, 10);
        return *end || value < 0 || value > most_devices ? -1 : static_cast<int>(value);
    }();
    return count;
}

namespace {
constexpr const char* visible_variable = "ASCEND_RT_VISIBLE_DEVICES";

thread_local int thread_device = -1;
std::atomic<bool> used{false};    // CANN was used in this process
std::atomic<bool> forked{false};  // this process is a fork of one that had used CANN

// What the environment asked for when the library was loaded.
struct Visible {
    bool given = false;
    std::string text;
    std::vector<int> ids;
    std::string fault;  // why the list is refused
};

Visible read_visible() {
    Visible visible;
    const char* text = std::getenv(visible_variable);
    if (!text) return visible;
    visible.given = true;
    visible.text = text;
    const int count = std::max(physical_count(), 0);
    const std::string range = "input data rang[0-" + std::to_string(count) + ")";
    for (const char* at = text; *at && visible.fault.empty();) {
        char* end = nullptr;
        const long id = std::strtol(at, &end, 10);
        if (end == at || (*end && *end != ','))
            visible.fault = "it must be a list of device ids separated by commas";
        else if (id < 0 || id >= count)
            visible.fault = range;
        else if (!visible.ids.empty() && id <= visible.ids.back())
            visible.fault = "it must be configured in ascending order";
        else
            visible.ids.push_back(static_cast<int>(id));
        at = *end ? end + 1 : end;
    }
    if (!visible.fault.empty()) visible.ids.clear();
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

// An error in an argument, worded as CANN words it: this is what users search for.
int invalid_argument(int code, const std::string& reason) {
    char now[32];
    const time_t seconds = time(nullptr);
    std::strftime(now, sizeof now, "%Y-%m-%d-%H:%M:%S", std::localtime(&seconds));
    return fail(
        code,
        "EE1001: [PID: %d] %s The argument is invalid.Reason: %s\n        Solution: 1.Check the input parameter range "
        "of the function. 2.Check the function invocation relationship.",
        getpid(), now, reason.c_str());
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

void mark_used() { used = true; }
bool in_forked_child() { return forked.load(std::memory_order_relaxed); }

int device_count() { return visible().given ? static_cast<int>(visible().ids.size()) : std::max(physical_count(), 0); }

int current_device() { return thread_device; }

int refuse_fork() {
    return fail(
        ACL_ERROR_RT_DEV_SETUP_ERROR,
        "EE9999: Cannot re-initialize NPU in forked subprocess. To use NPU with multiprocessing, you must use the "
        "'spawn' start method. (Process %d was forked from one that had already used CANN.)",
        getpid());
}

int device_ready() {
    if (forked) return refuse_fork();
    if (physical_count() < 0) {
        return fail(ACL_ERROR_RT_DEV_SETUP_ERROR, "CANN_EMULATOR_DEVICES=%s is not a number of devices (0 to %d).",
                    std::getenv("CANN_EMULATOR_DEVICES"), most_devices);
    }
    if (hbm_limit() == 0) {
        return fail(ACL_ERROR_RT_DEV_SETUP_ERROR, "CANN_EMULATOR_HBM_GB=%s is not a size in GiB, such as 64 or 0.5.",
                    std::getenv("CANN_EMULATOR_HBM_GB"));
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
        return invalid_argument(ACL_ERROR_RT_INVALID_DEVICEID,
                                "Set visible device failed, invalid device=" + std::to_string(device) +
                                    ", input visible devices:" + visible().text);
    }
    return invalid_argument(ACL_ERROR_RT_INVALID_DEVICEID,
                            "Set device failed, invalid device=" + std::to_string(device) +
                                ", valid device range is [0, " + std::to_string(device_count()) + ")" +
                                (visible().given ? ", input visible devices:" + visible().text : ""));
}

int need_device(int* device) {
    if (in_forked_child()) return refuse_fork();
    if (thread_device < 0) {
        return fail(ACL_ERROR_RT_CONTEXT_NULL,
                    "EE1001: no device is set in this thread. Call aclrtSetDevice (torch.npu.set_device) before using "
                    "streams, events or memory.");
    }
    *device = thread_device;
    return 0;
}

}  // namespace emu

using namespace emu;

namespace {
std::atomic<bool> initialised{false};
}

ACL_API int aclInit(const char*) {
    if (initialised.exchange(true))
        return fail(ACL_ERROR_REPEAT_INITIALIZE, "aclInit was called before in this process.");
    return 0;
}

ACL_API int aclFinalize() {
    initialised = false;
    return 0;
}

// Asking for the count is a use of CANN: a process forked after it is refused, as on hardware.
ACL_API int aclrtGetDeviceCount(uint32_t* count) {
    *count = 0;
    if (const int error = device_ready()) return error;
    used = true;
    if (!visible().fault.empty()) {
        return invalid_argument(ACL_ERROR_RT_NO_DEVICE, std::string("set ") + visible_variable + ":" + visible().text +
                                                            " error, " + visible().fault);
    }
    *count = static_cast<uint32_t>(device_count());
    if (*count == 0)
        return fail(ACL_ERROR_RT_NO_DEVICE, "EE9999: this machine has no device (CANN_EMULATOR_DEVICES=0).");
    return 0;
}

ACL_API int aclrtSetDevice(int32_t device) {
    if (const int error = device_ready()) return error;
    const char* now = std::getenv(visible_variable);
    if ((now != nullptr) != visible().given || (now && visible().text != now)) {
        return fail(
            ACL_ERROR_RT_DEV_SETUP_ERROR,
            "EL0003: [PID: %d] The argument is invalid.\n        Solution: Try again with a valid argument: %s was %s "
            "when CANN was loaded and is %s now. Set it before importing torch_npu.",
            getpid(), visible_variable, visible().given ? visible().text.c_str() : "not set", now ? now : "not set");
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
    // Not for ever: processes reset their device when they end, also after a peer of a collective was lost.
    constexpr int64_t patience_ms = 10000;
    drain_all(device, patience_ms);
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
    *value = 0;  // limits and topology that an emulated device does not have
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
