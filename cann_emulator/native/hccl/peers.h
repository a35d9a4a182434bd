// One rank's view of its communicator's shared memory: steps that all ranks take together, waiting, and failing.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "segment.h"

namespace hccl {

// Thrown where a rank finds that its communicator has failed.
struct Failed {
    Failure failure;
};

// One message of a point-to-point operator.
struct Transfer {
    bool sends;
    uint32_t peer;
    char* data;
    uint64_t count;
    uint32_t dtype;
};

class Peers {
public:
    Peers(Segment& segment, uint32_t rank, std::string name) : segment(segment), me(rank), name_(std::move(name)) {}

    Segment& segment;
    const uint32_t me;
    uint32_t size() const { return segment.ranks(); }
    void set_timeout(int64_t seconds) { timeout_s_ = seconds; }   // 0: wait for ever

    // ---- operations
    // Numbers a collective, and lets the others see what this rank does.
    void begin(Call& call, bool collective, const std::vector<Transfer>& transfers);
    void end();

    // ---- steps of collectives. A rank writes its slot, meets the others, and reads their slots. Slots come in pairs
    // that take turns: a slot is written again only after a later meeting, to which every rank that reads it has come.
    char* out() const { return segment.slot(me, steps_ & 1); }
    const char* in(uint32_t rank) const { return segment.slot(rank, (steps_ - 1) & 1); }
    uint32_t out_parity() const { return steps_ & 1; }
    uint32_t in_parity() const { return (steps_ - 1) & 1; }
    void meet();

    // ---- waiting. Returns once `done`; throws when the communicator fails, a rank of `missing` is lost or too late.
    using Ranks = std::vector<uint32_t>;
    template <class Done> void wait(std::atomic<uint32_t>& word, const Done& done, const std::function<Ranks()>& missing);
    // Waits until `done` moves on or this rank's bell rings.
    Rank& self() const { return segment.rank(me); }
    void tell(uint32_t rank);   // rings a rank's bell

    // ---- failing
    [[noreturn]] void fail(Failure failure);   // for every rank; the first failure stands
    void check() const;                        // throws if the communicator has failed
    Failure failure() const;
    void abandon() { abandoned_ = true; }      // this rank no longer waits for anything

    // ---- the communicator's life
    void wake_all();
    Failure resume(int64_t timeout_s);         // after a failure, by all ranks together
    // "rank 1", "ranks 1, 3 to 5"
    static std::string list(const Ranks& ranks);
    std::string where() const { return "communicator " + name_ + " (" + std::to_string(size()) + " ranks)"; }

private:
    void look_after(const std::function<Ranks()>& missing, int64_t waited_ms);
    std::string last_seen(uint32_t rank) const;
    std::string deadlock() const;              // empty, or which ranks wait for each other in a circle
    bool waits_for(uint32_t rank, uint32_t other) const;

    std::string name_;
    int64_t timeout_s_ = 0;
    uint64_t steps_ = 0;
    uint64_t collectives_ = 0;
    std::atomic<bool> abandoned_{false};
};

// How often a waiting rank looks whether the ranks it waits for are still there.
constexpr int64_t look_every_ms = 100;
// How many times a waiting rank looks at the word before it sleeps. None where there are more ranks than processors:
// the processor is then better used by the rank that is waited for.
int spins(uint32_t ranks);
int64_t now_ms();

template <class Done>
void Peers::wait(std::atomic<uint32_t>& word, const Done& done, const std::function<Ranks()>& missing) {
    for (int i = spins(size()); i > 0; --i) {
        if (done()) return;
#ifdef __x86_64__
        __builtin_ia32_pause();
#endif
    }
    const int64_t start = now_ms();
    int64_t looked = start;
    for (;;) {
        const uint32_t seen = word.load(std::memory_order_acquire);
        if (done()) return;
        check();
        sleep_on(word, seen, look_every_ms);
        if (done()) return;
        const int64_t now = now_ms();
        if (now - looked < look_every_ms) continue;
        looked = now;
        look_after(missing, now - start);
    }
}

}  // namespace hccl
