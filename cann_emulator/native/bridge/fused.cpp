// Faster forms of the kernels that dominate a training step in bf16, as torch operators that the Python kernels call.
// Each makes one pass over a row that stays in the first-level cache: bf16 in, fp32 between, one rounding at the end.
// The loops are plain, so that the compiler makes a version of each for every kind of vector unit.
#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#ifdef __x86_64__
#define FOR_EVERY_CPU __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EVERY_CPU
#endif

namespace emu {
namespace {

constexpr int64_t kGrain = 1 << 14;  // elements that are worth a thread
constexpr int64_t kChunk = 64;       // rows summed together: a sum over rows does not depend on the threads

inline float from_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
inline uint16_t to_bf16(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return static_cast<uint16_t>(value != value ? 0x7fc0u : rounded);
}

// e to the x, to 1e-7 relative; 0 below the smallest normal number.
inline float exponential(float x) {
    const float bounded = x > 88.0f ? 88.0f : x;
    const float n = std::nearbyint(bounded * 1.44269504088896341f);
    const float r = bounded - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const float safe = n < -126.0f ? -126.0f : n;
    const float power = std::bit_cast<float>(static_cast<uint32_t>(static_cast<int32_t>(safe) + 127) << 23);
    return x < -87.3f ? 0.0f : p * power;
}

// Integers in the order of the floats they are made of.
inline int32_t ordered(float value) {
    const int32_t bits = std::bit_cast<int32_t>(value);
    return bits ^ ((bits >> 31) & 0x7fffffff);
}

FOR_EVERY_CPU void widen(const uint16_t* in, float* out, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = from_bf16(in[i]);
}

FOR_EVERY_CPU void swiglu_row(const uint16_t* a, const uint16_t* b, uint16_t* out, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        const float x = from_bf16(a[i]);
        out[i] = to_bf16(x / (1.0f + exponential(-x)) * from_bf16(b[i]));
    }
}

FOR_EVERY_CPU void swiglu_grad_row(const uint16_t* grad, const uint16_t* a, const uint16_t* b, uint16_t* da,
                                   uint16_t* db, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        const float x = from_bf16(a[i]), g = from_bf16(grad[i]);
        const float gate = 1.0f / (1.0f + exponential(-x));
        db[i] = to_bf16(g * x * gate);
        da[i] = to_bf16(g * from_bf16(b[i]) * gate * (1.0f + x * (1.0f - gate)));
    }
}

FOR_EVERY_CPU float rms_norm_row(const uint16_t* x, const float* gamma, float epsilon, uint16_t* y, int64_t n) {
    float sum = 0.0f;
    for (int64_t i = 0; i < n; ++i) {
        const float value = from_bf16(x[i]);
        sum += value * value;
    }
    const float rstd = 1.0f / std::sqrt(sum / static_cast<float>(n) + epsilon);
    for (int64_t i = 0; i < n; ++i) y[i] = to_bf16(from_bf16(x[i]) * rstd * gamma[i]);
    return rstd;
}

FOR_EVERY_CPU void rms_norm_grad_row(const uint16_t* dy, const uint16_t* x, float rstd, const float* gamma,
                                     uint16_t* dx, float* dgamma, int64_t n) {
    float slope = 0.0f;
    for (int64_t i = 0; i < n; ++i) {
        const float grad = from_bf16(dy[i]), normalised = from_bf16(x[i]) * rstd;
        dgamma[i] += grad * normalised;
        slope += grad * gamma[i] * normalised;
    }
    slope /= static_cast<float>(n);
    for (int64_t i = 0; i < n; ++i) {
        dx[i] = to_bf16((from_bf16(dy[i]) * gamma[i] - from_bf16(x[i]) * rstd * slope) * rstd);
    }
}

// y = x cos + rotated(x) sin for `count` rows that share a row of the tables. Pairs (a, b) rotate to (-b, a): halves of
// the row, or neighbours. The gradient rotates back.
FOR_EVERY_CPU void rotary_halves(const uint16_t* x, const float* cos, const float* sin, uint16_t* y, int64_t half,
                                 int64_t count) {
    for (int64_t row = 0; row < count; ++row, x += 2 * half, y += 2 * half) {
        for (int64_t i = 0; i < half; ++i) {
            const float a = from_bf16(x[i]), b = from_bf16(x[i + half]);
            y[i] = to_bf16(a * cos[i] - b * sin[i]);
            y[i + half] = to_bf16(b * cos[i + half] + a * sin[i + half]);
        }
    }
}

FOR_EVERY_CPU void rotary_pairs(const uint16_t* x, const float* cos, const float* sin, uint16_t* y, int64_t half,
                                int64_t count) {
    for (int64_t row = 0; row < count; ++row, x += 2 * half, y += 2 * half) {
        for (int64_t i = 0; i < half; ++i) {
            const float a = from_bf16(x[2 * i]), b = from_bf16(x[2 * i + 1]);
            y[2 * i] = to_bf16(a * cos[2 * i] - b * sin[2 * i]);
            y[2 * i + 1] = to_bf16(b * cos[2 * i + 1] + a * sin[2 * i + 1]);
        }
    }
}

FOR_EVERY_CPU void rotary_grad_halves(const uint16_t* dy, const float* cos, const float* sin, uint16_t* dx,
                                      int64_t half, int64_t count) {
    for (int64_t row = 0; row < count; ++row, dy += 2 * half, dx += 2 * half) {
        for (int64_t i = 0; i < half; ++i) {
            const float a = from_bf16(dy[i]), b = from_bf16(dy[i + half]);
            dx[i] = to_bf16(a * cos[i] + b * sin[i + half]);
            dx[i + half] = to_bf16(b * cos[i + half] - a * sin[i]);
        }
    }
}

FOR_EVERY_CPU void rotary_grad_pairs(const uint16_t* dy, const float* cos, const float* sin, uint16_t* dx, int64_t half,
                                     int64_t count) {
    for (int64_t row = 0; row < count; ++row, dy += 2 * half, dx += 2 * half) {
        for (int64_t i = 0; i < half; ++i) {
            const float a = from_bf16(dy[2 * i]), b = from_bf16(dy[2 * i + 1]);
            dx[2 * i] = to_bf16(a * cos[2 * i] + b * sin[2 * i + 1]);
            dx[2 * i + 1] = to_bf16(b * cos[2 * i + 1] - a * sin[2 * i]);
        }
    }
}

// Replaces the first `seen` scores of a row by exp(score - maximum), the others by 0.
FOR_EVERY_CPU void softmax_row(float* row, int64_t seen, int64_t n, float* top, float* mass) {
    // The largest as integers of the same order, which the compiler can find several at a time; NaN is above all.
    int32_t key = ordered(-std::numeric_limits<float>::infinity());
    for (int64_t i = 0; i < seen; ++i) key = std::max(key, ordered(row[i]));
    const float highest = std::bit_cast<float>(key ^ ((key >> 31) & 0x7fffffff));
    float sum = 0.0f;
    for (int64_t i = 0; i < seen; ++i) {
        const float value = exponential(row[i] - highest);
        row[i] = value;
        sum += value;
    }
    for (int64_t i = seen; i < n; ++i) row[i] = 0.0f;
    *top = highest;
    *mass = sum;
}

uint16_t* bits(const at::Tensor& tensor) { return static_cast<uint16_t*>(tensor.data_ptr()); }

// Calls work(first, last + 1) for ranges of rows of `width` elements, on several threads where that pays.
template <typename Work>
void by_rows(int64_t rows, int64_t width, const Work& work) {
    at::parallel_for(0, rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(width, 1)), work);
}

void swiglu(const at::Tensor& x, const at::Tensor& out) {
    const int64_t n = x.size(-1) / 2, rows = x.numel() / std::max<int64_t>(2 * n, 1);
    by_rows(rows, n, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
            const uint16_t* row = bits(x) + r * 2 * n;
            swiglu_row(row, row + n, bits(out) + r * n, n);
        }
    });
}

void swiglu_grad(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& out) {
    const int64_t n = x.size(-1) / 2, rows = x.numel() / std::max<int64_t>(2 * n, 1);
    by_rows(rows, n, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
            const uint16_t* row = bits(x) + r * 2 * n;
            uint16_t* target = bits(out) + r * 2 * n;
            swiglu_grad_row(bits(grad) + r * n, row, row + n, target, target + n, n);
        }
    });
}

std::vector<float> widened(const at::Tensor& tensor) {
    std::vector<float> values(static_cast<size_t>(tensor.numel()));
    if (tensor.scalar_type() == at::kFloat) {
        std::copy_n(tensor.const_data_ptr<float>(), tensor.numel(), values.data());
    } else {
        widen(bits(tensor), values.data(), tensor.numel());
    }
    return values;
}

void rms_norm(const at::Tensor& x, const at::Tensor& gamma, double epsilon, const at::Tensor& y,
              const at::Tensor& rstd) {
    const int64_t n = gamma.numel();
    const auto factors = widened(gamma);
    float* statistic = rstd.data_ptr<float>();
    by_rows(x.numel() / std::max<int64_t>(n, 1), n, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
            statistic[r] =
                rms_norm_row(bits(x) + r * n, factors.data(), static_cast<float>(epsilon), bits(y) + r * n, n);
        }
    });
}

void rms_norm_grad(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd, const at::Tensor& gamma,
                   const at::Tensor& dx, const at::Tensor& dgamma) {
    const int64_t n = gamma.numel(), rows = x.numel() / std::max<int64_t>(n, 1);
    const int64_t chunks = (rows + kChunk - 1) / kChunk;
    const auto factors = widened(gamma);
    const float* statistic = rstd.const_data_ptr<float>();
    const at::Tensor partial = at::zeros({chunks, n}, at::kFloat);
    by_rows(chunks, n * kChunk, [&](int64_t begin, int64_t end) {
        for (int64_t c = begin; c < end; ++c) {
            for (int64_t r = c * kChunk; r < std::min(rows, (c + 1) * kChunk); ++r) {
                rms_norm_grad_row(bits(dy) + r * n, bits(x) + r * n, statistic[r], factors.data(), bits(dx) + r * n,
                                  partial.data_ptr<float>() + c * n, n);
            }
        }
    });
    dgamma.copy_(partial.sum(0).view(dgamma.sizes()));
}

using RotaryRows = void (*)(const uint16_t*, const float*, const float*, uint16_t*, int64_t, int64_t);

// Walks x [..., n] with tables that are broadcast to it. Rows of the last dimension but one that share a row of the
// tables, as the heads of a token do, go together.
void rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& y, RotaryRows rows) {
    const int64_t n = x.size(-1), inner = x.dim() > 1 ? x.size(-2) : 1;
    const at::Tensor wide_cos = cos.expand(x.sizes()), wide_sin = sin.expand(x.sizes());
    const bool shared = x.dim() > 1 && wide_cos.stride(-2) == 0 && wide_sin.stride(-2) == 0;
    const int64_t count = shared ? inner : 1, first = x.dim() - (shared ? 3 : 2);
    by_rows(x.numel() / std::max<int64_t>(n * count, 1), n * count, [&](int64_t begin, int64_t end) {
        std::vector<float> tables(static_cast<size_t>(2 * n));
        for (int64_t r = begin; r < end; ++r) {
            int64_t rest = r, cos_at = 0, sin_at = 0;
            for (int64_t d = first; d >= 0; --d) {
                const int64_t index = rest % x.size(d);
                rest /= x.size(d);
                cos_at += index * wide_cos.stride(d);
                sin_at += index * wide_sin.stride(d);
            }
            widen(bits(cos) + cos_at, tables.data(), n);
            widen(bits(sin) + sin_at, tables.data() + n, n);
            rows(bits(x) + r * n * count, tables.data(), tables.data() + n, bits(y) + r * n * count, n / 2, count);
        }
    });
}

void rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool pairs, const at::Tensor& y) {
    rotate(x, cos, sin, y, pairs ? rotary_pairs : rotary_halves);
}

void rotary_grad(const at::Tensor& dy, const at::Tensor& cos, const at::Tensor& sin, bool pairs, const at::Tensor& dx) {
    rotate(dy, cos, sin, dx, pairs ? rotary_grad_pairs : rotary_grad_halves);
}

// scores [..., rows, keys]: row r sees the keys up to r + last.
void softmax(const at::Tensor& scores, int64_t last, const at::Tensor& top, const at::Tensor& mass) {
    const int64_t n = scores.size(-1), height = scores.size(-2);
    by_rows(scores.numel() / std::max<int64_t>(n, 1), n, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
            const int64_t seen = std::min(n, std::max<int64_t>(0, r % height + last + 1));
            softmax_row(scores.data_ptr<float>() + r * n, seen, n, top.data_ptr<float>() + r, mass.data_ptr<float>() + r);
        }
    });
}

}  // namespace

TORCH_LIBRARY(cann_emulator, library) {
    library.def("swiglu(Tensor x, Tensor(a!) out) -> ()", &swiglu);
    library.def("swiglu_grad(Tensor grad, Tensor x, Tensor(a!) out) -> ()", &swiglu_grad);
    library.def("rms_norm(Tensor x, Tensor gamma, float epsilon, Tensor(a!) y, Tensor(b!) rstd) -> ()", &rms_norm);
    library.def("rms_norm_grad(Tensor dy, Tensor x, Tensor rstd, Tensor gamma, Tensor(a!) dx, Tensor(b!) dgamma) -> ()",
                &rms_norm_grad);
    library.def("rotary(Tensor x, Tensor cos, Tensor sin, bool pairs, Tensor(a!) y) -> ()", &rotary);
    library.def("rotary_grad(Tensor dy, Tensor cos, Tensor sin, bool pairs, Tensor(a!) dx) -> ()", &rotary_grad);
    library.def("softmax(Tensor(a!) scores, int last, Tensor(b!) top, Tensor(c!) mass) -> ()", &softmax);
}

}  // namespace emu
