// When something is done: a point on a device's stream, or what a thread of the host announces.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "failure.h"

namespace npu {

struct Stream;

class Completion : public std::enable_shared_from_this<Completion> {
public:
    using Ptr = std::shared_ptr<Completion>;
    using Outcome = std::optional<Failure>;  // empty: success
    using Callback = std::function<void(const Outcome&)>;

    // Done from the start.
    static const Ptr& done();
    static Ptr failed(Failure failure);
    // Done when finish() is called.
    static Ptr pending();
    // Done when the stream has done all that is on it now. `keep` lives until then.
    static Ptr recorded(Stream& stream, std::vector<std::shared_ptr<void>> keep = {});

    explicit Completion(Stream* stream = nullptr) : stream_(stream) {}
    ~Completion();

    bool known_done() const { return done_.load(std::memory_order_acquire); }
    bool ready();           // asks the device, never waits; calls back when it finds that it is done
    const Outcome& wait();  // blocks until done
    // Calls back at once when done, else later from another thread. Never with a lock held.
    void then(Callback callback);
    void finish(Outcome outcome);
    // What comes next on the stream starts after this. Blocks only where no event of CANN stands for it yet.
    void make_wait(Stream& stream);
    void make_wait(void* stream);                        // one that another library made
    const Outcome& outcome() const { return outcome_; }  // once done
    Stream* stream() const { return stream_; }

private:
    void reach();  // waits for the event

    std::mutex mutex_;
    std::condition_variable changed_;
    std::atomic<bool> done_{false};
    Outcome outcome_;
    Stream* const stream_;
    void* event_ = nullptr;
    int waiting_ = 0;  // threads inside CANN with event_
    bool watched_ = false;
    std::vector<Callback> callbacks_;
    std::vector<std::shared_ptr<void>> keep_;
};

}  // namespace npu

struct PJRT_Event {
    npu::Completion::Ptr completion;
};
