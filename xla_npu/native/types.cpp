#include "types.h"

#include <cstring>
#include <numeric>

#include "failure.h"

namespace npu {
namespace {
struct Type {
    const char* name;
    size_t size;
};
constexpr Type types[PJRT_TYPES] = {
    {"invalid", 0},    {"pred", 1},   {"s8", 1},       {"s16", 2},           {"s32", 4},
    {"s64", 8},        {"u8", 1},     {"u16", 2},      {"u32", 4},           {"u64", 8},
    {"f16", 2},        {"f32", 4},    {"f64", 8},      {"bf16", 2},          {"c64", 8},
    {"c128", 16},      {"f8e5m2", 1}, {"f8e4m3fn", 1}, {"f8e4m3b11fnuz", 1}, {"f8e5m2fnuz", 1},
    {"f8e4m3fnuz", 1}, {"s4", 1},     {"u4", 1},       {"token", 0},         {"s2", 1},
    {"u2", 1},         {"f8e4m3", 1}, {"f8e3m4", 1},   {"f8e8m0fnu", 1},     {"f4e2m1fn", 1},
    {"s1", 1},         {"u1", 1},
};

const Type& look_up(PJRT_Buffer_Type type) {
    if (type >= PJRT_TYPES)
        fail(PJRT_UNIMPLEMENTED, "Element type %u is unknown to this plugin", static_cast<unsigned>(type));
    return types[type];
}

template <size_t element>
void copy_row(char* to, int64_t to_stride, const char* from, int64_t from_stride, int64_t count) {
    for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * to_stride, from + i * from_stride, element);
}

using RowCopy = void (*)(char*, int64_t, const char*, int64_t, int64_t);
RowCopy row_copy(size_t element) {
    switch (element) {
        case 1:
            return copy_row<1>;
        case 2:
            return copy_row<2>;
        case 4:
            return copy_row<4>;
        case 8:
            return copy_row<8>;
        default:
            return copy_row<16>;
    }
}

void copy_dimension(size_t axis, char* to, const Dims& to_strides, const char* from, const Dims& from_strides,
                    const Dims& dims, RowCopy copy) {
    if (axis + 1 == dims.size()) return copy(to, to_strides[axis], from, from_strides[axis], dims[axis]);
    for (int64_t i = 0; i < dims[axis]; ++i) {
        copy_dimension(axis + 1, to + i * to_strides[axis], to_strides, from + i * from_strides[axis], from_strides,
                       dims, copy);
    }
}
}  // namespace

size_t size_of(PJRT_Buffer_Type type) {
    if (type == PJRT_INVALID) fail(PJRT_INVALID_ARGUMENT, "An array without an element type");
    return look_up(type).size;
}

const char* name_of(PJRT_Buffer_Type type) { return look_up(type).name; }

PJRT_Buffer_Type type_named(const std::string& name) {
    for (uint32_t i = 0; i < PJRT_TYPES; ++i) {
        if (name == types[i].name) return static_cast<PJRT_Buffer_Type>(i);
    }
    fail(PJRT_INTERNAL, "The compiler named an element type '%s', which is none", name.c_str());
}

size_t count_of(const Dims& dims) {
    return std::accumulate(dims.begin(), dims.end(), size_t{1},
                           [](size_t product, int64_t dim) { return product * dim; });
}

Dims dense_strides(const Dims& dims, size_t element) {
    Dims strides(dims.size());
    int64_t stride = static_cast<int64_t>(element);
    for (size_t i = dims.size(); i-- > 0;) {
        strides[i] = stride;
        stride *= dims[i];
    }
    return strides;
}

Dims strides_of(const PJRT_Buffer_MemoryLayout* layout, const Dims& dims, size_t element) {
    if (!layout) return dense_strides(dims, element);
    if (layout->type == PJRT_LAYOUT_STRIDES) {
        const auto& strides = layout->strides;
        if (strides.num_byte_strides != dims.size()) {
            fail(PJRT_INVALID_ARGUMENT, "A layout of %zu strides for an array of %zu dimensions",
                 strides.num_byte_strides, dims.size());
        }
        return Dims(strides.byte_strides, strides.byte_strides + strides.num_byte_strides);
    }
    const auto& tiled = layout->tiled;
    if (tiled.num_tiles != 0) {
        fail(PJRT_UNIMPLEMENTED, "Tiled layouts are not supported: arrays on this platform are dense");
    }
    if (tiled.minor_to_major_size != dims.size()) {
        fail(PJRT_INVALID_ARGUMENT, "A layout of %zu dimensions for an array of %zu", tiled.minor_to_major_size,
             dims.size());
    }
    Dims strides(dims.size());
    int64_t stride = static_cast<int64_t>(element);
    for (size_t i = 0; i < dims.size(); ++i) {
        const auto axis = static_cast<size_t>(tiled.minor_to_major[i]);
        strides[axis] = stride;
        stride *= dims[axis];
    }
    return strides;
}

bool is_dense(const Dims& dims, const Dims& strides, size_t element) {
    int64_t stride = static_cast<int64_t>(element);
    for (size_t i = dims.size(); i-- > 0;) {
        if (dims[i] == 0) return true;
        if (dims[i] != 1 && strides[i] != stride) return false;
        stride *= dims[i];
    }
    return true;
}

void copy_strided(void* to, const Dims& to_strides, const void* from, const Dims& from_strides, const Dims& dims,
                  size_t element) {
    if (count_of(dims) == 0) return;
    if (dims.empty()) {
        std::memcpy(to, from, element);
        return;
    }
    copy_dimension(0, static_cast<char*>(to), to_strides, static_cast<const char*>(from), from_strides, dims,
                   row_copy(element));
}

}  // namespace npu
