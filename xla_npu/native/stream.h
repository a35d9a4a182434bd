// A stream of a device, its events and the thread that waits for them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "completion.h"

struct PJRT_Device;

namespace npu {

// Runs tasks one after the other on its own thread, which starts with the first task.
class TaskThread {
public:
    ~TaskThread();
    void add(std::function<void()> task);

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> tasks_;
    std::thread thread_;
    bool stopping_ = false;
};

struct Stream {
    explicit Stream(PJRT_Device& device);
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    void* take_event();
    void give_event(void* event);

    PJRT_Device& device;
    void* handle = nullptr;
    TaskThread watcher;  // calls back when completions are reached, in the stream's order

private:
    std::mutex mutex_;
    std::vector<void*> unused_events_;
};

}  // namespace npu
