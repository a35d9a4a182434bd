// The acl objects that an aclnn call passes: torch_npu makes them, the launch reads them.
// Names are CANN's; the layouts are ours, because CANN keeps them private.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core.h"

// The most dimensions an emulated tensor may have (CANN's operators take 8; its objects take more).
constexpr int kMaxDims = 32;

struct aclTensor {
    int32_t rank;
    int32_t dtype;     // aclDataType
    int32_t format;    // aclFormat
    void* data;        // start of the storage
    int64_t offset;    // in elements, from the storage's start
    int64_t dims[kMaxDims];
    int64_t strides[kMaxDims];  // in elements
};

struct aclScalar {
    int32_t dtype;
    alignas(16) unsigned char value[16];
};

struct aclIntArray {
    std::vector<int64_t> values;
};
struct aclBoolArray {
    std::vector<uint8_t> values;
};
struct aclFloatArray {
    std::vector<float> values;
};
struct aclTensorList {
    std::vector<aclTensor*> tensors;
};
struct aclScalarList {
    std::vector<aclScalar*> scalars;
};

extern "C" int aclGetViewShape(const aclTensor* tensor, int64_t** dims, uint64_t* rank);

namespace emu {

struct DType {
    int bits;          // of one element
    const char* name;  // as CANN's messages write it: DT_FLOAT
};
// The facts about an aclDataType; bits is 0 where the number is not one.
EMU_API DType dtype_facts(int acl_dtype);

// The bytes from a tensor's first element to the end of its last one, and where they start.
struct Extent {
    const char* begin;
    size_t bytes;
};
EMU_API Extent extent(const aclTensor& tensor);
EMU_API int64_t element_count(const aclTensor& tensor);

}  // namespace emu
