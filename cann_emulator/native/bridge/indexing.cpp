// Gather and scatter by tuples of indices, and windows at computed places, as torch operators that the kernels of Graph
// Engine's operators call. Elements are moved as bytes; an index outside of a tensor is an error, as on the NPU.
#include <ATen/Dispatch.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/ops/view_as_real.h>
#include <torch/library.h>

#include <cmath>
#include <cstring>
#include <vector>

namespace emu {
namespace {

template <typename Work>
void with_index(const at::Tensor& indices, const Work& work) {
    if (indices.scalar_type() == at::kInt) {
        work(indices.const_data_ptr<int32_t>());
    } else {
        TORCH_CHECK(indices.scalar_type() == at::kLong, "indices must be int32 or int64");
        work(indices.const_data_ptr<int64_t>());
    }
}

[[noreturn]] void outside(int64_t index, int64_t size) {
    TORCH_CHECK(false, "index ", index, " is outside of a dimension of size ", size,
                ": on the NPU this reads or writes memory that does not belong to the tensor");
}

// x[..., indices, ...] along `axis`; the first `batch` dimensions of both go together.
void gather(const at::Tensor& given, const at::Tensor& given_indices, int64_t axis, int64_t batch, const at::Tensor& y) {
    const at::Tensor x = given.contiguous(), indices = given_indices.contiguous();
    int64_t outer_batch = 1, outer = 1, inner = x.element_size();
    for (int64_t d = 0; d < batch; ++d) outer_batch *= x.size(d);
    for (int64_t d = batch; d < axis; ++d) outer *= x.size(d);
    for (int64_t d = axis + 1; d < x.dim(); ++d) inner *= x.size(d);
    const int64_t size = x.size(axis), count = outer_batch ? indices.numel() / outer_batch : 0;
    const char* from = static_cast<const char*>(x.const_data_ptr());
    char* to = static_cast<char*>(y.data_ptr());
    with_index(indices, [&](const auto* index) {
        for (int64_t b = 0; b < outer_batch; ++b, index += count) {
            for (int64_t o = 0; o < outer; ++o, from += size * inner) {
                for (int64_t i = 0; i < count; ++i, to += inner) {
                    if (index[i] < 0 || index[i] >= size) outside(index[i], size);
                    std::memcpy(to, from + index[i] * inner, static_cast<size_t>(inner));
                }
            }
        }
    });
}

template <typename T, typename Index>
void gather_along(const T* from, const Index* index, T* to, int64_t outer, int64_t size, int64_t count, int64_t inner) {
    for (int64_t o = 0; o < outer; ++o, from += size * inner) {
        for (int64_t i = 0; i < count * inner; ++i, ++index, ++to) {
            if (*index < 0 || *index >= size) outside(*index, size);
            *to = from[*index * inner + i % inner];
        }
    }
}

// y[i][j] = x[index[i][j]][j], for dimension 0 of two.
void gather_elements(const at::Tensor& given, int64_t dim, const at::Tensor& given_index, const at::Tensor& y) {
    const int64_t rank = given.dim(), axis = dim < 0 ? dim + rank : dim;
    bool same = rank > 0;
    int64_t outer = 1, inner = 1;
    for (int64_t d = 0; d < rank; ++d) {
        if (d == axis) continue;
        same = same && given.size(d) == given_index.size(d);
        (d < axis ? outer : inner) *= given.size(d);
    }
    if (!same || given.element_size() > 8) {
        y.copy_(given.gather(dim, given_index.to(at::kLong)));
        return;
    }
    const at::Tensor x = given.contiguous(), indices = given_index.contiguous();
    const int64_t size = x.size(axis), count = indices.size(axis);
    with_index(indices, [&](const auto* index) {
        const auto run = [&](auto element) {
            using T = decltype(element);
            gather_along(static_cast<const T*>(x.const_data_ptr()), index, static_cast<T*>(y.data_ptr()), outer, size,
                         count, inner);
        };
        switch (x.element_size()) {
            case 1: return run(uint8_t{});
            case 2: return run(uint16_t{});
            case 4: return run(uint32_t{});
            default: return run(uint64_t{});
        }
    });
}

// Where a tuple of indices points, in slices; walks the rows of `indices`.
template <typename Work>
void each_slice(const at::Tensor& indices, at::IntArrayRef dims, const Work& work) {
    const int64_t depth = indices.size(-1);
    int64_t rows = 1;
    for (int64_t d = 0; d + 1 < indices.dim(); ++d) rows *= indices.size(d);
    with_index(indices, [&](const auto* index) {
        for (int64_t row = 0; row < rows; ++row, index += depth) {
            int64_t slice = 0;
            for (int64_t d = 0; d < depth; ++d) {
                const int64_t size = dims[static_cast<size_t>(d)];
                if (index[d] < 0 || index[d] >= size) outside(index[d], size);
                slice = slice * size + index[d];
            }
            work(row, slice);
        }
    });
}

int64_t slice_elements(const at::Tensor& x, int64_t depth) {
    int64_t count = 1;
    for (int64_t d = depth; d < x.dim(); ++d) count *= x.size(d);
    return count;
}

void gather_nd(const at::Tensor& given, const at::Tensor& given_indices, const at::Tensor& y) {
    const at::Tensor x = given.contiguous(), indices = given_indices.contiguous();
    const int64_t bytes = slice_elements(x, indices.size(-1)) * x.element_size();
    const char* from = static_cast<const char*>(x.const_data_ptr());
    char* to = static_cast<char*>(y.data_ptr());
    if (bytes == 4) {
        auto* words = reinterpret_cast<uint32_t*>(to);
        const auto* source = reinterpret_cast<const uint32_t*>(from);
        each_slice(indices, x.sizes(), [&](int64_t row, int64_t slice) { words[row] = source[slice]; });
        return;
    }
    each_slice(indices, x.sizes(), [&](int64_t row, int64_t slice) {
        std::memcpy(to + row * bytes, from + slice * bytes, static_cast<size_t>(bytes));
    });
}

enum Mode : int64_t { kUpdate, kAdd, kSub, kMax, kMin, kMul, kDiv };

template <typename T>
T combined(T a, T b, int64_t mode) {
    switch (mode) {
        case kAdd: return a + b;
        case kSub: return a - b;
        case kMul: return a * b;
        case kDiv: return a / b;
        case kMax: return a != a ? a : (b != b || b > a) ? b : a;
        default: return a != a ? a : (b != b || b < a) ? b : a;
    }
}

// y[indices] = combined(y[indices], updates), row after row.
void scatter_nd(const at::Tensor& y, const at::Tensor& given_indices, const at::Tensor& given_updates, int64_t mode) {
    const at::Tensor indices = given_indices.contiguous(), updates = given_updates.contiguous();
    const int64_t count = slice_elements(y, indices.size(-1));
    if (mode == kUpdate) {
        const int64_t bytes = count * y.element_size();
        char* to = static_cast<char*>(y.data_ptr());
        const char* from = static_cast<const char*>(updates.const_data_ptr());
        each_slice(indices, y.sizes(), [&](int64_t row, int64_t slice) {
            std::memcpy(to + slice * bytes, from + row * bytes, static_cast<size_t>(bytes));
        });
        return;
    }
    if (y.is_complex()) {
        TORCH_CHECK(mode == kAdd || mode == kSub, "complex numbers have no order");
        const at::Tensor parts = at::view_as_real(y), part_updates = at::view_as_real(updates);
        return scatter_nd(parts, indices, part_updates, mode);
    }
    if (y.scalar_type() == at::kUInt16 || y.scalar_type() == at::kUInt32 || y.scalar_type() == at::kUInt64) {
        AT_DISPATCH_V2(y.scalar_type(), "scatter_nd", AT_WRAP([&] {
            auto* to = y.data_ptr<scalar_t>();
            const auto* from = updates.const_data_ptr<scalar_t>();
            each_slice(indices, y.sizes(), [&](int64_t row, int64_t slice) {
                for (int64_t i = 0; i < count; ++i) {
                    to[slice * count + i] = combined(to[slice * count + i], from[row * count + i], mode);
                }
            });
        }), at::kUInt16, at::kUInt32, at::kUInt64);
        return;
    }
    AT_DISPATCH_ALL_TYPES_AND3(at::kHalf, at::kBFloat16, at::kBool, y.scalar_type(), "scatter_nd", [&] {
        auto* to = y.data_ptr<scalar_t>();
        const auto* from = updates.const_data_ptr<scalar_t>();
        each_slice(indices, y.sizes(), [&](int64_t row, int64_t slice) {
            for (int64_t i = 0; i < count; ++i) {
                const scalar_t a = to[slice * count + i], b = from[row * count + i];
                if constexpr (std::is_same_v<scalar_t, bool>) {
                    to[slice * count + i] = mode == kMin || mode == kMul ? a && b : a || b;
                } else {
                    to[slice * count + i] = combined(a, b, mode);
                }
            }
        });
    });
}

// The part of x of y's shape that begins at `offsets`.
void window(const at::Tensor& x, const at::Tensor& offsets, const at::Tensor& y) {
    at::Tensor part = x;
    with_index(offsets, [&](const auto* offset) {
        int64_t at = x.storage_offset();
        for (int64_t d = 0; d < x.dim(); ++d) {
            if (offset[d] < 0 || offset[d] + y.size(d) > x.size(d)) outside(offset[d], x.size(d) - y.size(d) + 1);
            at += offset[d] * x.stride(d);
        }
        part = x.as_strided(y.sizes(), x.strides(), at);
    });
    y.copy_(part);
}

// y = x, which costs nothing where both lie in the same place: an input whose memory an output shares.
void begin_as(const at::Tensor& x, const at::Tensor& y) {
    if (x.const_data_ptr() != y.const_data_ptr() || x.strides() != y.strides()) y.copy_(x);
}

}  // namespace
}  // namespace emu

TORCH_LIBRARY_FRAGMENT(cann_emulator, library) {
    library.def("gather(Tensor x, Tensor indices, int axis, int batch, Tensor(a!) y) -> ()", &emu::gather);
    library.def("gather_elements(Tensor x, int dim, Tensor index, Tensor(a!) y) -> ()", &emu::gather_elements);
    library.def("gather_nd(Tensor x, Tensor indices, Tensor(a!) y) -> ()", &emu::gather_nd);
    library.def("scatter_nd(Tensor(a!) y, Tensor indices, Tensor updates, int mode) -> ()", &emu::scatter_nd);
    library.def("begin_as(Tensor x, Tensor(a!) y) -> ()", &emu::begin_as);
    library.def("window(Tensor x, Tensor offsets, Tensor(a!) y) -> ()", &emu::window);
}
