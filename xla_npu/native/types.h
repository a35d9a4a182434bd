// Element types: their sizes and XLA's names, and how arrays lie in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "pjrt.h"

namespace npu {

using Dims = std::vector<int64_t>;

// Bytes of an element; int4 and other sub-byte types take a whole byte on the device, as in numpy. Tokens have none.
size_t size_of(PJRT_Buffer_Type type);
const char* name_of(PJRT_Buffer_Type type);
// By XLA's name ("f32", "pred"). Throws INTERNAL for a name that is none.
PJRT_Buffer_Type type_named(const std::string& name);

size_t count_of(const Dims& dims);
// Byte strides of a dense row-major array, which is what the device holds.
Dims dense_strides(const Dims& dims, size_t element);
// Byte strides of a caller's layout (null: dense row-major). Throws UNIMPLEMENTED for tiles.
Dims strides_of(const PJRT_Buffer_MemoryLayout* layout, const Dims& dims, size_t element);
// Whether an array with these strides lies as a dense row-major one does (dimensions of size 1 do not count).
bool is_dense(const Dims& dims, const Dims& strides, size_t element);
// Copies an array between layouts. Strides may be negative or 0.
void copy_strided(void* to, const Dims& to_strides, const void* from, const Dims& from_strides, const Dims& dims,
                  size_t element);

}  // namespace npu
