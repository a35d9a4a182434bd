// Creation, destruction and inspection of acl objects.
#include "objects.h"

#include <cstring>

#include "core.h"

namespace emu {

DType dtype_facts(int acl_dtype) {
    switch (acl_dtype) {
        case 0: return {32, "DT_FLOAT"};
        case 1: return {16, "DT_FLOAT16"};
        case 2: return {8, "DT_INT8"};
        case 3: return {32, "DT_INT32"};
        case 4: return {8, "DT_UINT8"};
        case 6: return {16, "DT_INT16"};
        case 7: return {16, "DT_UINT16"};
        case 8: return {32, "DT_UINT32"};
        case 9: return {64, "DT_INT64"};
        case 10: return {64, "DT_UINT64"};
        case 11: return {64, "DT_DOUBLE"};
        case 12: return {8, "DT_BOOL"};
        case 16: return {64, "DT_COMPLEX64"};
        case 17: return {128, "DT_COMPLEX128"};
        case 27: return {16, "DT_BFLOAT16"};
        case 29: return {4, "DT_INT4"};
        case 30: return {1, "DT_UINT1"};
        case 33: return {32, "DT_COMPLEX32"};
        case 34: return {8, "DT_HIFLOAT8"};
        case 35: return {8, "DT_FLOAT8_E5M2"};
        case 36: return {8, "DT_FLOAT8_E4M3FN"};
        case 37: return {8, "DT_FLOAT8_E8M0"};
        case 38: return {6, "DT_FLOAT6_E3M2"};
        case 39: return {6, "DT_FLOAT6_E2M3"};
        case 40: return {4, "DT_FLOAT4_E2M1"};
        case 41: return {4, "DT_FLOAT4_E1M2"};
        default: return {0, "DT_UNDEFINED"};
    }
}

int64_t element_count(const aclTensor& tensor) {
    int64_t count = 1;
    for (int i = 0; i < tensor.rank; ++i) count *= tensor.dims[i];
    return count;
}

Extent extent(const aclTensor& tensor) {
    int64_t last = 0;
    for (int i = 0; i < tensor.rank; ++i) {
        if (tensor.dims[i] == 0) return {nullptr, 0};
        last += (tensor.dims[i] - 1) * tensor.strides[i];
    }
    const int64_t bits = dtype_facts(tensor.dtype).bits;
    const char* begin = static_cast<const char*>(tensor.data) + tensor.offset * bits / 8;
    return {begin, static_cast<size_t>(((last + 1) * bits + 7) / 8)};
}

}  // namespace emu

extern "C" {

EMU_API aclTensor* aclCreateTensor(const int64_t* dims, uint64_t rank, int32_t dtype, const int64_t* strides,
                                   int64_t offset, int32_t format, const int64_t*, uint64_t, void* data) {
    if (rank > kMaxDims) {
        emu::fail(161002, "aclCreateTensor: %lu dimensions; at most %d are supported", (unsigned long)rank, kMaxDims);
        return nullptr;
    }
    auto* tensor = new aclTensor;
    tensor->rank = static_cast<int32_t>(rank);
    tensor->dtype = dtype;
    tensor->format = format;
    tensor->data = data;
    tensor->offset = offset;
    int64_t dense = 1;
    for (int i = static_cast<int>(rank) - 1; i >= 0; --i) {
        tensor->dims[i] = dims[i];
        tensor->strides[i] = strides ? strides[i] : dense;
        dense *= dims[i];
    }
    return tensor;
}

EMU_API int aclDestroyTensor(const aclTensor* tensor) {
    delete tensor;
    return 0;
}

// The caller frees the shape with delete[].
EMU_API int aclGetViewShape(const aclTensor* tensor, int64_t** dims, uint64_t* rank) {
    if (!tensor || !dims || !rank) return emu::fail(161001, "aclGetViewShape: null argument");
    *rank = static_cast<uint64_t>(tensor->rank);
    *dims = new int64_t[tensor->rank ? tensor->rank : 1];
    std::memcpy(*dims, tensor->dims, sizeof(int64_t) * static_cast<size_t>(tensor->rank));
    return 0;
}

EMU_API aclScalar* aclCreateScalar(const void* value, int32_t dtype) {
    auto* scalar = new aclScalar{};
    scalar->dtype = dtype;
    std::memcpy(scalar->value, value, static_cast<size_t>(emu::dtype_facts(dtype).bits + 7) / 8);
    return scalar;
}

EMU_API int aclDestroyScalar(const aclScalar* scalar) {
    delete scalar;
    return 0;
}

EMU_API aclIntArray* aclCreateIntArray(const int64_t* values, uint64_t count) {
    return new aclIntArray{std::vector<int64_t>(values, values + count)};
}

EMU_API int aclDestroyIntArray(const aclIntArray* array) {
    delete array;
    return 0;
}

EMU_API aclBoolArray* aclCreateBoolArray(const bool* values, uint64_t count) {
    return new aclBoolArray{std::vector<uint8_t>(values, values + count)};
}

EMU_API int aclDestroyBoolArray(const aclBoolArray* array) {
    delete array;
    return 0;
}

EMU_API aclFloatArray* aclCreateFloatArray(const float* values, uint64_t count) {
    return new aclFloatArray{std::vector<float>(values, values + count)};
}

EMU_API int aclDestroyFloatArray(const aclFloatArray* array) {
    delete array;
    return 0;
}

EMU_API aclTensorList* aclCreateTensorList(aclTensor* const* tensors, uint64_t count) {
    return new aclTensorList{std::vector<aclTensor*>(tensors, tensors + count)};
}

// A list owns its tensors, as in CANN.
EMU_API int aclDestroyTensorList(const aclTensorList* list) {
    if (!list) return 0;
    for (aclTensor* tensor : list->tensors) delete tensor;
    delete list;
    return 0;
}

EMU_API aclScalarList* aclCreateScalarList(aclScalar* const* scalars, uint64_t count) {
    return new aclScalarList{std::vector<aclScalar*>(scalars, scalars + count)};
}

EMU_API int aclDestroyScalarList(const aclScalarList* list) {
    if (!list) return 0;
    for (aclScalar* scalar : list->scalars) delete scalar;
    delete list;
    return 0;
}

}  // extern "C"
