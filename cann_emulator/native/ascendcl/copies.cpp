// Copies and fills. They run at once, after what is still open on their stream; both ends are checked when they are
// device memory, so a copy past the end of an allocation is an error and not damage.
#include <array>
#include <cstring>
#include <optional>

#include "runtime.h"

namespace emu {
namespace {
// By aclrtMemcpyKind: what it is counted as, and which ends must be device memory.
struct Direction {
    const char* name;
    bool to_device, from_device;
};
constexpr Direction directions[] = {
    {"memcpy H2H", false, false}, {"memcpy H2D", true, false}, {"memcpy D2H", false, true},
    {"memcpy D2D", true, true},   {"memcpy", false, false},    // ACL_MEMCPY_DEFAULT: the addresses say
    {"memcpy H2D", true, false},                               // through a buffer
    {"memcpy D2D", true, true},   {"memcpy D2D", true, true},  // within a device, between devices
};
constexpr size_t worth_a_pause = 4 << 20;  // from here on other Python threads may run during a copy
constexpr int kinds = sizeof directions / sizeof *directions;

int counter_of(int kind) {
    static const auto ids = [] {
        std::array<int, kinds> made{};
        for (int i = 0; i < kinds; ++i) made[i] = counter_id(Kind::copy, directions[i].name);
        return made;
    }();
    return ids[kind];
}

const char* trouble(Access access) {
    return access == Access::freed ? "was freed (use after free)" : "is not inside one device allocation";
}

// Whether the range may be used: device memory in whole, or memory that the emulator knows nothing of, which a kind
// that names the device does not allow.
int check_end(const char* call, const char* end, const void* data, size_t bytes, bool must_be_device) {
    int device = -1;
    const Access access = check_access(data, bytes, &device);
    if (access == Access::ok) return 0;
    uintptr_t begin;
    size_t size;
    Origin origin;
    const bool known = find_block(data, &begin, &size, &device, &origin);
    // A host range may be larger than the piece of it that was registered.
    if (known && origin == Origin::registered) return 0;
    if (!known && access == Access::outside && !must_be_device) return 0;
    return fail(ACL_ERROR_RT_PARAM_INVALID, "EE1001: %s: the %s, %zu bytes at %p, %s.", call, end, bytes, data,
                trouble(access));
}

int copy(const char* call, void* to, size_t capacity, const void* from, size_t bytes, int kind, void* stream) {
    if (bytes == 0) return 0;
    if (kind < 0 || kind >= kinds)
        return fail(ACL_ERROR_INVALID_PARAM, "EE1001: %s: %d is no kind of copy.", call, kind);
    if (!to || !from) return fail(ACL_ERROR_INVALID_PARAM, "EE1001: %s: a null pointer, %p from %p.", call, to, from);
    if (bytes > capacity) {
        return fail(ACL_ERROR_INVALID_PARAM, "EE1001: %s: %zu bytes do not fit into %zu.", call, bytes, capacity);
    }
    if (const int error = check_end(call, "destination", to, bytes, directions[kind].to_device)) return error;
    if (const int error = check_end(call, "source", from, bytes, directions[kind].from_device)) return error;
    if (const int error = stream_drain(stream)) return error;
    const int64_t start = now_ns();
    {
        std::optional<GilPause> pause;
        if (bytes >= worth_a_pause) pause.emplace();
        std::memmove(to, from, bytes);
    }
    record(counter_of(kind), current_device(), stream_id(stream), start, now_ns(), static_cast<int64_t>(bytes));
    return 0;
}

int fill_memory(const char* call, void* data, size_t capacity, int32_t value, size_t bytes, void* stream) {
    if (bytes == 0) return 0;
    if (bytes > capacity) {
        return fail(ACL_ERROR_INVALID_PARAM, "EE1001: %s: %zu bytes do not fit into %zu.", call, bytes, capacity);
    }
    if (const int error = check_end(call, "destination", data, bytes, true)) return error;
    if (const int error = stream_drain(stream)) return error;
    const int64_t start = now_ns();
    std::memset(data, value, bytes);
    static const int counter = counter_id(Kind::copy, "memset");
    record(counter, current_device(), stream_id(stream), start, now_ns(), static_cast<int64_t>(bytes));
    return 0;
}

int copy_batch(const char* call, void** to, size_t* capacities, void** from, size_t* sizes, size_t count,
               size_t* failed, void* stream) {
    for (size_t i = 0; i < count; ++i) {
        if (const int error = copy(call, to[i], capacities[i], from[i], sizes[i], ACL_MEMCPY_DEFAULT, stream)) {
            if (failed) *failed = i;
            return error;
        }
    }
    return 0;
}
}  // namespace
}  // namespace emu

using namespace emu;

ACL_API int aclrtMemcpy(void* to, size_t capacity, const void* from, size_t bytes, int kind) {
    return copy("aclrtMemcpy", to, capacity, from, bytes, kind, nullptr);
}

ACL_API int aclrtMemcpyAsync(void* to, size_t capacity, const void* from, size_t bytes, int kind, void* stream) {
    return copy("aclrtMemcpyAsync", to, capacity, from, bytes, kind, stream);
}

ACL_API int aclrtMemcpyAsyncWithCondition(void* to, size_t capacity, const void* from, size_t bytes, int kind,
                                          void* stream) {
    return copy("aclrtMemcpyAsyncWithCondition", to, capacity, from, bytes, kind, stream);
}

ACL_API int aclrtMemcpyBatch(void** to, size_t* capacities, void** from, size_t* sizes, size_t count, void*, size_t*,
                             size_t, size_t* failed) {
    return copy_batch("aclrtMemcpyBatch", to, capacities, from, sizes, count, failed, nullptr);
}

ACL_API int aclrtMemcpyBatchAsync(void** to, size_t* capacities, void** from, size_t* sizes, size_t count, void*,
                                  size_t*, size_t, size_t* failed, void* stream) {
    return copy_batch("aclrtMemcpyBatchAsync", to, capacities, from, sizes, count, failed, stream);
}

ACL_API int aclrtMemset(void* data, size_t capacity, int32_t value, size_t bytes) {
    return fill_memory("aclrtMemset", data, capacity, value, bytes, nullptr);
}

ACL_API int aclrtMemsetAsync(void* data, size_t capacity, int32_t value, size_t bytes, void* stream) {
    return fill_memory("aclrtMemsetAsync", data, capacity, value, bytes, stream);
}

// Cache maintenance is a hint.
ACL_API int aclrtCmoAsync(void*, size_t, int, void* stream) { return find_stream(stream) ? 0 : last_error_code(); }
