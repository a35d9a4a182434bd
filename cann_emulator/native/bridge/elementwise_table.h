// The elementwise kernels, compiled once for each kind of vector unit (elementwise_kernels.h has the loops).
#pragma once

#include <string>
#include <unordered_map>

namespace emu {

struct ElementwiseEntry {
    void (*kernel)(void*, const void*, const void*, const void*, int64_t);
    int result_bytes;
};
using ElementwiseEntries = std::unordered_map<std::string, ElementwiseEntry>;

namespace elementwise_base {
void fill(ElementwiseEntries& entries);
}
namespace elementwise_v3 {
void fill(ElementwiseEntries& entries);
}
namespace elementwise_v4 {
void fill(ElementwiseEntries& entries);
}

}  // namespace emu
