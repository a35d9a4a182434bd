// Virtual device memory: address ranges are reserved, physical memory (a memfd) is mapped into them piece by piece.
// torch_npu's expandable segments are made of this, and sharing between processes too.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <set>

#include "runtime.h"

namespace emu {
namespace {
struct Physical {
    int fd;
    size_t bytes;
    int device;
    size_t charged;  // 0 for memory imported from another process, which has paid for it
    int references;  // the handle itself and every mapping of it
};

struct Virtual {
    std::mutex mutex;
    std::map<uintptr_t, size_t> reserved;
    std::map<uintptr_t, Physical*> mapped;
    std::set<Physical*> handles;  // not freed by their owner
};

Virtual& state() {
    static Virtual& instance = *new Virtual;
    return instance;
}

void drop(Physical* physical) {
    if (--physical->references > 0) return;
    close(physical->fd);
    if (physical->charged) refund(physical->device, physical->charged);
    delete physical;
}

int unknown_handle(const char* call, const void* handle) {
    return fail(ACL_ERROR_RT_INVALID_HANDLE, "EE1001: %s: %p is not a handle of physical memory.", call, handle);
}
}  // namespace
}  // namespace emu

using namespace emu;

struct aclrtPhysicalMemProp {
    int handle_type, allocation_type, attribute;
    uint32_t location_id;
    int location_type;
    uint64_t reserved;
};

// torch_npu tries this out before it sets a device.
ACL_API int aclrtReserveMemAddress(void** pointer, size_t size, size_t alignment, void* wanted, uint64_t) {
    (void)alignment;  // a range always begins on a 2 MiB boundary, CANN's own granularity
    constexpr size_t unit = 2 << 20;
    void* mapped = mmap(wanted, size + unit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
        return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "EL0004: this machine has no address range of %zu bytes.", size);
    }
    const auto begin = reinterpret_cast<uintptr_t>(mapped);
    const uintptr_t aligned = (begin + unit - 1) / unit * unit;
    if (aligned > begin) munmap(mapped, aligned - begin);
    if (begin + unit > aligned) munmap(reinterpret_cast<void*>(aligned + size), begin + unit - aligned);
    std::lock_guard<std::mutex> lock(state().mutex);
    state().reserved[aligned] = size;
    *pointer = reinterpret_cast<void*>(aligned);
    return 0;
}

ACL_API int aclrtReleaseMemAddress(void* pointer) {
    std::lock_guard<std::mutex> lock(state().mutex);
    const auto range = state().reserved.find(reinterpret_cast<uintptr_t>(pointer));
    if (range == state().reserved.end()) {
        return fail(ACL_ERROR_RT_PARAM_INVALID, "EE1001: aclrtReleaseMemAddress(%p): not a reserved range.", pointer);
    }
    const auto inside = state().mapped.lower_bound(range->first);
    if (inside != state().mapped.end() && inside->first < range->first + range->second) {
        return fail(ACL_ERROR_RT_PARAM_INVALID, "EE1001: aclrtReleaseMemAddress(%p): memory is still mapped at %#lx.",
                    pointer, inside->first);
    }
    munmap(pointer, range->second);
    state().reserved.erase(range);
    return 0;
}

ACL_API int aclrtMallocPhysical(void** handle, size_t size, const aclrtPhysicalMemProp* property, uint64_t) {
    int device = -1;
    if (const int error = need_device(&device)) return error;
    const bool host = property && property->location_type == ACL_MEM_LOCATION_TYPE_HOST;
    if (host)
        device = -1;
    else if (property && property->location_type == ACL_MEM_LOCATION_TYPE_DEVICE) {
        device = static_cast<int>(property->location_id);
        if (const int error = check_device(device)) return error;
    }
    if (!host) {
        if (const int error = charge(device, size, "aclrtMallocPhysical")) return error;
    }
    const int fd = memfd_create("cann-emulator", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(size)) != 0) {
        if (fd >= 0) close(fd);
        if (!host) refund(device, size);
        return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "EL0004: no file for %zu bytes of memory: %s.", size,
                    std::strerror(errno));
    }
    auto* physical = new Physical{fd, size, device, host ? 0 : size, 1};
    std::lock_guard<std::mutex> lock(state().mutex);
    state().handles.insert(physical);
    *handle = physical;
    return 0;
}

ACL_API int aclrtFreePhysical(void* handle) {
    std::lock_guard<std::mutex> lock(state().mutex);
    auto* physical = static_cast<Physical*>(handle);
    if (!state().handles.erase(physical)) return unknown_handle("aclrtFreePhysical", handle);
    drop(physical);
    return 0;
}

ACL_API int aclrtMapMem(void* pointer, size_t size, size_t offset, void* handle, uint64_t) {
    std::lock_guard<std::mutex> lock(state().mutex);
    auto* physical = static_cast<Physical*>(handle);
    if (!state().handles.count(physical)) return unknown_handle("aclrtMapMem", handle);
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    auto range = state().reserved.upper_bound(address);
    if (range == state().reserved.begin() || address + size > (--range)->first + range->second) {
        return fail(ACL_ERROR_RT_PARAM_INVALID, "EE1001: aclrtMapMem(%p, %zu): not inside one reserved range.", pointer,
                    size);
    }
    if (offset + size > physical->bytes) {
        return fail(ACL_ERROR_RT_PARAM_INVALID, "EE1001: aclrtMapMem: %zu bytes at %zu of a memory of %zu bytes.", size,
                    offset, physical->bytes);
    }
    if (mmap(pointer, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, physical->fd, static_cast<off_t>(offset)) ==
        MAP_FAILED) {
        return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "EL0004: aclrtMapMem(%p): %s.", pointer, std::strerror(errno));
    }
    ++physical->references;
    state().mapped[address] = physical;
    add_block(pointer, size, physical->device, Origin::mapped, 0);
    return 0;
}

ACL_API int aclrtUnmapMem(void* pointer) {
    std::lock_guard<std::mutex> lock(state().mutex);
    const auto mapping = state().mapped.find(reinterpret_cast<uintptr_t>(pointer));
    size_t bytes, charged;
    int device;
    if (mapping == state().mapped.end() || !take_block(pointer, Origin::mapped, &bytes, &device, &charged)) {
        return fail(ACL_ERROR_RT_PARAM_INVALID, "EE1001: aclrtUnmapMem(%p): nothing is mapped there.", pointer);
    }
    mmap(pointer, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    drop(mapping->second);
    state().mapped.erase(mapping);
    return 0;
}

// A shareable handle is the exporting process and its file: any process of the user can open it while that one lives.
ACL_API int aclrtMemExportToShareableHandle(void* handle, int, uint64_t, uint64_t* shareable) {
    std::lock_guard<std::mutex> lock(state().mutex);
    auto* physical = static_cast<Physical*>(handle);
    if (!state().handles.count(physical)) return unknown_handle("aclrtMemExportToShareableHandle", handle);
    *shareable = static_cast<uint64_t>(getpid()) << 32 | static_cast<uint32_t>(physical->fd);
    return 0;
}

ACL_API int aclrtMemImportFromShareableHandle(uint64_t shareable, int32_t device, void** handle) {
    if (const int error = check_device(device)) return error;
    const std::string path =
        "/proc/" + std::to_string(shareable >> 32) + "/fd/" + std::to_string(shareable & 0xffffffff);
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    const off_t bytes = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    if (bytes <= 0) {
        if (fd >= 0) close(fd);
        return fail(ACL_ERROR_RT_INVALID_HANDLE,
                    "EE1001: shareable handle %#lx: the process that exported it has ended or "
                    "freed the memory.",
                    shareable);
    }
    auto* physical = new Physical{fd, static_cast<size_t>(bytes), device, 0, 1};
    std::lock_guard<std::mutex> lock(state().mutex);
    state().handles.insert(physical);
    *handle = physical;
    return 0;
}

ACL_API int aclrtMemSetPidToShareableHandle(uint64_t, int32_t*, size_t) { return 0; }
