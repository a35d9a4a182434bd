// Streams: kernels and copies run at once in the calling thread, so a stream is the list of what is still running
// elsewhere (fences), and everything that is put on it next waits for those first.
#include <algorithm>
#include <cstring>

#include "runtime.h"

namespace emu {

// The streams of a device are a fixed pool, as on hardware; slots are reused and never given back to the system, so a
// stale handle can always be looked at.
constexpr int streams_of_device = 1984;

struct Stream {
    std::mutex mutex;
    std::vector<FencePtr> fences;
    std::atomic<int> open{0};  // fences.size(), readable without the lock
    std::atomic<bool> live{false};
    int device = 0;
    int id = 0;
    uint32_t priority = 0;
    uint32_t flags = 0;
    int64_t attributes[8] = {};
};

namespace {
struct Pool {
    std::mutex mutex;
    std::atomic<Stream*> slots{nullptr};  // [0] is the default stream; read without the lock
    std::vector<int> unused;
    int made = 1;
};

std::vector<Pool>& pools() {
    static auto& instance = *new std::vector<Pool>(std::max(device_count(), 1));
    return instance;
}

Pool& pool_of(int device) {
    Pool& pool = pools()[device];
    std::lock_guard<std::mutex> lock(pool.mutex);
    if (!pool.slots) {
        auto* slots = new Stream[streams_of_device + 1];
        for (int i = 0; i <= streams_of_device; ++i) {
            slots[i].device = device;
            slots[i].id = i;
        }
        slots[0].live = true;
        pool.slots = slots;
    }
    return pool;
}

int create_stream(void** handle, uint32_t priority, uint32_t flags) {
    int device = -1;
    if (const int error = need_device(&device)) return error;
    Pool& pool = pool_of(device);
    std::lock_guard<std::mutex> lock(pool.mutex);
    int slot = -1;
    if (!pool.unused.empty()) {
        slot = pool.unused.back();
        pool.unused.pop_back();
    } else if (pool.made <= streams_of_device) {
        slot = pool.made++;
    } else {
        return fail(
            ACL_ERROR_RT_NO_STREAM_RESOURCE,
            "EE9999: device %d has no free stream: all %d are in use. Destroy streams, or capture fewer graphs.",
            device, streams_of_device);
    }
    Stream& stream = pool.slots.load()[slot];
    stream.priority = priority;
    stream.flags = flags;
    stream.live = true;
    *handle = &stream;
    return 0;
}

// Takes out what is done; the first failure among it is left as the thread's error and returned.
int collect(Stream& stream) {
    std::lock_guard<std::mutex> lock(stream.mutex);
    int status = 0;
    auto& fences = stream.fences;
    fences.erase(std::remove_if(fences.begin(), fences.end(),
                                [&](const FencePtr& fence) {
                                    if (!fence->done()) return false;
                                    if (!status && fence->status())
                                        status = fail_text(fence->status(), fence->message());
                                    return true;
                                }),
                 fences.end());
    stream.open = static_cast<int>(fences.size());
    return status;
}

std::vector<FencePtr> open_fences(Stream& stream) {
    std::lock_guard<std::mutex> lock(stream.mutex);
    return stream.fences;
}

// timeout_ms < 0: for ever.
int drain(Stream& stream, int64_t timeout_ms) {
    if (stream.open.load(std::memory_order_acquire) == 0) return 0;
    const int64_t deadline = now_ns() + timeout_ms * 1000000;
    int status = 0;
    for (const FencePtr& fence : open_fences(stream)) {
        const int64_t left = timeout_ms < 0 ? -1 : std::max<int64_t>(0, (deadline - now_ns()) / 1000000);
        fence->wait(left);
        if (!fence->done()) {
            return fail(ACL_ERROR_RT_STREAM_SYNC_TIMEOUT,
                        "EE9999: stream %d of device %d did not finish within %ld ms.", stream.id, stream.device,
                        static_cast<long>(timeout_ms));
        }
        if (!status && fence->status()) status = fail_text(fence->status(), fence->message());
    }
    const int collected = collect(stream);
    return status ? status : collected;
}

template <typename Visit>
void each_stream(int device, Visit&& visit) {
    Pool& pool = pool_of(device);
    int made;
    {
        std::lock_guard<std::mutex> lock(pool.mutex);
        made = pool.made;
    }
    for (int i = 0; i < made; ++i) {
        Stream& stream = pool.slots.load()[i];
        if (stream.live) visit(stream);
    }
}

int bad_stream(const void* handle) {
    return fail(ACL_ERROR_RT_STREAM_CONTEXT, "EE1001: %p is not a live stream: it was destroyed, or never created.",
                handle);
}
}  // namespace

Stream* find_stream(void* handle) {
    if (in_forked_child()) {
        refuse_fork();
        return nullptr;
    }
    if (!handle) {
        int device = -1;
        if (need_device(&device)) return nullptr;
        return pool_of(device).slots.load();
    }
    for (Pool& pool : pools()) {
        const auto begin = reinterpret_cast<uintptr_t>(pool.slots.load());
        const auto offset = reinterpret_cast<uintptr_t>(handle) - begin;
        if (!begin || offset >= (streams_of_device + 1) * sizeof(Stream) || offset % sizeof(Stream)) continue;
        auto* stream = static_cast<Stream*>(handle);
        if (stream->live) return stream;
        break;
    }
    bad_stream(handle);
    return nullptr;
}

void stream_add_fence(void* handle, FencePtr fence) {
    Stream* stream = find_stream(handle);
    if (!stream) return;
    std::lock_guard<std::mutex> lock(stream->mutex);
    // A stream that only carries collectives is hardly ever drained: what is done must not pile up.
    auto& fences = stream->fences;
    fences.erase(std::remove_if(fences.begin(), fences.end(),
                                [](const FencePtr& each) { return each->done() && !each->status(); }),
                 fences.end());
    // Streams that wait for each other's events hand the same fences back and forth.
    const auto same = std::find_if(fences.begin(), fences.end(), [&](const FencePtr& each) {
        return each == fence || (fence->lane && each->lane == fence->lane);
    });
    if (same == fences.end())
        fences.push_back(std::move(fence));
    else if ((*same)->turn < fence->turn)
        *same = std::move(fence);
    stream->open = static_cast<int>(fences.size());
}

std::vector<FencePtr> stream_fences(void* handle) {
    Stream* stream = find_stream(handle);
    if (!stream || stream->open == 0) return {};
    std::vector<FencePtr> open;
    for (FencePtr& fence : open_fences(*stream)) {
        if (!fence->done() || fence->status()) open.push_back(std::move(fence));
    }
    return open;
}

int stream_drain(void* handle) {
    Stream* stream = find_stream(handle);
    return stream ? drain(*stream, -1) : last_error_code();
}

int stream_device(void* handle) {
    const Stream* stream = find_stream(handle);
    return stream ? stream->device : -1;
}

int stream_id(void* handle) {
    const Stream* stream = find_stream(handle);
    return stream ? stream->id : -1;
}

int drain_all(int device, int64_t timeout_ms) {
    int status = 0;
    each_stream(device, [&](Stream& stream) {
        const int error = drain(stream, timeout_ms);
        if (!status) status = error;
    });
    return status;
}

}  // namespace emu

using namespace emu;

// Looks up a handle, or leaves the function with the error.
#define FIND_STREAM(stream, handle)             \
    Stream* const stream = find_stream(handle); \
    if (!stream) return last_error_code()

ACL_API int aclrtCreateStream(void** handle) { return create_stream(handle, 0, 0); }
ACL_API int aclrtCreateStreamWithConfig(void** handle, uint32_t priority, uint32_t flags) {
    return create_stream(handle, priority, flags);
}

ACL_API int aclrtDestroyStreamForce(void* handle) {
    FIND_STREAM(stream, handle);
    if (stream->id == 0) return bad_stream(handle);
    {
        std::lock_guard<std::mutex> lock(stream->mutex);
        stream->fences.clear();
        stream->open = 0;
    }
    Pool& pool = pool_of(stream->device);
    std::lock_guard<std::mutex> lock(pool.mutex);
    stream->live = false;
    std::fill(std::begin(stream->attributes), std::end(stream->attributes), 0);
    pool.unused.push_back(stream->id);
    return 0;
}

ACL_API int aclrtDestroyStream(void* handle) {
    FIND_STREAM(stream, handle);
    drain(*stream, -1);
    return aclrtDestroyStreamForce(handle);
}

ACL_API int aclrtSynchronizeStreamWithTimeout(void* handle, int32_t timeout_ms) {
    FIND_STREAM(stream, handle);
    return drain(*stream, timeout_ms);
}
ACL_API int aclrtSynchronizeStream(void* handle) { return aclrtSynchronizeStreamWithTimeout(handle, -1); }

ACL_API int aclrtSynchronizeDeviceWithTimeout(int32_t timeout_ms) {
    int device = -1;
    if (const int error = need_device(&device)) return error;
    return drain_all(device, timeout_ms);
}
ACL_API int aclrtSynchronizeDevice() { return aclrtSynchronizeDeviceWithTimeout(-1); }

ACL_API int aclrtStreamQuery(void* handle, int* status) {
    FIND_STREAM(stream, handle);
    const int error = collect(*stream);
    *status = stream->open ? ACL_STREAM_STATUS_NOT_READY : ACL_STREAM_STATUS_COMPLETE;
    return error;
}

ACL_API int aclrtStreamGetId(void* handle, int32_t* id) {
    FIND_STREAM(stream, handle);
    *id = stream->id;
    return 0;
}

ACL_API int aclrtSetStreamAttribute(void* handle, int attribute, const void* value) {
    FIND_STREAM(stream, handle);
    if (attribute < 0 || attribute >= 8 || !value) {
        return fail(ACL_ERROR_INVALID_PARAM, "aclrtSetStreamAttribute: unknown attribute %d.", attribute);
    }
    uint32_t low = 0;
    std::memcpy(&low, value, sizeof low);
    stream->attributes[attribute] = low;
    return 0;
}

ACL_API int aclrtSetStreamFailureMode(void* handle, uint64_t) {
    FIND_STREAM(stream, handle);
    (void)stream;  // a failed launch is reported by the call itself: both modes behave alike
    return 0;
}

ACL_API int aclrtSetStreamOverflowSwitch(void* handle, uint32_t flag) {
    FIND_STREAM(stream, handle);
    stream->attributes[0] = flag;
    return 0;
}

ACL_API int aclrtGetStreamOverflowSwitch(void* handle, uint32_t* flag) {
    FIND_STREAM(stream, handle);
    *flag = static_cast<uint32_t>(stream->attributes[0]);
    return 0;
}

ACL_API int aclrtDeviceTaskAbort(int32_t device, uint32_t) {
    if (const int error = check_device(device)) return error;
    each_stream(device, [](Stream& stream) {
        std::lock_guard<std::mutex> lock(stream.mutex);
        stream.fences.clear();
        stream.open = 0;
    });
    return 0;
}
