#include "completion.h"

#include "api.h"
#include "cann.h"
#include "device.h"
#include "stream.h"

namespace npu {
namespace {
// A device's failure, with the message of the thread that met it.
Completion::Outcome outcome_of(int code, const char* call) {
    try {
        check(code, call);
        return std::nullopt;
    } catch (const Failure& failure) {
        return failure;
    }
}
}  // namespace

const Completion::Ptr& Completion::done() {
    static const Ptr instance = [] {
        auto made = std::make_shared<Completion>();
        made->done_ = true;
        return made;
    }();
    return instance;
}

Completion::Ptr Completion::failed(Failure failure) {
    auto made = std::make_shared<Completion>();
    made->outcome_ = std::move(failure);
    made->done_ = true;
    return made;
}

Completion::Ptr Completion::pending() { return std::make_shared<Completion>(); }

Completion::Ptr Completion::recorded(Stream& stream, std::vector<std::shared_ptr<void>> keep) {
    auto made = std::make_shared<Completion>(&stream);
    made->event_ = stream.take_event();
    made->keep_ = std::move(keep);
    NPU_CALL(aclrtRecordEvent, made->event_, stream.handle);
    made->ready();  // often it is: then nobody has to ask again
    return made;
}

Completion::~Completion() {
    if (!event_) return;
    if (keep_.empty()) {
        stream_->give_event(event_);
        return;
    }
    // Nobody asks any more, but the device is still using what is kept.
    stream_->watcher.add([stream = stream_, event = event_, keep = std::move(keep_)] {
        cann().aclrtSetDevice(stream->device.ordinal);
        cann().aclrtSynchronizeEvent(event);
        stream->give_event(event);
    });
}

bool Completion::ready() {
    if (done_.load(std::memory_order_acquire)) return true;
    int status = 0, code = 0;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (done_ || !event_) return done_;
        code = cann().aclrtQueryEventStatus(event_, &status);
    }
    constexpr int complete = 1;
    if (code == 0 && status != complete) return false;
    finish(outcome_of(code, "aclrtQueryEventStatus"));
    return true;
}

void Completion::reach() {
    void* event;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (done_ || !event_) return;
        event = event_;
        ++waiting_;
    }
    stream_->device.activate();
    auto outcome = outcome_of(cann().aclrtSynchronizeEvent(event), "aclrtSynchronizeEvent");
    {
        std::lock_guard<std::mutex> lock(mutex_);
        --waiting_;
    }
    finish(std::move(outcome));
}

const Completion::Outcome& Completion::wait() {
    if (done_.load(std::memory_order_acquire)) return outcome_;
    reach();
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return done_.load(); });
    return outcome_;
}

void Completion::then(Callback callback) {
    if (!ready()) {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!done_) {
            callbacks_.push_back(std::move(callback));
            if (event_ && !watched_) {
                watched_ = true;
                stream_->watcher.add([self = shared_from_this()] { self->reach(); });
            }
            return;
        }
    }
    callback(outcome_);
}

void Completion::finish(Outcome outcome) {
    std::vector<Callback> callbacks;
    std::vector<std::shared_ptr<void>> keep;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!done_) {
            outcome_ = std::move(outcome);
            done_.store(true, std::memory_order_release);
        }
        // The event goes back only when no thread is inside CANN with it.
        if (event_ && waiting_ == 0) {
            stream_->give_event(event_);
            event_ = nullptr;
        }
        callbacks.swap(callbacks_);
        keep.swap(keep_);
    }
    changed_.notify_all();
    for (Callback& callback : callbacks) callback(outcome_);
}

void Completion::make_wait(Stream& stream) {
    if (stream_ != &stream) make_wait(stream.handle);
}

void Completion::make_wait(void* stream) {
    if (ready()) return;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (done_) return;
        if (event_) {
            NPU_CALL(aclrtStreamWaitEvent, stream, event_);
            return;
        }
    }
    wait();
}

namespace api {
void Event_Destroy(PJRT_Event_Destroy_Args& args) { delete args.event; }
void Event_IsReady(PJRT_Event_IsReady_Args& args) { args.is_ready = args.event->completion->ready(); }
void Event_Error(PJRT_Event_Error_Args& args) {
    if (const auto& outcome = args.event->completion->wait()) throw *outcome;
}
void Event_Await(PJRT_Event_Await_Args& args) {
    if (const auto& outcome = args.event->completion->wait()) throw *outcome;
}
void Event_OnReady(PJRT_Event_OnReady_Args& args) {
    args.event->completion->then(
        [callback = args.callback, user_arg = args.user_arg](const Completion::Outcome& outcome) {
            callback(outcome ? make_error(*outcome) : nullptr, user_arg);
        });
}
void Event_Create(PJRT_Event_Create_Args& args) { args.event = new PJRT_Event{Completion::pending()}; }
void Event_Set(PJRT_Event_Set_Args& args) {
    Completion::Outcome outcome;
    if (args.error_code != PJRT_OK)
        outcome.emplace(args.error_code, std::string(args.error_message, args.error_message_size));
    args.event->completion->finish(std::move(outcome));
}
}  // namespace api

}  // namespace npu
