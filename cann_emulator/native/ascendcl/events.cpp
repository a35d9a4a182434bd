// Events: a point on a stream, that is its time and the fences which were open there.
#include <algorithm>
#include <cstdio>
#include <deque>

#include "runtime.h"
#include "shared_point.h"

namespace emu {
namespace {
struct Event {
    bool live = false;
    bool recorded = false;
    uint32_t flags = 0;
    int64_t at_ns = 0;
    std::vector<FencePtr> fences;
    std::shared_ptr<SharedPoint> shared;  // of an event that other processes see, or that another process owns
    bool foreign = false;
};

// Events are reused and never given back to the system, so a stale handle can always be looked at.
struct Events {
    std::mutex mutex;  // also guards what is in the events
    std::deque<Event> all;
    std::vector<Event*> unused;
    std::vector<Event*> sorted;  // addresses of all, ascending
};

Events& events() {
    static Events& instance = *new Events;
    return instance;
}

// The caller holds the lock.
Event* find_event(void* handle) {
    const auto& sorted = events().sorted;
    auto* event = static_cast<Event*>(handle);
    if (std::binary_search(sorted.begin(), sorted.end(), event, std::less<Event*>()) && event->live) return event;
    fail(ACL_ERROR_RT_PARAM_INVALID, "EE1001: %p is not a live event: it was destroyed, or never created.", handle);
    return nullptr;
}

int create_event(void** handle, uint32_t flags) {
    auto& state = events();
    std::lock_guard<std::mutex> lock(state.mutex);
    if (state.unused.empty()) {
        state.all.emplace_back();
        Event* made = &state.all.back();
        state.sorted.insert(std::upper_bound(state.sorted.begin(), state.sorted.end(), made, std::less<Event*>()),
                            made);
        state.unused.push_back(made);
    }
    Event* event = state.unused.back();
    state.unused.pop_back();
    *event = Event{};
    event->live = true;
    event->flags = flags;
    *handle = event;
    return 0;
}

bool complete(const Event& event) {
    if (event.foreign) return event.shared->reached();
    return std::all_of(event.fences.begin(), event.fences.end(), [](const FencePtr& fence) { return fence->done(); });
}

// What has to be done before the event is reached.
std::vector<FencePtr> fences_of(const Event& event) {
    if (!event.foreign) return event.fences;
    return event.shared->reached() ? std::vector<FencePtr>{} : std::vector<FencePtr>{event.shared->fence()};
}

// When the stream passed the event: at the record, or when the last of the work before it was done.
int64_t time_of(const Event& event) {
    int64_t at = event.at_ns;
    for (const FencePtr& fence : event.fences) at = std::max(at, fence->done_ns());
    return at;
}
}  // namespace
}  // namespace emu

using namespace emu;

ACL_API int aclrtCreateEvent(void** handle) { return create_event(handle, 0); }
ACL_API int aclrtCreateEventWithFlag(void** handle, uint32_t flags) { return create_event(handle, flags); }
ACL_API int aclrtCreateEventExWithFlag(void** handle, uint32_t flags) { return create_event(handle, flags); }

ACL_API int aclrtDestroyEvent(void* handle) {
    auto& state = events();
    std::lock_guard<std::mutex> lock(state.mutex);
    Event* event = find_event(handle);
    if (!event) return ACL_ERROR_RT_PARAM_INVALID;
    *event = Event{};
    state.unused.push_back(event);
    return 0;
}

ACL_API int aclrtRecordEvent(void* handle, void* stream) {
    if (!find_stream(stream)) return last_error_code();
    auto fences = stream_fences(stream);
    std::lock_guard<std::mutex> lock(events().mutex);
    Event* event = find_event(handle);
    if (!event) return ACL_ERROR_RT_PARAM_INVALID;
    event->recorded = true;
    event->at_ns = now_ns();
    if (event->shared) event->shared->record(fences);
    event->fences = std::move(fences);
    return 0;
}

ACL_API int aclrtResetEvent(void* handle, void* stream) {
    if (!find_stream(stream)) return last_error_code();
    std::lock_guard<std::mutex> lock(events().mutex);
    Event* event = find_event(handle);
    if (!event) return ACL_ERROR_RT_PARAM_INVALID;
    event->recorded = false;
    event->fences.clear();
    return 0;
}

ACL_API int aclrtStreamWaitEvent(void* stream, void* handle) {
    if (!find_stream(stream)) return last_error_code();
    std::vector<FencePtr> fences;
    {
        std::lock_guard<std::mutex> lock(events().mutex);
        Event* event = find_event(handle);
        if (!event) return ACL_ERROR_RT_PARAM_INVALID;
        fences = fences_of(*event);
    }
    for (FencePtr& fence : fences) {
        if (!fence->done() || fence->status()) stream_add_fence(stream, std::move(fence));
    }
    return 0;
}

ACL_API int aclrtSynchronizeEventWithTimeout(void* handle, int32_t timeout_ms) {
    std::vector<FencePtr> fences;
    {
        std::lock_guard<std::mutex> lock(events().mutex);
        Event* event = find_event(handle);
        if (!event) return ACL_ERROR_RT_PARAM_INVALID;
        fences = fences_of(*event);
    }
    const int64_t deadline = now_ns() + timeout_ms * int64_t{1000000};
    for (const FencePtr& fence : fences) {
        fence->wait(timeout_ms < 0 ? -1 : std::max<int64_t>(0, (deadline - now_ns()) / 1000000));
        if (!fence->done()) {
            return fail(ACL_ERROR_RT_EVENT_SYNC_TIMEOUT, "EE9999: the event was not reached within %d ms.", timeout_ms);
        }
        if (fence->status()) return fail_text(fence->status(), fence->message());
    }
    return 0;
}
ACL_API int aclrtSynchronizeEvent(void* handle) { return aclrtSynchronizeEventWithTimeout(handle, -1); }

ACL_API int aclrtQueryEventStatus(void* handle, int* status) {
    std::lock_guard<std::mutex> lock(events().mutex);
    const Event* event = find_event(handle);
    if (!event) return ACL_ERROR_RT_PARAM_INVALID;
    *status = complete(*event) ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
    return 0;
}

ACL_API int aclrtQueryEventWaitStatus(void* handle, int* status) {
    std::lock_guard<std::mutex> lock(events().mutex);
    const Event* event = find_event(handle);
    if (!event) return ACL_ERROR_RT_PARAM_INVALID;
    *status = complete(*event) ? ACL_EVENT_WAIT_STATUS_COMPLETE : ACL_EVENT_WAIT_STATUS_NOT_READY;
    return 0;
}

ACL_API int aclrtEventElapsedTime(float* ms, void* start, void* end) {
    std::lock_guard<std::mutex> lock(events().mutex);
    const Event* first = find_event(start);
    const Event* last = first ? find_event(end) : nullptr;
    if (!last) return ACL_ERROR_RT_PARAM_INVALID;
    if (!first->recorded || !last->recorded || !complete(*first) || !complete(*last)) {
        return fail(ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID,
                    "EE1001: the elapsed time needs two events that were recorded and reached.");
    }
    *ms = static_cast<float>(time_of(*last) - time_of(*first)) / 1e6f;
    return 0;
}

ACL_API int aclrtEventGetTimestamp(void* handle, uint64_t* timestamp) {
    std::lock_guard<std::mutex> lock(events().mutex);
    const Event* event = find_event(handle);
    if (!event) return ACL_ERROR_RT_PARAM_INVALID;
    if (!event->recorded || !complete(*event)) {
        return fail(ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID, "EE1001: the event was not recorded, or is not reached yet.");
    }
    *timestamp = static_cast<uint64_t>(time_of(*event) / 1000);
    return 0;
}

struct aclrtIpcEventHandle {
    char name[64];
};

ACL_API int aclrtIpcGetEventHandle(void* handle, aclrtIpcEventHandle* out) {
    std::lock_guard<std::mutex> lock(events().mutex);
    Event* event = find_event(handle);
    if (!event) return ACL_ERROR_RT_PARAM_INVALID;
    if (!event->shared) {
        event->shared = SharedPoint::create();
        if (!event->shared) return last_error_code();
        if (event->recorded) event->shared->record(event->fences);
    }
    *out = {};
    std::snprintf(out->name, sizeof out->name, "%s", event->shared->name().c_str());
    return 0;
}

ACL_API int aclrtIpcOpenEventHandle(aclrtIpcEventHandle handle, void** event) {
    auto shared = SharedPoint::open(handle.name);
    if (!shared) return last_error_code();
    if (const int error = create_event(event, 0)) return error;
    std::lock_guard<std::mutex> lock(events().mutex);
    auto* opened = static_cast<Event*>(*event);
    opened->shared = std::move(shared);
    opened->foreign = true;
    return 0;
}
