// A device's memory: blocks cut from what aclrtMalloc gives, kept for the next caller when they are freed.
//
// A freed block may still be in use by work that was enqueued before: it carries the completions of that work, and the
// next owner's stream waits for those of other streams. So freeing never waits, and neither does allocating.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "completion.h"

struct PJRT_Device;

namespace npu {

class Allocator;

// Memory that a buffer owns: a device's, or the host's. Shared by all who need it to stay.
struct Block {
    Block(Allocator* allocator, void* data, size_t size) : data(data), size(size), allocator(allocator) {}
    ~Block();
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

    // Work that reads or writes the block; work on one stream replaces earlier work on it.
    void used_by(const Completion::Ptr& completion);
    // The work that is not done yet.
    std::vector<Completion::Ptr> open_uses();
    // What comes next on the stream starts after all work that uses the block.
    void make_wait(Stream& stream);

    void* const data;
    const size_t size;              // bytes asked for
    std::function<void()> release;  // of memory that is not the allocator's

private:
    friend class Allocator;
    Allocator* const allocator;
    std::mutex mutex;
    std::vector<Completion::Ptr> uses;
};
using BlockPtr = std::shared_ptr<Block>;

struct MemoryStats {
    int64_t in_use, peak, allocations, largest, limit, reserved, peak_reserved, largest_free;
};

class Allocator {
public:
    Allocator(PJRT_Device& device, size_t limit) : device_(device), limit_(limit) {}

    // A block of at least one byte. Throws RESOURCE_EXHAUSTED with the sums when the limit or the device's memory
    // does not allow it.
    BlockPtr allocate(size_t bytes);
    MemoryStats stats();
    void clear_peaks();
    // Gives unused segments back to the device.
    void trim();

private:
    friend struct Block;
    // A piece of a segment; neighbours in the segment are found through the map of all pieces.
    struct Piece {
        size_t size = 0;
        uintptr_t segment = 0;
        bool free = false;
        std::vector<Completion::Ptr> uses;
    };
    using Pieces = std::map<uintptr_t, Piece>;

    void free(Block& block);
    Pieces::iterator take(size_t bytes);
    bool grow(size_t bytes);
    void insert_free(Pieces::iterator piece);
    [[noreturn]] void refuse(size_t bytes);

    PJRT_Device& device_;
    const size_t limit_;
    std::mutex mutex_;
    Pieces pieces_;
    std::set<std::pair<size_t, uintptr_t>> free_;
    MemoryStats stats_{};
};

}  // namespace npu
