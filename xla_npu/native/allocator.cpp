#include "allocator.h"

#include <algorithm>

#include "cann.h"
#include "device.h"
#include "stream.h"

namespace npu {
namespace {
constexpr size_t granule = 512;        // what GE's kernels want blocks aligned to
constexpr size_t huge_page = 2 << 20;  // segments are whole pages
constexpr size_t kept = 256 << 20;     // free memory that is not given back before more is taken from CANN

size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }
double gib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

void drop_finished(std::vector<Completion::Ptr>& uses) {
    uses.erase(std::remove_if(uses.begin(), uses.end(), [](const auto& use) { return use->ready(); }), uses.end());
}
}  // namespace

Block::~Block() {
    if (allocator) {
        allocator->free(*this);
    } else if (release) {
        // When the last of the work with it is done; often that is now.
        const std::shared_ptr<void> last(nullptr, [release = std::move(release)](void*) { release(); });
        for (const auto& use : uses) use->then([last](const Completion::Outcome&) {});
    }
}

void Block::used_by(const Completion::Ptr& completion) {
    if (completion->ready()) return;
    std::lock_guard<std::mutex> lock(mutex);
    for (auto& use : uses) {
        if (completion->stream() && use->stream() == completion->stream()) {
            use = completion;
            return;
        }
    }
    uses.push_back(completion);
}

std::vector<Completion::Ptr> Block::open_uses() {
    std::vector<Completion::Ptr> open;
    {
        std::lock_guard<std::mutex> lock(mutex);
        if (uses.empty()) return open;
        open = uses;
    }
    drop_finished(open);  // may call back, so without the lock
    std::lock_guard<std::mutex> lock(mutex);
    uses.erase(std::remove_if(uses.begin(), uses.end(), [](const auto& use) { return use->known_done(); }), uses.end());
    return open;
}

void Block::make_wait(Stream& stream) {
    for (const auto& use : open_uses()) use->make_wait(stream);
}

BlockPtr Allocator::allocate(size_t bytes) {
    const size_t rounded = round_up(std::max<size_t>(bytes, 1), granule);
    for (bool trimmed = false;;) {
        bool plenty;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            plenty = static_cast<size_t>(stats_.reserved - stats_.in_use) > kept;
            if (const auto piece = take(rounded); piece != pieces_.end()) {
                stats_.in_use += static_cast<int64_t>(piece->second.size);
                stats_.peak = std::max(stats_.peak, stats_.in_use);
                stats_.largest = std::max(stats_.largest, static_cast<int64_t>(bytes));
                ++stats_.allocations;
                auto block = std::make_shared<Block>(this, reinterpret_cast<void*>(piece->first), bytes);
                block->uses.swap(piece->second.uses);
                return block;
            }
        }
        // Many sizes that come once must not add up: what is free and too small goes before more is taken.
        if (!trimmed && plenty) {
            trim();
            trimmed = true;
        }
        if (grow(rounded)) continue;
        if (trimmed) refuse(bytes);
        trim();
        trimmed = true;
    }
}

void Allocator::free(Block& block) {
    drop_finished(block.uses);
    std::lock_guard<std::mutex> lock(mutex_);
    auto piece = pieces_.find(reinterpret_cast<uintptr_t>(block.data));
    stats_.in_use -= static_cast<int64_t>(piece->second.size);
    piece->second.uses = std::move(block.uses);
    insert_free(piece);
}

// Joins the piece with free neighbours of its segment.
void Allocator::insert_free(Pieces::iterator piece) {
    const auto join = [this](Pieces::iterator first, Pieces::iterator second) {
        first->second.size += second->second.size;
        auto& uses = second->second.uses;
        std::move(uses.begin(), uses.end(), std::back_inserter(first->second.uses));
        pieces_.erase(second);
    };
    const auto joinable = [&](Pieces::iterator other) {
        return other->second.free && other->second.segment == piece->second.segment;
    };
    piece->second.free = true;
    if (auto next = std::next(piece); next != pieces_.end() && joinable(next)) {
        free_.erase({next->second.size, next->first});
        join(piece, next);
    }
    if (piece != pieces_.begin()) {
        if (auto before = std::prev(piece); joinable(before)) {
            free_.erase({before->second.size, before->first});
            join(before, piece);
            piece = before;
        }
    }
    free_.insert({piece->second.size, piece->first});
}

// The smallest free piece that is large enough, cut to size.
Allocator::Pieces::iterator Allocator::take(size_t bytes) {
    const auto found = free_.lower_bound({bytes, 0});
    if (found == free_.end()) return pieces_.end();
    auto piece = pieces_.find(found->second);
    free_.erase(found);
    piece->second.free = false;
    if (const size_t rest = piece->second.size - bytes; rest >= granule) {
        piece->second.size = bytes;
        Piece remainder{rest, piece->second.segment, true, piece->second.uses};
        const uintptr_t at = piece->first + bytes;
        pieces_.emplace(at, std::move(remainder));
        free_.insert({rest, at});
    }
    return piece;
}

// CANN is called without the lock: other threads go on with what is free meanwhile.
bool Allocator::grow(size_t bytes) {
    const size_t size = round_up(bytes, huge_page);
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (static_cast<size_t>(stats_.reserved) + size > limit_) return false;
        stats_.reserved += static_cast<int64_t>(size);
        stats_.peak_reserved = std::max(stats_.peak_reserved, stats_.reserved);
    }
    void* data = nullptr;
    constexpr int huge_pages_first = 0;
    device_.activate();
    const bool ok = cann().aclrtMalloc(&data, size, huge_pages_first) == 0;
    std::lock_guard<std::mutex> lock(mutex_);
    if (!ok) {
        stats_.reserved -= static_cast<int64_t>(size);
        return false;
    }
    const auto at = reinterpret_cast<uintptr_t>(data);
    pieces_[at] = Piece{size, at, true, {}};
    free_.insert({size, at});
    return true;
}

void Allocator::trim() {
    std::vector<std::pair<uintptr_t, Piece>> unused;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        for (auto piece = pieces_.begin(); piece != pieces_.end();) {
            const auto next = std::next(piece);
            const bool whole = piece->second.free && piece->first == piece->second.segment &&
                               (next == pieces_.end() || next->second.segment != piece->second.segment);
            if (whole) {
                free_.erase({piece->second.size, piece->first});
                unused.emplace_back(piece->first, std::move(piece->second));
                pieces_.erase(piece);
            }
            piece = next;
        }
    }
    device_.activate();
    for (const auto& [at, piece] : unused) {
        for (const auto& use : piece.uses) use->wait();
        cann().aclrtFree(reinterpret_cast<void*>(at));
        std::lock_guard<std::mutex> lock(mutex_);
        stats_.reserved -= static_cast<int64_t>(piece.size);
    }
}

void Allocator::refuse(size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    const int64_t largest = free_.empty() ? 0 : static_cast<int64_t>(free_.rbegin()->first);
    fail(PJRT_RESOURCE_EXHAUSTED,
         "Out of memory on %s: %zu bytes (%.3f GiB) are wanted; %.3f GiB of the limit of %.3f GiB are in use, %.3f GiB "
         "are kept for reuse, the largest free piece has %.3f GiB. Use smaller batches or shards, donate buffers, "
         "delete "
         "arrays that are not needed, or raise XLA_NPU_MEMORY_FRACTION",
         device_.name.c_str(), bytes, gib(static_cast<int64_t>(bytes)), gib(stats_.in_use),
         gib(static_cast<int64_t>(limit_)), gib(stats_.reserved - stats_.in_use), gib(largest));
}

MemoryStats Allocator::stats() {
    std::lock_guard<std::mutex> lock(mutex_);
    MemoryStats now = stats_;
    now.limit = static_cast<int64_t>(limit_);
    now.largest_free = free_.empty() ? 0 : static_cast<int64_t>(free_.rbegin()->first);
    return now;
}

void Allocator::clear_peaks() {
    std::lock_guard<std::mutex> lock(mutex_);
    stats_.peak = stats_.in_use;
    stats_.peak_reserved = stats_.reserved;
    stats_.largest = stats_.allocations = 0;
}

}  // namespace npu
