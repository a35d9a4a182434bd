// An offline model (.om) in memory: the header and partitions that cann_emulator/ge/_compiler/image.py writes.
//
// Like CANN's file it begins with 256 bytes of header, then a table of partitions, whose numbers are CANN's. What the
// partitions hold is the emulator's own: the description of inputs and outputs, the program, and the constants.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core.h"

namespace emu {

// An input or output of a model.
struct ModelPort {
    std::string name;
    int dtype;   // aclDataType
    int format;  // aclFormat
    size_t bytes;
    std::vector<int64_t> dims;
};

struct ModelImage {
    std::string name;
    uint64_t work_bytes;    // activations; contents need not survive an execution
    uint64_t weight_bytes;  // constants, and what is computed from them when the model is loaded
    std::vector<ModelPort> inputs, outputs;
    std::string_view program;  // JSON, for the kernels' loader; lies in the caller's memory
    std::string_view weights;  // the constants: the first bytes of the weight area; lies in the caller's memory
};

// Reads an image. Returns 0, or an error set with fail() that says what is wrong with it.
int read_image(const void* data, size_t bytes, ModelImage* image);

}  // namespace emu
