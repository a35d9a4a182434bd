// Device memory and pinned host memory: what is allocated, where, and how much a device has left.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <shared_mutex>

#include "runtime.h"

namespace emu {
namespace {
constexpr size_t huge_page = 2 << 20;

struct Block {
    uintptr_t end;
    int device;  // -1: host
    Origin origin;
    size_t charged;
    int file = -1;  // where other processes find the pages of a shared block
};

struct Hbm {
    std::atomic<size_t> used{0};
    std::atomic<size_t> peak{0};
};

struct Memory {
    std::shared_mutex mutex;
    std::map<uintptr_t, Block> live;  // by first byte; never overlapping
    // Freed blocks keep their address range, without pages behind it, until the oldest are let go: a use after free
    // is then told from a wild pointer, and the same address does not come back at once.
    std::map<uintptr_t, uintptr_t> freed;
    std::deque<uintptr_t> freed_order;
    std::vector<Hbm> hbm = std::vector<Hbm>(std::max(device_count(), 1));
    // Counts every removal: what a thread remembers about a block holds while this has not moved.
    std::atomic<uint64_t> generation{1};
};
constexpr size_t freed_kept = 256;

Memory& memory() {
    static Memory& instance = *new Memory;  // never destroyed: other libraries free memory while the process ends
    return instance;
}

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

// The live block that holds `address`; the caller holds the lock.
std::map<uintptr_t, Block>::const_iterator find_live(uintptr_t address) {
    const auto& live = memory().live;
    auto block = live.upper_bound(address);
    if (block == live.begin()) return live.end();
    --block;
    return address < block->second.end ? block : live.end();
}

bool was_freed(uintptr_t address) {
    const auto& freed = memory().freed;
    auto range = freed.upper_bound(address);
    return range != freed.begin() && address < (--range)->second;
}

void* map_pages(size_t bytes) {
    const size_t spare = bytes >= huge_page ? huge_page : 0;  // to begin on a huge page
    void* mapped =
        mmap(nullptr, bytes + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    if (!spare) return mapped;
    const auto begin = reinterpret_cast<uintptr_t>(mapped);
    const uintptr_t aligned = round_up(begin, huge_page);
    if (aligned > begin) munmap(mapped, aligned - begin);
    munmap(reinterpret_cast<void*>(aligned + bytes), begin + spare - aligned);
    return reinterpret_cast<void*>(aligned);
}

// Gives the pages back, and the address range too once it is among the oldest.
void release_pages(uintptr_t begin, uintptr_t end) {
    auto& state = memory();
    mmap(reinterpret_cast<void*>(begin), end - begin, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    state.freed[begin] = end;
    state.freed_order.push_back(begin);
    if (state.freed_order.size() <= freed_kept) return;
    const auto oldest = state.freed.find(state.freed_order.front());
    state.freed_order.pop_front();
    if (oldest == state.freed.end()) return;
    munmap(reinterpret_cast<void*>(oldest->first), oldest->second - oldest->first);
    state.freed.erase(oldest);
}

int allocate(void** pointer, size_t size, int device, Origin origin) {
    const size_t bytes = round_up(size, static_cast<size_t>(sysconf(_SC_PAGESIZE)));
    if (device >= 0) {
        if (const int error = charge(device, bytes, "aclrtMalloc")) return error;
    }
    *pointer = map_pages(bytes);
    if (!*pointer) {
        if (device >= 0) refund(device, bytes);
        return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "EL0004: this machine has no address space for %zu bytes.", bytes);
    }
    add_block(*pointer, bytes, device, origin, device >= 0 ? bytes : 0);
    return 0;
}

int release(void* pointer, Origin origin, const char* call) {
    auto& state = memory();
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    Block block{};
    {
        std::unique_lock<std::shared_mutex> lock(state.mutex);
        const auto found = state.live.find(address);
        if (found == state.live.end() || found->second.origin != origin) {
            const bool inside = find_live(address) != state.live.end();
            return fail(ACL_ERROR_RT_PARAM_INVALID, "EE1001: %s(%p): %s.", call, pointer,
                        was_freed(address) ? "this memory was freed before (double free)"
                        : inside           ? "this is not an address that the matching allocation returned"
                                           : "no allocation has this address");
        }
        block = found->second;
        state.live.erase(found);
        state.generation.fetch_add(1, std::memory_order_release);
        release_pages(address, block.end);
    }
    if (block.file >= 0) close(block.file);
    if (block.device >= 0) refund(block.device, block.charged);
    return 0;
}
}  // namespace

size_t hbm_limit() {
    static const size_t limit = [] {
        const char* text = std::getenv("CANN_EMULATOR_HBM_GB");
        if (!text || !*text) return size_t{64} << 30;
        char* end = nullptr;
        const double gigabytes = std::strtod(text, &end);
        return *end || !(gigabytes > 0) ? size_t{0} : static_cast<size_t>(gigabytes * (1ull << 30));
    }();
    return limit;
}

int charge(int device, size_t bytes, const char* what) {
    auto& hbm = memory().hbm[device];
    size_t used = hbm.used.load();
    do {
        if (bytes > hbm_limit() || used > hbm_limit() - bytes) {
            return fail(
                ACL_ERROR_RT_MEMORY_ALLOCATION,
                "EL0004: Failed to allocate memory. Possible Cause: Available memory is insufficient. %s of %zu "
                "bytes on device %d, %zu of %zu bytes are in use. Solution: Close applications not in use, or "
                "raise CANN_EMULATOR_HBM_GB.",
                what, bytes, device, used, hbm_limit());
        }
    } while (!hbm.used.compare_exchange_weak(used, used + bytes));
    size_t peak = hbm.peak.load();
    while (used + bytes > peak && !hbm.peak.compare_exchange_weak(peak, used + bytes)) {
    }
    return 0;
}

void refund(int device, size_t bytes) { memory().hbm[device].used.fetch_sub(bytes); }
size_t hbm_used(int device) { return memory().hbm[device].used; }
size_t hbm_peak(int device) { return memory().hbm[device].peak; }

void add_block(void* begin, size_t bytes, int device, Origin origin, size_t charged) {
    auto& state = memory();
    const auto address = reinterpret_cast<uintptr_t>(begin);
    std::unique_lock<std::shared_mutex> lock(state.mutex);
    state.live[address] = {address + bytes, device, origin, charged, -1};
    // Addresses that came back from the system are no longer freed ones.
    for (auto range = state.freed.lower_bound(address); range != state.freed.end() && range->first < address + bytes;) {
        range = state.freed.erase(range);
    }
}

bool take_block(void* begin, Origin origin, size_t* bytes, int* device, size_t* charged) {
    auto& state = memory();
    const auto address = reinterpret_cast<uintptr_t>(begin);
    std::unique_lock<std::shared_mutex> lock(state.mutex);
    const auto found = state.live.find(address);
    if (found == state.live.end() || found->second.origin != origin) return false;
    *bytes = found->second.end - address;
    *device = found->second.device;
    *charged = found->second.charged;
    state.live.erase(found);
    state.generation.fetch_add(1, std::memory_order_release);
    return true;
}

int share_block(void* pointer, size_t bytes, uintptr_t* begin) {
    auto& state = memory();
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    std::unique_lock<std::shared_mutex> lock(state.mutex);
    const auto constant = find_live(address);
    const auto found = constant == state.live.end() ? state.live.end() : state.live.find(constant->first);
    if (found == state.live.end() || found->second.origin != Origin::device || address + bytes > found->second.end) {
        fail(ACL_ERROR_RT_PARAM_INVALID, "EE1001: %p, %zu bytes: not inside one allocation of aclrtMalloc.", pointer,
             bytes);
        return -1;
    }
    *begin = found->first;
    Block& block = found->second;
    if (block.file >= 0) return block.file;
    const size_t size = block.end - found->first;
    const int file = memfd_create("cann-emulator", MFD_CLOEXEC);
    auto* const data = reinterpret_cast<char*>(found->first);
    bool copied = file >= 0 && ftruncate(file, static_cast<off_t>(size)) == 0;
    // Pages of zeros stay holes in the file.
    static const char zeros[4096] = {};
    for (size_t at = 0; copied && at < size; at += sizeof zeros) {
        if (std::memcmp(data + at, zeros, sizeof zeros) == 0) continue;
        copied = pwrite(file, data + at, sizeof zeros, static_cast<off_t>(at)) == sizeof zeros;
    }
    if (!copied || mmap(data, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
        if (file >= 0) close(file);
        fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "EL0004: no memory file of %zu bytes for sharing: %s.", size,
             std::strerror(errno));
        return -1;
    }
    return block.file = file;
}

bool find_block(const void* address, uintptr_t* begin, size_t* bytes, int* device, Origin* origin) {
    auto& state = memory();
    std::shared_lock<std::shared_mutex> lock(state.mutex);
    const auto found = find_live(reinterpret_cast<uintptr_t>(address));
    if (found == state.live.end()) return false;
    *begin = found->first;
    *bytes = found->second.end - found->first;
    *device = found->second.device;
    *origin = found->second.origin;
    return true;
}

Access check_access(const void* data, size_t bytes, int* device) {
    struct Remembered {
        uintptr_t begin = 0, end = 0;
        uint64_t generation = 0;
        int device = -1;
    };
    // A training step touches few segments again and again: each thread remembers some of them, by address.
    thread_local Remembered remembered[16];

    auto& state = memory();
    const auto begin = reinterpret_cast<uintptr_t>(data);
    const uintptr_t end = begin + bytes;
    Remembered& slot = remembered[(begin >> 21) & 15];
    const uint64_t generation = state.generation.load(std::memory_order_acquire);
    if (slot.generation == generation && begin >= slot.begin && end <= slot.end) {
        *device = slot.device;
        return Access::ok;
    }
    std::shared_lock<std::shared_mutex> lock(state.mutex);
    auto block = find_live(begin);
    if (block == state.live.end()) return was_freed(begin) ? Access::freed : Access::outside;
    Remembered found{block->first, block->second.end, generation, block->second.device};
    // Mapped chunks that follow each other are one piece of memory to their user.
    while (found.end < end) {
        ++block;
        if (block == state.live.end() || block->first != found.end || block->second.device != found.device) {
            return Access::outside;
        }
        found.end = block->second.end;
    }
    slot = found;
    *device = found.device;
    return Access::ok;
}

}  // namespace emu

using namespace emu;

namespace {
int malloc_device(void** pointer, size_t size) {
    if (!pointer || size == 0)
        return fail(ACL_ERROR_INVALID_PARAM, "EE1001: aclrtMalloc: size %zu or a null result.", size);
    *pointer = nullptr;
    int device = -1;
    if (const int error = need_device(&device)) return error;
    return allocate(pointer, size, device, Origin::device);
}

int malloc_host(void** pointer, size_t size) {
    if (!pointer || size == 0)
        return fail(ACL_ERROR_INVALID_PARAM, "EE1001: aclrtMallocHost: size %zu or a null result.", size);
    return allocate(pointer, size, -1, Origin::pinned);
}
}  // namespace

ACL_API int aclrtMalloc(void** pointer, size_t size, int) { return malloc_device(pointer, size); }
ACL_API int aclrtMallocAlign32(void** pointer, size_t size, int) { return malloc_device(pointer, size); }
ACL_API int aclrtFree(void* pointer) { return release(pointer, Origin::device, "aclrtFree"); }
ACL_API int aclrtMallocHost(void** pointer, size_t size) { return malloc_host(pointer, size); }
ACL_API int aclrtMallocHostWithCfg(void** pointer, uint64_t size, void*) { return malloc_host(pointer, size); }
ACL_API int aclrtFreeHost(void* pointer) { return release(pointer, Origin::pinned, "aclrtFreeHost"); }

ACL_API int aclrtGetMemInfo(int, size_t* free, size_t* total) {
    int device = -1;
    if (const int error = need_device(&device)) return error;
    *total = hbm_limit();
    *free = hbm_limit() - hbm_used(device);
    return 0;
}

struct aclrtMemUsageInfo {
    char name[32];
    uint64_t now;
    uint64_t peak;
    size_t reserved[8];
};

ACL_API int aclrtGetMemUsageInfo(int32_t device, aclrtMemUsageInfo* info, size_t capacity, size_t* count) {
    if (const int error = check_device(device)) return error;
    *count = 1;
    if (capacity == 0 || !info) return 0;
    *info = {};
    std::strcpy(info->name, "APP");
    info->now = hbm_used(device);
    info->peak = hbm_peak(device);
    return 0;
}

struct aclrtPtrAttributes {
    uint32_t device;
    int location;
    uint32_t page_size;
    uint32_t reserved[4];
};

ACL_API int aclrtPointerGetAttributes(const void* pointer, aclrtPtrAttributes* attributes) {
    *attributes = {};
    uintptr_t begin;
    size_t bytes;
    int device;
    Origin origin;
    if (!find_block(pointer, &begin, &bytes, &device, &origin)) {
        attributes->location = ACL_MEM_LOCATION_TYPE_UNREGISTERED;
        return 0;
    }
    attributes->location = device >= 0 ? ACL_MEM_LOCATION_TYPE_DEVICE : ACL_MEM_LOCATION_TYPE_HOST;
    attributes->device = device >= 0 ? static_cast<uint32_t>(device) : 0;
    attributes->page_size = static_cast<uint32_t>(sysconf(_SC_PAGESIZE));
    return 0;
}

// Host memory that its owner allocated: registering makes it known to checks and copies.
static int register_host(void* pointer, size_t size) {
    uintptr_t begin;
    size_t bytes;
    int device;
    Origin origin;
    if (!pointer || size == 0)
        return fail(ACL_ERROR_RT_PARAM_INVALID, "EE1001: aclrtHostRegister(%p, %zu).", pointer, size);
    if (find_block(pointer, &begin, &bytes, &device, &origin)) {
        return fail(ACL_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "EE1001: aclrtHostRegister(%p): already registered.",
                    pointer);
    }
    add_block(pointer, size, -1, Origin::registered, 0);
    return 0;
}

ACL_API int aclrtHostRegister(void* pointer, uint64_t size, int, void** device_pointer) {
    if (const int error = register_host(pointer, size)) return error;
    if (device_pointer) *device_pointer = pointer;
    return 0;
}
ACL_API int aclrtHostRegisterV2(void* pointer, uint64_t size, uint32_t) { return register_host(pointer, size); }

ACL_API int aclrtHostUnregister(void* pointer) {
    size_t bytes, charged;
    int device;
    if (take_block(pointer, Origin::registered, &bytes, &device, &charged)) return 0;
    return fail(ACL_ERROR_HOST_MEMORY_NOT_REGISTERED, "EE1001: aclrtHostUnregister(%p): not registered.", pointer);
}
