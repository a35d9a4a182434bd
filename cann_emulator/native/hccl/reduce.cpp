#include "reduce.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "constants.h"

// One library for every x86-64: the wider clone is chosen when it is loaded.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HCCL_WIDE __attribute__((target_clones("default", "arch=haswell")))
#else
#define HCCL_WIDE
#endif

namespace hccl {
namespace {

// Data are reduced block by block, so that the accumulators stay in the first-level cache.
constexpr size_t block = 1024;

template <class To, class From> To bits_of(From value) {
    static_assert(sizeof(To) == sizeof(From));
    To result;
    std::memcpy(&result, &value, sizeof(result));
    return result;
}

struct Bfloat16 {
    uint16_t bits;
};
inline float widen(Bfloat16 value) { return bits_of<float>(static_cast<uint32_t>(value.bits) << 16); }
inline void narrow(float value, Bfloat16* result) {
    const auto bits = bits_of<uint32_t>(value);
    const uint32_t nearest_even = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    result->bits = static_cast<uint16_t>(is_nan ? 0x7fc0u : nearest_even);
}

#ifdef __FLT16_MANT_DIG__
using Float16 = _Float16;
inline float widen(Float16 value) { return static_cast<float>(value); }
inline void narrow(float value, Float16* result) { *result = static_cast<Float16>(value); }
#else
// For compilers without the type (gcc before 12).
struct Float16 {
    uint16_t bits;
};
inline float widen(Float16 value) {
    const uint32_t sign = (value.bits & 0x8000u) << 16, rest = (value.bits & 0x7fffu) << 13;
    const bool finite = rest < 0x7c00u << 13;
    // The exponents of the two types are 112 apart; the product is exact for subnormal numbers too.
    const auto magnitude = finite ? bits_of<uint32_t>(bits_of<float>(rest) * 0x1p112f) : rest | 0x7f800000u;
    return bits_of<float>(sign | magnitude);
}
inline void narrow(float value, Float16* result) {
    const auto bits = bits_of<uint32_t>(value), magnitude = bits & 0x7fffffffu;
    uint32_t half;
    if (magnitude > 0x7f800000u) half = 0x7e00u;                  // not a number
    else if (magnitude < 113u << 23)                              // below the smallest normal number: units of 2^-24
        half = static_cast<uint32_t>(std::nearbyint(bits_of<float>(magnitude) * 0x1p24f));
    else half = std::min(((magnitude + 0xfffu + ((magnitude >> 13) & 1u)) >> 13) - (112u << 10), 0x7c00u);
    result->bits = static_cast<uint16_t>((bits >> 16 & 0x8000u) | half);
}
#endif

template <class T> T widen(T value) { return value; }
template <class T> void narrow(T value, T* result) { *result = value; }
// In which the values of a type are summed up.
template <class T> using Wide = decltype(widen(T{}));

// Sums and products of integers wrap around, which only unsigned arithmetic does.
template <class T, bool = std::is_integral_v<T>> struct Wrapping { using type = T; };
template <class T> struct Wrapping<T, true> {
    using type = std::conditional_t<(sizeof(T) < 4), uint32_t, std::make_unsigned_t<T>>;
};
template <class T> using wrapping_t = typename Wrapping<T>::type;

struct Sum {
    template <class T> static T apply(T a, T b) {
        return static_cast<T>(static_cast<wrapping_t<T>>(a) + static_cast<wrapping_t<T>>(b));
    }
};
struct Product {
    template <class T> static T apply(T a, T b) {
        return static_cast<T>(static_cast<wrapping_t<T>>(a) * static_cast<wrapping_t<T>>(b));
    }
};
struct Max {
    template <class T> static T apply(T a, T b) { return a < b ? b : a; }
};
struct Min {
    template <class T> static T apply(T a, T b) { return b < a ? b : a; }
};

template <class T, class Reduction>
inline __attribute__((always_inline)) void reduce_blocks(T* target, const void* const* sources, size_t ranks,
                                                         size_t count) {
    Wide<T> sum[block];
    for (size_t begin = 0; begin < count; begin += block) {
        const size_t length = std::min(block, count - begin);
        const T* first = static_cast<const T*>(sources[0]) + begin;
        for (size_t i = 0; i < length; ++i) sum[i] = widen(first[i]);
        for (size_t rank = 1; rank < ranks; ++rank) {
            const T* next = static_cast<const T*>(sources[rank]) + begin;
            for (size_t i = 0; i < length; ++i) sum[i] = Reduction::template apply<Wide<T>>(sum[i], widen(next[i]));
        }
        for (size_t i = 0; i < length; ++i) narrow(sum[i], &target[begin + i]);
    }
}

template <class T>
inline __attribute__((always_inline)) void reduce_as(uint32_t reduction, void* target, const void* const* sources,
                                                     size_t ranks, size_t count) {
    T* typed = static_cast<T*>(target);
    switch (reduction) {
        case HCCL_REDUCE_SUM: return reduce_blocks<T, Sum>(typed, sources, ranks, count);
        case HCCL_REDUCE_PROD: return reduce_blocks<T, Product>(typed, sources, ranks, count);
        case HCCL_REDUCE_MAX: return reduce_blocks<T, Max>(typed, sources, ranks, count);
        case HCCL_REDUCE_MIN: return reduce_blocks<T, Min>(typed, sources, ranks, count);
    }
}
}  // namespace

HCCL_WIDE void reduce(uint32_t dtype, uint32_t reduction, void* target, const void* const* sources, size_t ranks,
                      size_t count) {
    switch (dtype) {
        case HCCL_DATA_TYPE_INT8: return reduce_as<int8_t>(reduction, target, sources, ranks, count);
        case HCCL_DATA_TYPE_INT16: return reduce_as<int16_t>(reduction, target, sources, ranks, count);
        case HCCL_DATA_TYPE_INT32: return reduce_as<int32_t>(reduction, target, sources, ranks, count);
        case HCCL_DATA_TYPE_INT64: return reduce_as<int64_t>(reduction, target, sources, ranks, count);
        case HCCL_DATA_TYPE_UINT64: return reduce_as<uint64_t>(reduction, target, sources, ranks, count);
        case HCCL_DATA_TYPE_FP16: return reduce_as<Float16>(reduction, target, sources, ranks, count);
        case HCCL_DATA_TYPE_BFP16: return reduce_as<Bfloat16>(reduction, target, sources, ranks, count);
        case HCCL_DATA_TYPE_FP32: return reduce_as<float>(reduction, target, sources, ranks, count);
        case HCCL_DATA_TYPE_FP64: return reduce_as<double>(reduction, target, sources, ranks, count);
    }
}

}  // namespace hccl
