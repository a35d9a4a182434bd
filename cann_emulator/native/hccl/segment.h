// The memory that the ranks of one communicator share, and how they find it.
//
// It is an anonymous memory file of the process that made the root info; the other ranks open it through that
// process's /proc entry. So it has no name, needs no room in /dev/shm, and is gone with the last process that uses it,
// however that ends. All zeros is its valid first state: nobody has to initialise it before the others come. Pages
// that are not touched cost nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "failure.h"
#include "types.h"

namespace hccl {

constexpr uint32_t max_ranks = 1024;
constexpr size_t slot_bytes = 1 << 20;     // staging of a rank for one step of a collective
constexpr size_t piece_bytes = 1 << 18;    // unit of a point-to-point transfer
constexpr uint64_t pieces_in_flight = 4;   // between one sender and one receiver

// A process, also told apart from a later one with the same number.
struct Process {
    int32_t pid;
    uint64_t started;
    static Process self();
    bool alive() const;
};

// What root info holds, and what a parent communicator hands to the ranks of a new one.
struct RootId {
    uint64_t magic;
    uint64_t host;       // to tell a rank on another machine why it cannot join
    Process owner;
    int32_t file;        // descriptor number in the owner
    uint64_t key[2];     // the same in the segment: guards against a descriptor number used again
};

// What a rank passed to an operator: everything that has to agree between ranks.
struct Call {
    Op op;
    uint32_t dtype;
    uint32_t reduction;
    uint32_t root;      // or the peer of a send or receive
    uint64_t count;
    uint64_t sequence;  // number of the collective in its communicator, from 1; 0 for point-to-point
};
std::string describe(const Call& call);

class RankSet {
public:
    bool has(uint32_t rank) const { return words_[rank / 64].load(std::memory_order_acquire) >> (rank % 64) & 1; }
    void add(uint32_t rank) { words_[rank / 64].fetch_or(uint64_t{1} << (rank % 64)); }
    void remove(uint32_t rank) { words_[rank / 64].fetch_and(~(uint64_t{1} << (rank % 64))); }
    void clear() {
        for (auto& word : words_) word = 0;
    }
private:
    std::atomic<uint64_t> words_[max_ranks / 64];
};

struct alignas(64) Rank {
    std::atomic<uint32_t> state;     // of enum State
    std::atomic<uint32_t> bell;      // futex: something happened on one of this rank's channels
    std::atomic<uint64_t> step;      // steps of collectives this rank has come to
    Process process;
    int32_t device;
    enum State : uint32_t { absent, claimed, present, left };
    // The operation that the rank executes now, and with which ranks it still has messages to exchange: see deadlock.cpp.
    std::atomic<uint64_t> operations;   // begun so far
    std::atomic<Op> doing;
    RankSet sending, receiving;
    // For messages only: the same in full (Op::none: nothing), and what was executed last.
    Call current, last;
    Call calls[2];                   // compared by the others in the step of that parity
};

// One direction between two ranks: a ring of pieces.
struct Channel {
    struct Piece {
        uint64_t bytes, count;       // count and dtype of the whole message
        uint32_t dtype, first;
    };
    alignas(64) std::atomic<uint64_t> posted;   // pieces the sender has written
    alignas(64) std::atomic<uint64_t> taken;    // pieces the receiver has read
    Piece pieces[pieces_in_flight];
};

struct Header {
    uint64_t key[2];
    std::atomic<uint32_t> ranks;     // size of the communicator, by the first who came
    std::atomic<uint32_t> lobby;     // futex: a rank came, resumed, or a sub-communicator was announced
    std::atomic<uint32_t> present;
    std::atomic<uint32_t> failed;    // 0 no, 1 being written, 2 `fault` and `reason` are valid
    Fault fault;
    char reason[4000];
    alignas(64) std::atomic<uint64_t> arrived;    // arrivals at steps, all ranks together
    alignas(64) std::atomic<uint32_t> released;   // futex: steps to which all ranks have come
    alignas(64) std::atomic<uint32_t> resuming;   // ranks waiting in HcclCommResume
    std::atomic<uint32_t> resumed;                // times that all of them were there
    // Sub-communicators that are being created.
    struct Announcement {
        std::atomic<uint32_t> state;   // 0 free, 1 being written, 2 valid
        uint64_t name;
        RootId root;
    } announcements[32];
};

class Segment {
public:
    // Makes the memory file of a new communicator; it lives until release() or the end of the process.
    static RootId create();
    static void release(const RootId& root);

    Segment() = default;
    ~Segment();
    Segment(const Segment&) = delete;
    Segment& operator=(const Segment&) = delete;
    // Empty failure, or why the memory cannot be used by a communicator of `ranks` ranks.
    Failure attach(const RootId& root, uint32_t ranks);

    uint32_t ranks() const { return ranks_; }
    Header& header() const { return *reinterpret_cast<Header*>(base_); }
    Rank& rank(uint32_t index) const { return reinterpret_cast<Rank*>(base_ + rank_offset_)[index]; }
    Channel& channel(uint32_t source, uint32_t target) const {
        return reinterpret_cast<Channel*>(base_ + channel_offset_)[source * ranks_ + target];
    }
    // Element counts that a rank sends to, and expects from, each rank.
    uint64_t* sent(uint32_t rank, uint32_t parity) const { return counts(rank, parity, 0); }
    uint64_t* expected(uint32_t rank, uint32_t parity) const { return counts(rank, parity, 1); }
    char* slot(uint32_t rank, uint32_t parity) const {
        return base_ + slot_offset_ + (size_t{rank} * 2 + parity) * slot_bytes;
    }
    char* piece(uint32_t source, uint32_t target, uint64_t index) const {
        const size_t channel = size_t{source} * ranks_ + target;
        return base_ + piece_offset_ + (channel * pieces_in_flight + index % pieces_in_flight) * piece_bytes;
    }

private:
    uint64_t* counts(uint32_t rank, uint32_t parity, uint32_t direction) const {
        return reinterpret_cast<uint64_t*>(base_ + count_offset_) +
               ((size_t{rank} * 2 + parity) * 2 + direction) * ranks_;
    }
    char* base_ = nullptr;
    size_t size_ = 0;
    uint32_t ranks_ = 0;
    size_t rank_offset_ = 0, count_offset_ = 0, channel_offset_ = 0, slot_offset_ = 0, piece_offset_ = 0;
};

// Sleeps until `word` is no longer `seen`, somebody rings it, or the time is over.
void sleep_on(std::atomic<uint32_t>& word, uint32_t seen, int64_t milliseconds);
void ring(std::atomic<uint32_t>& word);   // wakes the sleepers, value unchanged

}  // namespace hccl
