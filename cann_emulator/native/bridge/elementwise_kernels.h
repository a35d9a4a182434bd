// The loops of the elementwise kernels. Included by a source file for each kind of vector unit, which names its
// namespace in ELEMENTWISE_LEVEL and is compiled with that unit's options. bf16 and fp16 are computed in fp32 and rounded
// once an operator, as the NPU does.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "elementwise_table.h"

namespace emu::ELEMENTWISE_LEVEL {
namespace {

struct bf16 {
    uint16_t bits;
    operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
    static bf16 from(float value) {
        const uint32_t wide = std::bit_cast<uint32_t>(value);
        const uint32_t rounded = (wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16;
        return {static_cast<uint16_t>(value != value ? 0x7fc0u : rounded)};
    }
};
#ifdef __F16C__
struct f16 {
    _Float16 value;
    operator float() const { return static_cast<float>(value); }
    static f16 from(float wide) { return {static_cast<_Float16>(wide)}; }
};
#else
struct f16 {
    c10::Half value;
    operator float() const { return static_cast<float>(value); }
    static f16 from(float wide) { return {static_cast<c10::Half>(wide)}; }
};
#endif

// What a dtype is computed in.
template <typename T>
struct Wide {
    using type = T;
};
template <>
struct Wide<bf16> {
    using type = float;
};
template <>
struct Wide<f16> {
    using type = float;
};
template <typename T>
using wide = typename Wide<T>::type;

template <typename T>
constexpr bool is_float = std::is_floating_point_v<wide<T>>;

template <typename To, typename From>
To narrow(From value) {
    if constexpr (std::is_same_v<To, bf16> || std::is_same_v<To, f16>) {
        return To::from(static_cast<float>(value));
    } else if constexpr (std::is_same_v<To, bool>) {
        return value != From(0);
    } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
        // Saturates; NaN is 0.
        constexpr From low = static_cast<From>(std::numeric_limits<To>::min());
        constexpr From high = static_cast<From>(std::numeric_limits<To>::max());  // rounds up where To is wide
        if (value != value) return 0;
        if (value <= low) return std::numeric_limits<To>::min();
        if (value >= high) return std::numeric_limits<To>::max();
        return static_cast<To>(value);
    } else {
        return static_cast<To>(value);
    }
}

// Signed arithmetic that wraps.
template <typename T, typename Op>
T wrapping(T a, T b, Op op) {
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
        using U = std::make_unsigned_t<T>;
        return static_cast<T>(static_cast<U>(op(static_cast<uint64_t>(static_cast<U>(a)), static_cast<uint64_t>(static_cast<U>(b)))));
    } else {
        return static_cast<T>(op(a, b));
    }
}

template <typename T>
T truncated_quotient(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
        if (b == 0) return static_cast<T>(-1);
        if constexpr (std::is_signed_v<T>) {
            if (b == -1) return wrapping(T(0), a, [](auto x, auto y) { return x - y; });
        }
        return static_cast<T>(a / b);
    } else {
        return std::trunc(a / b);
    }
}

template <typename T>
T floored_quotient(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
        const T q = truncated_quotient(a, b);
        if constexpr (std::is_signed_v<T>) {
            if (b != 0 && b != -1 && a % b != 0 && (a < 0) != (b < 0)) return static_cast<T>(q - 1);
        }
        return q;
    } else {
        return std::floor(a / b);
    }
}

template <typename T>
T truncated_remainder(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
        if (b == 0) return a;
        if constexpr (std::is_signed_v<T>) {
            if (b == -1) return 0;
        }
        return static_cast<T>(a % b);
    } else {
        return std::fmod(a, b);
    }
}

template <typename T>
T floored_remainder(T a, T b) {
    const T r = truncated_remainder(a, b);
    if constexpr (std::is_unsigned_v<T>) {
        return r;
    } else {
        return b != T(0) && r != T(0) && (r < T(0)) != (b < T(0)) ? static_cast<T>(r + b) : r;
    }
}

template <typename T>
T greater_of(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
        const T larger = a > b ? a : a < b ? b : std::signbit(a) ? b : a;  // equal: +0 is above -0
        return a != a ? a : b != b ? b : larger;
    } else {
        return a > b ? a : b;
    }
}
template <typename T>
T smaller_of(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
        const T smaller = a < b ? a : a > b ? b : std::signbit(a) ? a : b;
        return a != a ? a : b != b ? b : smaller;
    } else {
        return a < b ? a : b;
    }
}

template <typename T>
T power(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
        return std::pow(a, b);
    } else {
        if constexpr (std::is_signed_v<T>) {
            if (b < 0) return a == 1 ? T(1) : a == -1 ? (b & 1 ? T(-1) : T(1)) : T(0);
        }
        uint64_t base = static_cast<uint64_t>(a), result = 1;
        for (auto rest = static_cast<std::make_unsigned_t<T>>(b); rest; rest = static_cast<decltype(rest)>(rest >> 1)) {
            if (rest & 1) result *= base;
            base *= base;
        }
        return static_cast<T>(result);
    }
}

// A shift by the width or more moves everything out.
template <typename T>
T shifted_left(T a, T b) {
    using U = std::make_unsigned_t<T>;
    const auto by = static_cast<uint64_t>(static_cast<U>(b));
    return by >= sizeof(T) * 8 ? T(0) : static_cast<T>(static_cast<U>(static_cast<U>(a) << by));
}
template <typename T>
T shifted_right(T a, T b) {
    using U = std::make_unsigned_t<T>;
    const auto by = static_cast<uint64_t>(static_cast<U>(b));
    constexpr uint64_t top = sizeof(T) * 8 - 1;
    if constexpr (std::is_signed_v<T>) return static_cast<T>(a >> (by > top ? top : by));
    return by > top ? T(0) : static_cast<T>(a >> by);
}

template <typename Result, typename T, typename Op>
void unary(void* result, const void* a, int64_t n, Op op) {
    auto* out = static_cast<Result*>(result);
    const auto* x = static_cast<const T*>(a);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) out[i] = narrow<Result>(op(static_cast<wide<T>>(x[i])));
}
template <typename Result, typename T, typename Op>
void binary(void* result, const void* a, const void* b, int64_t n, Op op) {
    auto* out = static_cast<Result*>(result);
    const auto* x = static_cast<const T*>(a);
    const auto* y = static_cast<const T*>(b);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) out[i] = narrow<Result>(op(static_cast<wide<T>>(x[i]), static_cast<wide<T>>(y[i])));
}
template <typename T>
void select(void* result, const void* condition, const void* a, const void* b, int64_t n) {
    auto* out = static_cast<T*>(result);
    const auto* c = static_cast<const uint8_t*>(condition);
    const auto* x = static_cast<const T*>(a);
    const auto* y = static_cast<const T*>(b);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) out[i] = c[i] ? x[i] : y[i];
}
template <typename To, typename From>
void cast(void* result, const void* a, const void*, const void*, int64_t n) {
    auto* out = static_cast<To*>(result);
    const auto* x = static_cast<const From*>(a);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) out[i] = narrow<To>(static_cast<wide<From>>(x[i]));
}

#define UNARY(name, Result, expression)                                                                     \
    template <typename T>                                                                                   \
    void name(void* result, const void* a, const void*, const void*, int64_t n) {                           \
        using W = wide<T>;                                                                                  \
        unary<Result, T>(result, a, n, [](W x) { return expression; });                                     \
    }
#define BINARY(name, Result, expression)                                                                    \
    template <typename T>                                                                                   \
    void name(void* result, const void* a, const void* b, const void*, int64_t n) {                         \
        using W = wide<T>;                                                                                  \
        binary<Result, T>(result, a, b, n, [](W x, W y) { return expression; });                            \
    }

BINARY(add, T, wrapping(x, y, [](auto p, auto q) { return p + q; }))
BINARY(sub, T, wrapping(x, y, [](auto p, auto q) { return p - q; }))
BINARY(mul, T, wrapping(x, y, [](auto p, auto q) { return p * q; }))
BINARY(divide, T, x / y)
BINARY(divide_truncating, T, truncated_quotient(x, y))
BINARY(divide_flooring, T, floored_quotient(x, y))
BINARY(remainder_truncating, T, truncated_remainder(x, y))
BINARY(remainder_flooring, T, floored_remainder(x, y))
BINARY(maximum, T, greater_of(x, y))
BINARY(minimum, T, smaller_of(x, y))
BINARY(pow_, T, power(x, y))
BINARY(atan2_, T, std::atan2(x, y))
BINARY(equal, bool, x == y)
BINARY(not_equal, bool, x != y)
BINARY(less, bool, x < y)
BINARY(less_equal, bool, x <= y)
BINARY(greater, bool, x > y)
BINARY(greater_equal, bool, x >= y)
BINARY(bit_and, T, static_cast<W>(x & y))
BINARY(bit_or, T, static_cast<W>(x | y))
BINARY(bit_xor, T, static_cast<W>(x ^ y))
BINARY(shift_left, T, shifted_left(x, y))
BINARY(shift_right, T, shifted_right(x, y))
UNARY(bit_not, T, static_cast<W>(~x))
UNARY(neg, T, wrapping(W(0), x, [](auto p, auto q) { return p - q; }))
UNARY(neg_float, T, -x)
UNARY(abs_, T, x < W(0) ? wrapping(W(0), x, [](auto p, auto q) { return p - q; }) : x)
UNARY(abs_float, T, std::abs(x))
UNARY(sign, T, x > W(0) ? W(1) : x < W(0) ? static_cast<W>(-1) : x)
UNARY(square, T, wrapping(x, x, [](auto p, auto q) { return p * q; }))
UNARY(sqrt_, T, std::sqrt(x))
UNARY(rsqrt, T, W(1) / std::sqrt(x))
UNARY(reciprocal, T, W(1) / x)
UNARY(exp_, T, std::exp(x))
UNARY(expm1_, T, std::expm1(x))
UNARY(log_, T, std::log(x))
UNARY(log1p_, T, std::log1p(x))
UNARY(sin_, T, std::sin(x))
UNARY(cos_, T, std::cos(x))
UNARY(tan_, T, std::tan(x))
UNARY(asin_, T, std::asin(x))
UNARY(acos_, T, std::acos(x))
UNARY(atan_, T, std::atan(x))
UNARY(sinh_, T, std::sinh(x))
UNARY(cosh_, T, std::cosh(x))
UNARY(tanh_, T, std::tanh(x))
UNARY(asinh_, T, std::asinh(x))
UNARY(acosh_, T, std::acosh(x))
UNARY(atanh_, T, std::atanh(x))
UNARY(erf_, T, std::erf(x))
UNARY(erfc_, T, std::erfc(x))
UNARY(sigmoid, T, W(1) / (W(1) + std::exp(-x)))
UNARY(floor_, T, std::floor(x))
UNARY(ceil_, T, std::ceil(x))
UNARY(trunc_, T, std::trunc(x))
UNARY(rint_, T, std::nearbyint(x))
UNARY(relu, T, x > W(0) || x != x ? x : W(0))
UNARY(is_nan, bool, x != x)
UNARY(is_inf, bool, std::abs(x) == std::numeric_limits<W>::infinity())
UNARY(is_finite, bool, std::abs(x) < std::numeric_limits<W>::infinity())

template <typename T>
void population_count(void* result, const void* a, const void*, const void*, int64_t n) {
    auto* out = static_cast<uint8_t*>(result);
    const auto* x = static_cast<const T*>(a);
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<uint8_t>(std::popcount(static_cast<std::make_unsigned_t<T>>(x[i])));
}

void logical_and(void* result, const void* a, const void* b, const void*, int64_t n) {
    binary<bool, bool>(result, a, b, n, [](bool x, bool y) { return x && y; });
}
void logical_or(void* result, const void* a, const void* b, const void*, int64_t n) {
    binary<bool, bool>(result, a, b, n, [](bool x, bool y) { return x || y; });
}
void logical_not(void* result, const void* a, const void*, const void*, int64_t n) {
    unary<bool, bool>(result, a, n, [](bool x) { return !x; });
}

#define ENTRY(text, kernel, bytes) entries[std::string(text) + "." + dtype] = {kernel, static_cast<int>(bytes)};
#define SAME(text, name) ENTRY(text, name<T>, sizeof(T))
#define TRUTH(text, name) ENTRY(text, name<T>, 1)

template <typename T>
void fill_compares(ElementwiseEntries& entries, const std::string& dtype) {
    TRUTH("eq", equal) TRUTH("ne", not_equal) TRUTH("lt", less) TRUTH("le", less_equal) TRUTH("gt", greater)
    TRUTH("ge", greater_equal)
}

template <typename T>
void fill_casts(ElementwiseEntries& entries, const std::string& dtype) {
    entries["cast." + dtype + ".f32"] = {cast<float, T>, 4};
    entries["cast." + dtype + ".f64"] = {cast<double, T>, 8};
    entries["cast." + dtype + ".f16"] = {cast<f16, T>, 2};
    entries["cast." + dtype + ".bf16"] = {cast<bf16, T>, 2};
    entries["cast." + dtype + ".i8"] = {cast<int8_t, T>, 1};
    entries["cast." + dtype + ".i16"] = {cast<int16_t, T>, 2};
    entries["cast." + dtype + ".i32"] = {cast<int32_t, T>, 4};
    entries["cast." + dtype + ".i64"] = {cast<int64_t, T>, 8};
    entries["cast." + dtype + ".u8"] = {cast<uint8_t, T>, 1};
    entries["cast." + dtype + ".u16"] = {cast<uint16_t, T>, 2};
    entries["cast." + dtype + ".u32"] = {cast<uint32_t, T>, 4};
    entries["cast." + dtype + ".u64"] = {cast<uint64_t, T>, 8};
    entries["cast." + dtype + ".bool"] = {cast<bool, T>, 1};
}

template <typename T>
void fill_numbers(ElementwiseEntries& entries, const std::string& dtype) {
    SAME("add", add) SAME("sub", sub) SAME("mul", mul) SAME("max", maximum) SAME("min", minimum) SAME("pow", pow_)
    SAME("tdiv", divide_truncating) SAME("fdiv", divide_flooring) SAME("tmod", remainder_truncating)
    SAME("fmod", remainder_flooring) SAME("sign", sign) SAME("square", square) SAME("relu", relu)
    fill_compares<T>(entries, dtype);
    fill_casts<T>(entries, dtype);
}

template <typename T>
void fill_floats(ElementwiseEntries& entries, const std::string& dtype) {
    fill_numbers<T>(entries, dtype);
    SAME("div", divide) SAME("atan2", atan2_) SAME("neg", neg_float) SAME("abs", abs_float) SAME("sqrt", sqrt_)
    SAME("rsqrt", rsqrt) SAME("reciprocal", reciprocal) SAME("exp", exp_) SAME("expm1", expm1_) SAME("log", log_)
    SAME("log1p", log1p_) SAME("sin", sin_) SAME("cos", cos_) SAME("tan", tan_) SAME("asin", asin_) SAME("acos", acos_)
    SAME("atan", atan_) SAME("sinh", sinh_) SAME("cosh", cosh_) SAME("tanh", tanh_) SAME("asinh", asinh_)
    SAME("acosh", acosh_) SAME("atanh", atanh_) SAME("erf", erf_) SAME("erfc", erfc_) SAME("sigmoid", sigmoid)
    SAME("floor", floor_) SAME("ceil", ceil_) SAME("trunc", trunc_) SAME("rint", rint_)
    TRUTH("isnan", is_nan) TRUTH("isinf", is_inf) TRUTH("isfinite", is_finite)
}

template <typename T>
void fill_integers(ElementwiseEntries& entries, const std::string& dtype) {
    fill_numbers<T>(entries, dtype);
    SAME("neg", neg) SAME("abs", abs_) SAME("and", bit_and) SAME("or", bit_or) SAME("xor", bit_xor) SAME("not", bit_not)
    SAME("shl", shift_left) SAME("shr", shift_right)
    ENTRY("popcount", population_count<T>, 1)
}

}  // namespace

void fill(ElementwiseEntries& entries) {
    fill_floats<float>(entries, "f32");
    fill_floats<double>(entries, "f64");
    fill_floats<f16>(entries, "f16");
    fill_floats<bf16>(entries, "bf16");
    fill_integers<int8_t>(entries, "i8");
    fill_integers<int16_t>(entries, "i16");
    fill_integers<int32_t>(entries, "i32");
    fill_integers<int64_t>(entries, "i64");
    fill_integers<uint8_t>(entries, "u8");
    fill_integers<uint16_t>(entries, "u16");
    fill_integers<uint32_t>(entries, "u32");
    fill_integers<uint64_t>(entries, "u64");
    fill_compares<bool>(entries, "bool");
    fill_casts<bool>(entries, "bool");
    entries["and.bool"] = {logical_and, 1};
    entries["or.bool"] = {logical_or, 1};
    entries["not.bool"] = {logical_not, 1};
    entries["select.1"] = {select<uint8_t>, 1};
    entries["select.2"] = {select<uint16_t>, 2};
    entries["select.4"] = {select<uint32_t>, 4};
    entries["select.8"] = {select<uint64_t>, 8};
}

}  // namespace emu::ELEMENTWISE_LEVEL
