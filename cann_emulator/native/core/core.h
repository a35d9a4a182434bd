// What the emulated CANN libraries share: errors, device memory, streams, waiting, counters.
// Defined in libascendcl.so, used by libopapi.so, libhccl.so and libcann_bridge.so. The functions of CANN's own
// ABI are not here: they are `extern "C"` in the library that CANN keeps them in.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#define EMU_API __attribute__((visibility("default")))

namespace emu {

// ---- errors ---------------------------------------------------------------------------------------------------
// Sets the calling thread's last error and its message (what aclGetRecentErrMsg returns), and returns `code`, so
// that a refusal is one line: `return emu::fail(207001, "...")`. The message names the cause and the fix.
EMU_API int fail(int code, const char* format, ...) __attribute__((format(printf, 2, 3)));
// Like fail(), for text that is already put together.
EMU_API int fail_text(int code, const std::string& message);

// ---- settings -------------------------------------------------------------------------------------------------
EMU_API int device_count();           // after CANN_EMULATOR_DEVICES and ASCEND_RT_VISIBLE_DEVICES
EMU_API const std::string& soc_name();
// The calling thread's device, or -1 where none was set.
EMU_API int current_device();

// ---- device memory --------------------------------------------------------------------------------------------
enum class Access { ok, outside, freed };
// Whether [data, data + bytes) lies inside one live device or pinned-host allocation, and on which device
// (-1 for the host). Cheap enough to be asked of every tensor of every launch.
EMU_API Access check_access(const void* data, size_t bytes, int* device);

// ---- waiting --------------------------------------------------------------------------------------------------
// Lets other Python threads run while this scope blocks: gives up the GIL if the calling thread holds it.
class EMU_API GilPause {
public:
    GilPause();
    ~GilPause();
    GilPause(const GilPause&) = delete;
    GilPause& operator=(const GilPause&) = delete;
private:
    void* saved_;
};

// Work that was enqueued on a stream and runs elsewhere (a collective on its communicator's thread).
// Kernels and copies run at once in the calling thread; before that they wait for the stream's open fences.
class EMU_API Fence {
public:
    // Fences of one lane (not 0) are completed in the order of their turns, and fail from the first that fails: of
    // several on a stream only the last is kept.
    explicit Fence(uint64_t lane = 0, uint64_t turn = 0) : lane(lane), turn(turn) {}
    const uint64_t lane, turn;
    void complete(int status, std::string message = {});   // once; status is an aclError
    bool done() const { return done_.load(std::memory_order_acquire); }
    // Blocks (GIL given up) until done, or until `timeout_ms` passed (-1: for ever; then 107019 is returned).
    int wait(int64_t timeout_ms = -1);
    int status() const { return status_; }
    const std::string& message() const { return message_; }
    int64_t done_ns() const { return done_ns_; }           // when it was done, for event timing
private:
    std::atomic<bool> done_{false};
    std::mutex mutex_;
    std::condition_variable changed_;
    int status_ = 0;
    int64_t done_ns_ = 0;
    std::string message_;
};
using FencePtr = std::shared_ptr<Fence>;

// A null stream handle is the current device's default stream.
EMU_API void stream_add_fence(void* stream, FencePtr fence);
// The fences that are still open on the stream (for work that must start after them).
EMU_API std::vector<FencePtr> stream_fences(void* stream);
// Waits for every open fence of the stream; the first failure is left as the thread's error and returned.
EMU_API int stream_drain(void* stream);
EMU_API int stream_device(void* stream);
EMU_API int stream_id(void* stream);

// ---- counters and trace ---------------------------------------------------------------------------------------
enum class Kind : int { kernel, copy, collective };
// An id for a name, for ever the same in this process; take it once, outside the hot path.
EMU_API int counter_id(Kind kind, const char* name);
EMU_API int64_t now_ns();             // CLOCK_MONOTONIC
// Counts one finished launch and, while CANN_EMULATOR_TRACE is set, adds it to the trace.
EMU_API void record(int counter, int device, int stream, int64_t start_ns, int64_t end_ns, int64_t bytes);

}  // namespace emu
