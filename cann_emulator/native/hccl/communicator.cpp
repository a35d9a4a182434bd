#include "communicator.h"

#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <unordered_map>

namespace hccl {
namespace {

// How long a rank that destroys its communicator lets outstanding operations finish.
constexpr std::chrono::seconds drain_time{10};

int64_t seconds_of(const char* variable, int64_t otherwise) {
    const char* text = std::getenv(variable);
    if (!text || !*text) return otherwise;
    char* end = nullptr;
    const long long seconds = std::strtoll(text, &end, 10);
    return *end || seconds < 0 ? otherwise : seconds;
}

struct Registry {
    std::mutex mutex;
    std::unordered_map<void*, std::shared_ptr<Communicator>> communicators;
};
// Never destroyed: at the end of the process threads of communicators may still run.
Registry& registry() {
    static auto* instance = new Registry;
    return *instance;
}

}  // namespace

Settings Settings::from_environment() {
    return {"", seconds_of("HCCL_CONNECT_TIMEOUT", 120), seconds_of("HCCL_EXEC_TIMEOUT", 1836)};
}

Communicator::Communicator(const RootId& root, uint32_t rank, int device, Settings settings)
    : root_(root), rank_(rank), device_(device), settings_(std::move(settings)), process_(getpid()) {
    static std::atomic<uint64_t> lanes{0};
    lane_ = ++lanes;
    if (settings_.name.empty())
        settings_.name = format("hccl_%d_%08llx", root.owner.pid, static_cast<unsigned long long>(root.key[0] >> 32));
}

bool Communicator::usable_here() const { return getpid() == process_; }

int Communicator::physical_device() const {
    const char* visible = std::getenv("ASCEND_RT_VISIBLE_DEVICES");
    for (int index = 0; visible && *visible; ++index) {
        char* end = nullptr;
        const long id = std::strtol(visible, &end, 10);
        if (end == visible) break;
        if (index == device_) return static_cast<int>(id);
        visible = *end == ',' ? end + 1 : end;
    }
    return device_;
}

Failure Communicator::join(uint32_t ranks) {
    if (auto failure = segment_.attach(root_, ranks); failure.fault != Fault::none) return failure;
    auto& self = segment_.rank(rank_);
    uint32_t absent = Rank::absent;
    if (!self.state.compare_exchange_strong(absent, Rank::claimed))
        return {Fault::inconsistent, format("rank %u came twice (PID %d and PID %d): each rank number is for one process.",
                                            rank_, self.process.pid, getpid())};
    self.process = Process::self();
    self.device = physical_device();
    self.state.store(Rank::present, std::memory_order_release);
    peers_ = std::make_unique<Peers>(segment_, rank_, settings_.name);
    peers_->set_timeout(settings_.exec_timeout_s);
    auto& header = segment_.header();
    header.present.fetch_add(1, std::memory_order_acq_rel);
    header.lobby.fetch_add(1, std::memory_order_acq_rel);
    ring(header.lobby);
    return {};
}

Failure Communicator::connect() {
    auto& header = segment_.header();
    const int64_t start = now_ms();
    for (;;) {
        const uint32_t seen = header.lobby.load(std::memory_order_acquire);
        if (header.present.load(std::memory_order_acquire) == size()) break;
        if (auto failure = peers_->failure(); failure.fault != Fault::none) return failure;
        Peers::Ranks missing, dead;
        for (uint32_t rank = 0; rank < size(); ++rank) {
            const auto& peer = segment_.rank(rank);
            const auto state = peer.state.load(std::memory_order_acquire);
            if (state == Rank::absent || state == Rank::claimed) missing.push_back(rank);
            else if (state == Rank::left || !peer.process.alive()) dead.push_back(rank);
        }
        try {
            if (!dead.empty())
                peers_->fail({Fault::no_connection, Peers::list(dead) + " ended while " + peers_->where() +
                                                        " was being created."});
            if (now_ms() - start >= settings_.connect_timeout_s * 1000)
                peers_->fail({Fault::no_connection,
                              format("%s waited %lld s (HCCL_CONNECT_TIMEOUT) for remote %s, which did not create %s.",
                                     Peers::list({rank_}).c_str(), static_cast<long long>(settings_.connect_timeout_s),
                                     Peers::list(missing).c_str(), peers_->where().c_str())});
        } catch (const Failed& failed) {
            return failed.failure;
        }
        sleep_on(header.lobby, seen, look_every_ms);
    }
    if (auto failure = check_devices(); failure.fault != Fault::none) return failure;
    worker_ = std::thread([this] { work(); });
    pthread_setname_np(worker_.native_handle(), "hccl");
    return {};
}

Failure Communicator::check_devices() const {
    std::map<int, Peers::Ranks> users;
    for (uint32_t rank = 0; rank < size(); ++rank) users[segment_.rank(rank).device].push_back(rank);
    for (const auto& [device, ranks] : users)
        if (ranks.size() > 1)
            return {Fault::bad_device, format("%s of %s all use device %d.", Peers::list(ranks).c_str(),
                                              peers_->where().c_str(), device)};
    return {};
}

Communicator::~Communicator() {
    if (!usable_here()) {
        // A copy made by fork: the thread exists only in the parent.
        if (worker_.joinable()) worker_.detach();
        return;
    }
    emu::GilPause pause;
    if (worker_.joinable()) {
        {
            std::unique_lock<std::mutex> lock(mutex_);
            stopping_ = true;
            changed_.notify_all();
            changed_.wait_for(lock, drain_time, [this] { return queue_.empty(); });
            if (!queue_.empty()) {
                peers_->abandon();
                peers_->wake_all();
            }
        }
        worker_.join();
    }
    if (peers_) {
        segment_.rank(rank_).state.store(Rank::left, std::memory_order_release);
        peers_->wake_all();
    }
}

HcclResult Communicator::enqueue(Operation operation) {
    operation.stream_id = emu::stream_id(operation.stream);
    {
        // One lock for both orders: on the stream and in the queue operations follow each other alike.
        std::lock_guard<std::mutex> lock(mutex_);
        operation.after = emu::stream_fences(operation.stream);
        operation.fence = std::make_shared<emu::Fence>(lane_, ++enqueued_);
        emu::stream_add_fence(operation.stream, operation.fence);
        queue_.push_back(std::move(operation));
    }
    changed_.notify_all();
    return HCCL_SUCCESS;
}

void Communicator::work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
        if (queue_.empty()) return;
        Operation& operation = queue_.front();   // stays valid while others are added
        lock.unlock();
        execute(operation);
        const auto fence = operation.fence;
        lock.lock();
        queue_.pop_front();
        if (queue_.empty()) changed_.notify_all();
    }
}

void Communicator::execute(Operation& operation) {
    try {
        for (const auto& fence : operation.after) {
            if (fence->lane == lane_) continue;   // came earlier in the queue
            while (!fence->done()) {
                fence->wait(look_every_ms);
                peers_->check();
            }
            if (fence->status())
                peers_->fail({Fault::lost_rank, format("earlier work on the stream of rank %u failed: %s", rank_,
                                                       fence->message().c_str())});
        }
        const int64_t start = emu::now_ns();
        peers_->begin(operation.call, operation.is_collective(), operation.transfers);
        if (operation.is_collective()) run_collective(*peers_, operation);
        else run_transfers(*peers_, operation);
        peers_->end();
        emu::record(counter(operation.call.op), device_, operation.stream_id, start, emu::now_ns(),
                    static_cast<int64_t>(operation.payload));
        operation.fence->complete(0);
    } catch (const Failed& failed) {
        operation.fence->complete(stream_error, message_of(failed.failure));
    }
}

Failure Communicator::resume() {
    emu::GilPause pause;
    {
        std::unique_lock<std::mutex> lock(mutex_);
        if (!queue_.empty()) {
            try {
                peers_->fail({Fault::lost_rank, format("rank %u stopped %s to resume it.", rank_, peers_->where().c_str())});
            } catch (const Failed&) {
            }
        }
        changed_.wait(lock, [this] { return queue_.empty(); });
    }
    return peers_->resume(settings_.connect_timeout_s);
}

Failure Communicator::announce(uint64_t name, const RootId& root) {
    auto& header = segment_.header();
    for (auto& entry : header.announcements) {
        uint32_t free = 0;
        if (!entry.state.compare_exchange_strong(free, 1)) continue;
        entry.name = name;
        entry.root = root;
        entry.state.store(2, std::memory_order_release);
        header.lobby.fetch_add(1, std::memory_order_acq_rel);
        ring(header.lobby);
        return {};
    }
    return {Fault::internal, "too many sub-communicators are being created at once."};
}

Failure Communicator::find_announced(uint64_t name, RootId* root) {
    auto& header = segment_.header();
    const int64_t start = now_ms();
    while (now_ms() - start < settings_.connect_timeout_s * 1000) {
        const uint32_t seen = header.lobby.load(std::memory_order_acquire);
        for (auto& entry : header.announcements) {
            if (entry.state.load(std::memory_order_acquire) != 2 || entry.name != name) continue;
            *root = entry.root;
            return {};
        }
        sleep_on(header.lobby, seen, look_every_ms);
    }
    return {Fault::no_connection, format("rank 0 of a sub-communicator of %s did not create it within %lld s.",
                                         peers_->where().c_str(), static_cast<long long>(settings_.connect_timeout_s))};
}

void Communicator::withdraw(uint64_t name) {
    for (auto& entry : segment_.header().announcements)
        if (entry.state.load(std::memory_order_acquire) == 2 && entry.name == name) entry.state = 0;
}

void* keep(std::shared_ptr<Communicator> communicator) {
    void* handle = communicator.get();
    std::lock_guard<std::mutex> lock(registry().mutex);
    registry().communicators[handle] = std::move(communicator);
    return handle;
}

std::shared_ptr<Communicator> find(void* handle) {
    {
        std::lock_guard<std::mutex> lock(registry().mutex);
        const auto found = registry().communicators.find(handle);
        if (found != registry().communicators.end()) {
            if (found->second->usable_here()) return found->second;
            refuse(Fault::bad_argument, "comm belongs to the process that forked this one. Start ranks with spawn.");
            return nullptr;
        }
    }
    refuse(Fault::bad_argument, "comm %p is not a communicator, or was destroyed.", handle);
    return nullptr;
}

std::shared_ptr<Communicator> take_out(void* handle) {
    auto communicator = find(handle);
    std::lock_guard<std::mutex> lock(registry().mutex);
    registry().communicators.erase(handle);
    return communicator;
}

}  // namespace hccl
