// Chains of elementwise operators run as one pass: blocks of elements go through all operators while they are in the
// first-level cache. Graph Engine's AutoFuse does the same on the NPU, and a graph of hundreds of small integer
// operators, such as JAX's random numbers, would otherwise spend its time in dispatch.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace emu {

// Computes n elements; unused operands are null. Operands may be the result itself, and do not overlap otherwise.
using ElementwiseKernel = void (*)(void* result, const void* a, const void* b, const void* c, int64_t n);
// The kernel of an operation on a dtype, "add.f32"; null where there is none.
ElementwiseKernel elementwise_kernel(const std::string& name);
// Bytes of an element of the operation's result.
int elementwise_result_bytes(const std::string& name);

struct ElementwiseCode {
    std::string operation;
    std::vector<int> values;  // the value that it makes, then its operands: numbers of values
};

class ElementwiseProgram {
public:
    // Values 0, 1, ... are the tensors `read`, each of `count` elements in any shape and with any strides; the code makes
    // the others. `written` are values and the dense tensors that they go to. Throws c10::Error for an operation without
    // a kernel.
    void compile(int64_t count, const std::vector<at::Tensor>& read,
                 const std::vector<ElementwiseCode>& code, const std::vector<std::pair<int, at::Tensor>>& written);
    void run() const;

private:
    // Where a value's block lies: in memory, at the place of the block, or in a register.
    struct Place {
        int memory = -1;    // index into `tensors_`
        int reg = -1;
        int bytes = 0;      // of an element
    };
    struct Operation {
        ElementwiseKernel kernel;
        Place result;
        Place operands[3];
    };
    struct Load {  // an input that is not dense: its blocks are gathered into a register
        int tensor;
        int reg;
        int bytes;
        std::vector<int64_t> dims, strides;  // merged where neighbours follow each other
        bool constant;                       // one element for all
    };
    struct Store {
        int reg;
        int tensor;
        int bytes;
    };

    void run_range(int64_t begin, int64_t end, char* const* places) const;

    int64_t count_ = 0;
    int64_t cost_ = 1;  // operators
    int registers_ = 0;
    std::vector<at::Tensor> tensors_;
    std::vector<Load> loads_;
    std::vector<Operation> operations_;
    std::vector<Store> stores_;
};

}  // namespace emu
