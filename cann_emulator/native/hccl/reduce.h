// Element-wise reduction of the ranks' data.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hccl {

// target[i] = sources[0][i] op sources[1][i] op ..., in that order for every element, so that the result depends
// neither on the number of elements nor on who computes it. float16 and bfloat16 are accumulated in float32 and
// rounded once; integers wrap around. `target` may be one of the sources.
void reduce(uint32_t dtype, uint32_t reduction, void* target, const void* const* sources, size_t ranks, size_t count);

}  // namespace hccl
