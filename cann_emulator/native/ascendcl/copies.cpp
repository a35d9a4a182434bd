// Copies and fills. They run at once, after what is still open on their stream; both ends are checked when they are
// device memory, so a copy past the end of an allocation is an error and not damage.
#include <cstring>

#include "runtime.h"

namespace emu {
namespace {
enum Counted { host_to_host, host_to_device, device_to_host, device_to_device, fill };

int counter_of(int counted) {
    static const int ids[] = {
        counter_id(Kind::copy, "memcpy H2H"), counter_id(Kind::copy, "memcpy H2D"), counter_id(Kind::copy, "memcpy D2H"),
        counter_id(Kind::copy, "memcpy D2D"), counter_id(Kind::copy, "memset"),
    };
    return ids[counted];
}

const char* trouble(Access access) {
    return access == Access::freed ? "was freed (use after free)" : "is not inside one device allocation";
}

// Whether the range may be used: device memory in whole, or memory that the emulator knows nothing of, which a kind that
// names the device does not allow.
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
    return fail(ACL_ERROR_RT_PARAM_INVALID, "EE1001: %s: the %s, %zu bytes at %p, %s.", call, end, bytes, data, trouble(access));
}

int copy(const char* call, void* to, size_t capacity, const void* from, size_t bytes, int kind, void* stream) {
    if (bytes == 0) return 0;
    if (!to || !from) return fail(ACL_ERROR_INVALID_PARAM, "EE1001: %s: a null pointer, %p from %p.", call, to, from);
    if (bytes > capacity) {
        return fail(ACL_ERROR_INVALID_PARAM, "EE1001: %s: %zu bytes do not fit into %zu.", call, bytes, capacity);
    }
    const bool to_device = kind == ACL_MEMCPY_HOST_TO_DEVICE || (kind != ACL_MEMCPY_DEFAULT && kind >= ACL_MEMCPY_DEVICE_TO_DEVICE);
    const bool from_device = kind == ACL_MEMCPY_DEVICE_TO_HOST || (kind != ACL_MEMCPY_DEFAULT && kind >= ACL_MEMCPY_DEVICE_TO_DEVICE);
    if (const int error = check_end(call, "destination", to, bytes, to_device)) return error;
    if (const int error = check_end(call, "source", from, bytes, from_device && kind < 5)) return error;
    if (const int error = stream_drain(stream)) return error;
    const int64_t start = now_ns();
    {
        // A large copy lets other Python threads run.
        if (bytes >= (4u << 20)) {
            GilPause pause;
            std::memmove(to, from, bytes);
        } else {
            std::memmove(to, from, bytes);
        }
    }
    record(counter_of(kind >= 0 && kind < 4 ? kind : device_to_device), current_device(), stream_id(stream), start, now_ns(),
           static_cast<int64_t>(bytes));
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
    record(counter_of(fill), current_device(), stream_id(stream), start, now_ns(), static_cast<int64_t>(bytes));
    return 0;
}

int copy_batch(const char* call, void** to, size_t* capacities, void** from, size_t* sizes, size_t count, size_t* failed,
               void* stream) {
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

ACL_API int aclrtMemcpyAsyncWithCondition(void* to, size_t capacity, const void* from, size_t bytes, int kind, void* stream) {
    return copy("aclrtMemcpyAsyncWithCondition", to, capacity, from, bytes, kind, stream);
}

ACL_API int aclrtMemcpyBatch(void** to, size_t* capacities, void** from, size_t* sizes, size_t count, void*, size_t*, size_t,
                             size_t* failed) {
    return copy_batch("aclrtMemcpyBatch", to, capacities, from, sizes, count, failed, nullptr);
}

ACL_API int aclrtMemcpyBatchAsync(void** to, size_t* capacities, void** from, size_t* sizes, size_t count, void*, size_t*,
                                  size_t, size_t* failed, void* stream) {
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
