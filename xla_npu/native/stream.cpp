#include "stream.h"

#include "cann.h"
#include "device.h"

namespace npu {

TaskThread::~TaskThread() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
}

void TaskThread::add(std::function<void()> task) {
    std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
    if (!thread_.joinable()) {
        thread_ = std::thread([this] {
            std::unique_lock<std::mutex> held(mutex_);
            for (;;) {
                changed_.wait(held, [this] { return stopping_ || !tasks_.empty(); });
                if (tasks_.empty()) return;
                auto next = std::move(tasks_.front());
                tasks_.pop_front();
                held.unlock();
                next();
                next = nullptr;  // frees what it holds before the lock is taken again
                held.lock();
            }
        });
    }
    changed_.notify_one();
}

Stream::Stream(PJRT_Device& device) : device(device) {
    device.activate();
    NPU_CALL(aclrtCreateStream, &handle);
}

Stream::~Stream() {
    for (void* event : unused_events_) cann().aclrtDestroyEvent(event);
    cann().aclrtDestroyStream(handle);
}

void* Stream::take_event() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!unused_events_.empty()) {
            void* event = unused_events_.back();
            unused_events_.pop_back();
            return event;
        }
    }
    constexpr uint32_t between_streams = 1, query_status = 2;
    void* event = nullptr;
    NPU_CALL(aclrtCreateEventExWithFlag, &event, between_streams | query_status);
    return event;
}

void Stream::give_event(void* event) {
    std::lock_guard<std::mutex> lock(mutex_);
    unused_events_.push_back(event);
}

}  // namespace npu
