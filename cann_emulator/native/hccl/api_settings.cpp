// Settings and memory registration: kept and checked, without an effect on results. Sums are always deterministic, and
// buffers are always reached directly.
#include <set>

#include "api.h"

extern "C" int aclrtMalloc(void** pointer, size_t size, int policy);
extern "C" int aclrtFree(void* pointer);

namespace hccl {
namespace {

constexpr int32_t settings_count = 2;   // HCCL_DETERMINISTIC, HCCL_ACCELERATOR
std::atomic<int32_t> settings[settings_count];

// Registered ranges and windows: a handle is the address of its entry.
struct Registration {
    void* comm;
    void* address;
};
struct Registrations {
    std::mutex mutex;
    std::set<Registration*> live;
};
Registrations& registrations() {
    static auto* instance = new Registrations;
    return *instance;
}

HcclResult add(void* comm, void* address, uint64_t size, void** handle) {
    const auto communicator = find(comm);
    if (!communicator) return HCCL_E_PARA;
    if (!handle) return refuse(Fault::bad_pointer, "the pointer for the handle is null.");
    int device = -1;
    if (emu::check_access(address, size, &device) != emu::Access::ok || device != communicator->device())
        return refuse(Fault::bad_pointer, "%p (%llu bytes) is not memory of device %d.", address,
                      static_cast<unsigned long long>(size), communicator->device());
    auto* entry = new Registration{comm, address};
    std::lock_guard<std::mutex> lock(registrations().mutex);
    registrations().live.insert(entry);
    *handle = entry;
    return HCCL_SUCCESS;
}

HcclResult known(void* handle) {
    std::lock_guard<std::mutex> lock(registrations().mutex);
    if (registrations().live.count(static_cast<Registration*>(handle))) return HCCL_SUCCESS;
    return refuse(Fault::bad_argument, "%p is not a registered window.", handle);
}

HcclResult remove(void* handle) {
    std::lock_guard<std::mutex> lock(registrations().mutex);
    auto* entry = static_cast<Registration*>(handle);
    if (!registrations().live.erase(entry)) return refuse(Fault::bad_argument, "%p is not a registered window.", handle);
    delete entry;
    return HCCL_SUCCESS;
}

HcclResult check(void* comm) { return find(comm) ? HCCL_SUCCESS : HCCL_E_PARA; }

}  // namespace
}  // namespace hccl

using namespace hccl;

HCCL_API HcclResult HcclSetConfig(uint32_t config, int32_t value) {
    if (config >= settings_count) return refuse(Fault::bad_argument, "config=%u is unknown.", config);
    settings[config] = value;
    return HCCL_SUCCESS;
}

HCCL_API HcclResult HcclGetConfig(uint32_t config, int32_t* value) {
    if (config >= settings_count || !value) return refuse(Fault::bad_argument, "config=%u is unknown.", config);
    *value = settings[config];
    return HCCL_SUCCESS;
}

HCCL_API HcclResult HcclCommRegister(void* comm, void* address, uint64_t size, void** handle, uint32_t) {
    return add(comm, address, size, handle);
}

HCCL_API HcclResult HcclCommDeregister(void* comm, void* handle) {
    const auto result = check(comm);
    return result ? result : remove(handle);
}

HCCL_API HcclResult HcclCommExchangeMem(void* comm, void* handle, uint32_t* peers, uint32_t count) {
    if (count && !peers) return refuse(Fault::bad_pointer, "peerRanks is null.");
    const auto result = check(comm);
    return result ? result : known(handle);
}

HCCL_API HcclResult HcclCommSymWinRegister(void* comm, void* address, uint64_t size, void** window, uint32_t) {
    return add(comm, address, size, window);
}

HCCL_API HcclResult HcclCommSymWinDeregister(void* window) { return remove(window); }

HCCL_API HcclResult HcclCommSetMemoryRange(void* comm, void*, size_t, size_t, uint64_t) { return check(comm); }
HCCL_API HcclResult HcclCommUnsetMemoryRange(void* comm, void*) { return check(comm); }
HCCL_API HcclResult HcclCommActivateCommMemory(void* comm, void*, size_t, size_t, void*, uint64_t) { return check(comm); }
HCCL_API HcclResult HcclCommDeactivateCommMemory(void* comm, void*) { return check(comm); }

HCCL_API HcclResult HcommMemAlloc(void** pointer, size_t size) {
    if (!pointer) return refuse(Fault::bad_pointer, "ptr is null.");
    return aclrtMalloc(pointer, size, 0) ? HCCL_E_MEMORY : HCCL_SUCCESS;
}

HCCL_API HcclResult HcommMemFree(void* pointer) { return aclrtFree(pointer) ? HCCL_E_MEMORY : HCCL_SUCCESS; }
