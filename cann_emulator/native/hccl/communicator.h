// A rank of a communicator: its shared memory, the queue of its operations, and the thread that executes them.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "operation.h"

namespace hccl {

// What HcclCommConfig and the environment say, as far as it matters here. Buffer sizes, algorithms and traffic classes
// are accepted and change nothing.
struct Settings {
    std::string name;             // empty: derived from the root info
    int64_t connect_timeout_s;
    int64_t exec_timeout_s;       // 0: none
    static Settings from_environment();
};

class Communicator {
public:
    Communicator(const RootId& root, uint32_t rank, int device, Settings settings);
    ~Communicator();

    // ---- start: join() does not block, so that one thread can bring several ranks; connect() waits for all of them.
    Failure join(uint32_t ranks);
    Failure connect();

    // ---- operations
    // Puts the operation in the queue and its fence on the stream.
    HcclResult enqueue(Operation operation);
    Failure failure() const { return peers_ ? peers_->failure() : Failure{}; }
    Failure resume();

    // ---- sub-communicators: rank 0 of the new one announces it to the others in this one's memory
    Failure announce(uint64_t name, const RootId& root);
    Failure find_announced(uint64_t name, RootId* root);
    void withdraw(uint64_t name);

    uint32_t rank() const { return rank_; }
    uint32_t size() const { return segment_.ranks(); }
    int device() const { return device_; }
    int physical_device() const;
    const std::string& name() const { return settings_.name; }
    const Settings& settings() const { return settings_; }
    // The process that created it: threads do not survive a fork.
    bool usable_here() const;

private:
    void work();
    void execute(Operation& operation);
    Failure check_devices() const;

    const RootId root_;
    const uint32_t rank_;
    const int device_;
    Settings settings_;
    const int process_;
    Segment segment_;
    std::unique_ptr<Peers> peers_;

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Operation> queue_;    // the first one is being executed
    uint64_t lane_;                  // of its fences
    uint64_t enqueued_ = 0;
    bool stopping_ = false;
    std::thread worker_;
};

// ---- the communicators of this process, by handle
void* keep(std::shared_ptr<Communicator> communicator);
std::shared_ptr<Communicator> find(void* handle);       // null, with the thread's error set, where there is none
std::shared_ptr<Communicator> take_out(void* handle);   // likewise

}  // namespace hccl
