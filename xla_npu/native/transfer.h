// Copies between a device's memories, other devices and the host. All of them start at once and finish later; each is
// registered with the blocks that it reads and writes.
#pragma once

#include "buffer.h"

namespace npu {

// From plain host memory, which must stay valid until done; `keep` lives until then.
Completion::Ptr copy_from_host(Memory& memory, const BlockPtr& block, size_t offset, const void* host, size_t bytes,
                               std::shared_ptr<void> keep = nullptr);
// Into plain host memory, once the block is defined.
Completion::Ptr copy_to_host(Memory& memory, const Held& held, size_t offset, void* host, size_t bytes);
// A copy of the whole block in another memory, of this device or another.
Held copy_to_memory(Memory& from, const Held& held, Memory& to, size_t bytes);

}  // namespace npu
