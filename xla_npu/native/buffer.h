// A buffer: an array in one of a device's memories.
#pragma once

#include <atomic>
#include <mutex>

#include "allocator.h"
#include "completion.h"
#include "device.h"
#include "types.h"

namespace npu {

// What a reader or writer of a buffer holds while it works.
struct Held {
    BlockPtr block;
    Completion::Ptr defined;  // when the contents are there
};

// One array to be made: its type, shape and place.
struct Shape {
    PJRT_Buffer_Type type = PJRT_INVALID;
    Dims dims;
    size_t bytes() const { return count_of(dims) * size_of(type); }
};

}  // namespace npu

struct PJRT_Buffer {
    PJRT_Buffer(npu::Memory& memory, npu::Shape shape, npu::BlockPtr block, npu::Completion::Ptr defined);

    // The memory and when it is filled. Throws INVALID_ARGUMENT for a buffer that was deleted or donated.
    npu::Held hold() const;
    // As hold(), and the buffer is deleted: the caller owns the memory. Throws when others hold references to it.
    npu::Held take();
    // Lets the memory go. Work that is using it goes on.
    void release();
    bool deleted() const;

    PJRT_Device& device() const { return memory.device; }
    npu::Memory& memory;
    const npu::Shape shape;

    mutable std::mutex mutex;
    npu::BlockPtr block;  // null once deleted
    npu::Completion::Ptr defined;
    std::vector<npu::BlockPtr> external;  // one for every external reference
};
