#include "peers.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "core.h"

namespace hccl {

int64_t now_ms() { return emu::now_ns() / 1000000; }

int spins(uint32_t ranks) {
    static const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    return static_cast<long>(ranks) <= processors ? 500 : 0;
}

void Peers::begin(Call& call, bool collective, const std::vector<Transfer>& transfers) {
    call.sequence = collective ? ++collectives_ : 0;
    auto& self = this->self();
    self.current = call;
    self.sending.clear();
    self.receiving.clear();
    for (const auto& transfer : transfers) (transfer.sends ? self.sending : self.receiving).add(transfer.peer);
    self.operations.fetch_add(1);
    self.doing.store(call.op);   // last: who sees it sees the sets too
}

void Peers::end() {
    auto& self = this->self();
    self.doing.store(Op::none);
    self.last = self.current;
    self.current.op = Op::none;
}

void Peers::meet() {
    check();
    auto& header = segment.header();
    const uint64_t step = ++steps_;
    const bool last = header.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == step * size();
    if (last) {
        header.released.store(static_cast<uint32_t>(step), std::memory_order_release);
        if (size() > 1) ring(header.released);
    }
    // After the count: a rank that ends between the two is still seen to be missing.
    self().step.store(step, std::memory_order_release);
    if (last) return;
    const auto released = [&] {
        return static_cast<int32_t>(header.released.load(std::memory_order_acquire) - static_cast<uint32_t>(step)) >= 0;
    };
    wait(header.released, released, [&] {
        Ranks missing;
        for (uint32_t rank = 0; rank < size(); ++rank)
            if (segment.rank(rank).step.load(std::memory_order_acquire) < step) missing.push_back(rank);
        return missing;
    });
}

void Peers::tell(uint32_t rank) {
    auto& bell = segment.rank(rank).bell;
    bell.fetch_add(1, std::memory_order_acq_rel);
    ring(bell);
}

void Peers::look_after(const std::function<Ranks()>& missing, int64_t waited_ms) {
    Ranks left, dead;
    for (const uint32_t rank : missing()) {
        const auto& peer = segment.rank(rank);
        if (rank == me) continue;
        if (peer.state.load(std::memory_order_acquire) == Rank::left) left.push_back(rank);
        else if (!peer.process.alive()) dead.push_back(rank);
    }
    // A rank may have come before it ended: only those that are missed now are to blame.
    const Ranks still = missing();
    const auto came = [&](uint32_t rank) { return std::find(still.begin(), still.end(), rank) == still.end(); };
    left.erase(std::remove_if(left.begin(), left.end(), came), left.end());
    dead.erase(std::remove_if(dead.begin(), dead.end(), came), dead.end());
    const auto& call = self().current;
    std::string what = describe(call);
    if (call.sequence) what += ", collective " + std::to_string(call.sequence) + ",";
    what += " of " + where();
    if (!dead.empty()) {
        std::string text = "the process of " + list(dead) + " ended before it took part in " + what + ".";
        for (const uint32_t rank : dead) text += " " + last_seen(rank);
        fail({Fault::lost_rank, text});
    }
    if (!left.empty())
        fail({Fault::lost_rank, list(left) + " destroyed the communicator without taking part in " + what + "."});
    if (auto circle = deadlock(); !circle.empty())
        fail({Fault::inconsistent, "ranks of " + where() + " wait for each other in a circle: " + circle + "."});
    if (timeout_s_ > 0 && waited_ms >= timeout_s_ * 1000 && !still.empty()) {
        std::string text = format("%s called %s and waited %lld s (HCCL_EXEC_TIMEOUT) for remote %s.",
                                  list({me}).c_str(), what.c_str(), static_cast<long long>(timeout_s_),
                                  list(still).c_str());
        for (const uint32_t rank : still) text += " " + last_seen(rank);
        fail({Fault::timeout, text});
    }
}

std::string Peers::last_seen(uint32_t rank) const {
    const auto& peer = segment.rank(rank);
    const Call current = peer.current, last = peer.last;
    std::string text = format("Rank %u (PID %d, device %d) ", rank, peer.process.pid, peer.device);
    const auto number = [](const Call& call) {
        return call.sequence ? ", collective " + std::to_string(call.sequence) : std::string{};
    };
    if (current.op != Op::none) return text + "is in " + describe(current) + number(current) + ".";
    if (last.op == Op::none) return text + "has not called anything on this communicator.";
    return text + "has called nothing since " + describe(last) + number(last) + ".";
}

std::string Peers::list(const Ranks& ranks) {
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    for (size_t i = 0; i < ranks.size(); ++i) {
        size_t last = i;
        while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
        if (i) text += ", ";
        text += std::to_string(ranks[i]);
        if (last > i) text += (last > i + 1 ? " to " : ", ") + std::to_string(ranks[last]);
        i = last;
    }
    return text;
}

void Peers::fail(Failure failure) {
    auto& header = segment.header();
    uint32_t none = 0;
    if (header.failed.compare_exchange_strong(none, 1)) {
        header.fault = failure.fault;
        std::snprintf(header.reason, sizeof(header.reason), "%s", failure.reason.c_str());
        header.failed.store(2, std::memory_order_release);
        wake_all();
    }
    check();
    throw Failed{std::move(failure)};   // not reached: check() has thrown
}

void Peers::check() const {
    auto failure = this->failure();
    if (failure.fault != Fault::none) throw Failed{std::move(failure)};
    if (abandoned_)
        throw Failed{{Fault::lost_rank, "rank " + std::to_string(me) + " destroyed " + where() + " while " +
                                            describe(self().current) + " was waiting for other ranks."}};
}

Failure Peers::failure() const {
    auto& header = segment.header();
    if (header.failed.load(std::memory_order_acquire) == 0) return {};
    while (header.failed.load(std::memory_order_acquire) == 1) std::this_thread::yield();
    return {header.fault, header.reason};
}

void Peers::wake_all() {
    auto& header = segment.header();
    ring(header.released);
    ring(header.lobby);
    for (uint32_t rank = 0; rank < size(); ++rank) ring(segment.rank(rank).bell);
}

Failure Peers::resume(int64_t timeout_s) {
    auto& header = segment.header();
    const uint32_t round = header.resumed.load(std::memory_order_acquire);
    if (header.resuming.fetch_add(1, std::memory_order_acq_rel) + 1 == size()) {
        // All ranks are here, so nobody uses the rest of the memory.
        header.arrived = 0;
        header.released = 0;
        for (uint32_t rank = 0; rank < size(); ++rank) segment.rank(rank).step = 0;
        for (uint32_t source = 0; source < size(); ++source)
            for (uint32_t target = 0; target < size(); ++target) {
                segment.channel(source, target).posted = 0;
                segment.channel(source, target).taken = 0;
            }
        header.failed = 0;
        header.resuming = 0;
        header.resumed.store(round + 1, std::memory_order_release);
        header.lobby.fetch_add(1);
        ring(header.lobby);
    }
    const int64_t deadline = now_ms() + timeout_s * 1000;
    for (;;) {
        const uint32_t seen = header.lobby.load(std::memory_order_acquire);
        if (header.resumed.load(std::memory_order_acquire) != round) break;
        if (now_ms() >= deadline) {
            const uint32_t came = header.resuming.fetch_sub(1) ;
            return {Fault::no_connection, format("only %u of %u ranks called HcclCommResume on %s.", came, size(),
                                                 where().c_str())};
        }
        sleep_on(header.lobby, seen, look_every_ms);
    }
    steps_ = 0;
    return {};
}

}  // namespace hccl
