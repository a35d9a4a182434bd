#include "values.h"

#include <cstring>

#include <c10/util/Float8_e8m0fnu.h>

namespace emu {

std::optional<at::ScalarType> to_dtype(int acl_dtype) {
    switch (acl_dtype) {
        case 0: return at::kFloat;
        case 1: return at::kHalf;
        case 2: return at::kChar;
        case 3: return at::kInt;
        case 4: return at::kByte;
        case 6: return at::kShort;
        case 7: return at::kUInt16;
        case 8: return at::kUInt32;
        case 9: return at::kLong;
        case 10: return at::kUInt64;
        case 11: return at::kDouble;
        case 12: return at::kBool;
        case 16: return at::kComplexFloat;
        case 17: return at::kComplexDouble;
        case 27: return at::kBFloat16;
        case 33: return at::kComplexHalf;
        case 35: return at::kFloat8_e5m2;
        case 36: return at::kFloat8_e4m3fn;
        case 37: return at::kFloat8_e8m0fnu;
        default: return std::nullopt;
    }
}

at::Tensor to_tensor(const aclTensor* tensor) {
    if (!tensor) return {};
    const auto dtype = to_dtype(tensor->dtype);
    const at::IntArrayRef sizes(tensor->dims, static_cast<size_t>(tensor->rank));
    const at::IntArrayRef strides(tensor->strides, static_cast<size_t>(tensor->rank));
    // An empty tensor's storage may be null, which ATen's from_blob takes for device "none"; any address will do.
    static char nothing[16];
    void* begin = const_cast<char*>(extent(*tensor).begin);
    if (!begin) begin = nothing;
    if (dtype) return at::for_blob(begin, sizes).strides(strides).options(*dtype).target_device(at::kCPU).make_tensor();
    std::vector<int64_t> bytes(sizes.begin(), sizes.end());
    if (!bytes.empty()) bytes.back() = (bytes.back() * dtype_facts(tensor->dtype).bits + 7) / 8;
    return at::for_blob(begin, bytes).options(at::kByte).target_device(at::kCPU).make_tensor();
}

at::Scalar to_scalar(const aclScalar& scalar) {
    const auto as = [&](auto value) {
        std::memcpy(&value, scalar.value, sizeof value);
        return at::Scalar(value);
    };
    switch (to_dtype(scalar.dtype).value_or(at::ScalarType::Undefined)) {
        case at::kFloat: return as(float{});
        case at::kDouble: return as(double{});
        case at::kHalf: return as(at::Half{});
        case at::kBFloat16: return as(at::BFloat16{});
        case at::kLong: return as(int64_t{});
        case at::kInt: return as(int32_t{});
        case at::kShort: return as(int16_t{});
        case at::kChar: return as(int8_t{});
        case at::kByte: return as(uint8_t{});
        case at::kUInt16: return as(uint16_t{});
        case at::kUInt32: return as(uint32_t{});
        case at::kUInt64: return as(uint64_t{});
        case at::kBool: return as(bool{});
        case at::kComplexHalf: return as(c10::complex<at::Half>{});
        case at::kComplexFloat: return as(c10::complex<float>{});
        case at::kComplexDouble: return as(c10::complex<double>{});
        default: TORCH_CHECK(false, "a scalar of dtype ", dtype_facts(scalar.dtype).name, " is not supported");
    }
}

}  // namespace emu
