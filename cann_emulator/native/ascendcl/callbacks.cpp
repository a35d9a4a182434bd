// Host functions on streams: callbacks that a subscribed thread fetches, host functions that the runtime itself runs,
// and waiting for or writing a value in device memory.
#include <chrono>
#include <deque>
#include <map>
#include <thread>

#include "runtime.h"

namespace emu {
namespace {
struct Callback {
    void (*function)(void*);
    void* argument;
    std::vector<FencePtr> before;
    FencePtr after;  // null where the stream does not wait for the callback
};

// One queue per subscribed thread.
struct Reports {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<uint64_t, std::deque<Callback>> queues;
    std::map<void*, uint64_t> thread_of;
};

Reports& reports() {
    static Reports& instance = *new Reports;
    return instance;
}

int wait_all(const std::vector<FencePtr>& fences) {
    int status = 0;
    for (const FencePtr& fence : fences) {
        const int error = fence->wait();
        if (!status) status = error;
    }
    return status;
}

// Runs `work` after what is on the stream, and makes what comes next on the stream wait for it.
template <typename Work>
int run_on_stream(void* stream, Work work) {
    auto before = stream_fences(stream);
    if (before.empty() && work()) return 0;  // the usual case: nothing to wait for
    auto after = std::make_shared<Fence>();
    stream_add_fence(stream, after);
    std::thread([before = std::move(before), after, work]() mutable {
        wait_all(before);
        while (!work()) std::this_thread::sleep_for(std::chrono::microseconds(200));
        after->complete(0);
    }).detach();
    return 0;
}

bool holds(const volatile uint64_t* address, uint64_t value, uint32_t flag) {
    const uint64_t now = __atomic_load_n(address, __ATOMIC_ACQUIRE);
    switch (flag) {
        case ACL_STREAM_WAIT_VALUE_GEQ: return static_cast<int64_t>(now - value) >= 0;
        case ACL_STREAM_WAIT_VALUE_EQ: return now == value;
        case ACL_STREAM_WAIT_VALUE_AND: return (now & value) != 0;
        default: return ~(now | value) != 0;
    }
}

int check_word(const char* call, const void* address) {
    int device = -1;
    if (check_access(address, 8, &device) == Access::ok) return 0;
    return fail(ACL_ERROR_RT_PARAM_INVALID, "EE1001: %s(%p): not device memory.", call, address);
}
}  // namespace
}  // namespace emu

using namespace emu;

ACL_API int aclrtSubscribeReport(uint64_t thread, void* stream) {
    if (!find_stream(stream)) return last_error_code();
    std::lock_guard<std::mutex> lock(reports().mutex);
    reports().queues[thread];
    reports().thread_of[stream] = thread;
    return 0;
}

ACL_API int aclrtUnSubscribeReport(uint64_t thread, void* stream) {
    std::lock_guard<std::mutex> lock(reports().mutex);
    const auto found = reports().thread_of.find(stream);
    if (found == reports().thread_of.end() || found->second != thread) {
        return fail(ACL_ERROR_RT_STREAM_NO_CB_REG, "EE1001: the stream %p has no thread subscribed.", stream);
    }
    reports().thread_of.erase(found);
    return 0;
}

ACL_API int aclrtLaunchCallback(void (*function)(void*), void* argument, int block, void* stream) {
    if (!find_stream(stream)) return last_error_code();
    Callback callback{function, argument, stream_fences(stream), nullptr};
    if (block == ACL_CALLBACK_BLOCK) callback.after = std::make_shared<Fence>();
    FencePtr after = callback.after;
    {
        std::lock_guard<std::mutex> lock(reports().mutex);
        const auto found = reports().thread_of.find(stream);
        if (found == reports().thread_of.end()) {
            return fail(ACL_ERROR_RT_STREAM_NO_CB_REG,
                        "EE1001: no thread is subscribed to the stream %p: call aclrtSubscribeReport first.", stream);
        }
        reports().queues[found->second].push_back(std::move(callback));
    }
    if (after) stream_add_fence(stream, after);
    reports().changed.notify_all();
    return 0;
}

ACL_API int aclrtProcessReport(int32_t timeout_ms) {
    GilPause pause;
    auto& state = reports();
    const auto thread = static_cast<uint64_t>(pthread_self());
    std::unique_lock<std::mutex> lock(state.mutex);
    const auto queue = state.queues.find(thread);
    if (queue == state.queues.end()) {
        return fail(ACL_ERROR_RT_THREAD_SUBSCRIBE, "EE1001: this thread is not subscribed to any stream.");
    }
    const auto ready = [&] { return !queue->second.empty(); };
    if (timeout_ms < 0) {
        state.changed.wait(lock, ready);
    } else if (!state.changed.wait_for(lock, std::chrono::milliseconds(timeout_ms), ready)) {
        return ACL_ERROR_RT_REPORT_TIMEOUT;  // the usual answer: not left as the thread's error
    }
    Callback callback = std::move(queue->second.front());
    queue->second.pop_front();
    lock.unlock();
    wait_all(callback.before);
    callback.function(callback.argument);
    if (callback.after) callback.after->complete(0);
    return 0;
}

ACL_API int aclrtLaunchHostFunc(void* stream, void (*function)(void*), void* argument) {
    if (!find_stream(stream)) return last_error_code();
    return run_on_stream(stream, [=] {
        function(argument);
        return true;
    });
}

ACL_API int aclrtValueWrite(void* address, uint64_t value, uint32_t, void* stream) {
    if (const int error = check_word("aclrtValueWrite", address)) return error;
    if (!find_stream(stream)) return last_error_code();
    return run_on_stream(stream, [=] {
        __atomic_store_n(static_cast<uint64_t*>(address), value, __ATOMIC_RELEASE);
        return true;
    });
}

ACL_API int aclrtValueWait(void* address, uint64_t value, uint32_t flag, void* stream) {
    if (const int error = check_word("aclrtValueWait", address)) return error;
    if (!find_stream(stream)) return last_error_code();
    return run_on_stream(stream, [=] { return holds(static_cast<const uint64_t*>(address), value, flag); });
}
