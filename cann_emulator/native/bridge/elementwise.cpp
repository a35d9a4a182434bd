#include "elementwise.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <unordered_map>

#include "elementwise_table.h"

namespace emu {
namespace {

constexpr int64_t kBlock = 1024;                 // elements
constexpr int64_t kRegisterBytes = kBlock * 8;   // enough for the widest dtype
constexpr int64_t kGrain = 1 << 15;              // operator applications that are worth a thread

const std::unordered_map<std::string, ElementwiseEntry>& table() {
    static const auto entries = [] {
        std::unordered_map<std::string, ElementwiseEntry> made;
#ifdef __x86_64__
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
            __builtin_cpu_supports("avx512dq")) {
            elementwise_v4::fill(made);
            return made;
        }
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
            elementwise_v3::fill(made);
            return made;
        }
#endif
        elementwise_base::fill(made);
        return made;
    }();
    return entries;
}

template <typename T>
void gather_run(char* to, const char* from, int64_t count, int64_t stride) {
    auto* result = reinterpret_cast<T*>(to);
    const auto* source = reinterpret_cast<const T*>(from);
    if (stride == 1) {
        std::memcpy(result, source, static_cast<size_t>(count) * sizeof(T));
    } else if (stride == 0) {
        std::fill_n(result, count, *source);
    } else {
        for (int64_t i = 0; i < count; ++i) result[i] = source[i * stride];
    }
}

// Elements [begin, begin + count) of a strided tensor, in order.
template <typename T>
void gather(char* to, const char* from, const std::vector<int64_t>& dims, const std::vector<int64_t>& strides,
            int64_t begin, int64_t count) {
    int64_t index[64];
    const int rank = static_cast<int>(dims.size());
    int64_t rest = begin, offset = 0;
    for (int d = rank - 1; d >= 0; --d) {
        index[d] = rest % dims[static_cast<size_t>(d)];
        rest /= dims[static_cast<size_t>(d)];
        offset += index[d] * strides[static_cast<size_t>(d)];
    }
    const int64_t inner = dims.back(), inner_stride = strides.back();
    while (count > 0) {
        const int64_t run = std::min(count, inner - index[rank - 1]);
        gather_run<T>(to, from + offset * static_cast<int64_t>(sizeof(T)), run, inner_stride);
        to += run * static_cast<int64_t>(sizeof(T));
        count -= run;
        offset += run * inner_stride;
        index[rank - 1] += run;
        for (int d = rank - 1; d > 0 && index[d] == dims[static_cast<size_t>(d)]; --d) {
            offset += strides[static_cast<size_t>(d - 1)] - dims[static_cast<size_t>(d)] * strides[static_cast<size_t>(d)];
            index[d] = 0;
            ++index[d - 1];
        }
    }
}

void gather_bytes(int bytes, char* to, const char* from, const std::vector<int64_t>& dims,
                  const std::vector<int64_t>& strides, int64_t begin, int64_t count) {
    switch (bytes) {
        case 1: return gather<uint8_t>(to, from, dims, strides, begin, count);
        case 2: return gather<uint16_t>(to, from, dims, strides, begin, count);
        case 4: return gather<uint32_t>(to, from, dims, strides, begin, count);
        default: return gather<uint64_t>(to, from, dims, strides, begin, count);
    }
}

// Drops dimensions of size 1 and merges neighbours that one stride walks.
void merge(std::vector<int64_t>& dims, std::vector<int64_t>& strides) {
    std::vector<int64_t> sizes, steps;
    for (size_t d = 0; d < dims.size(); ++d) {
        if (dims[d] == 1) continue;
        if (!sizes.empty() && steps.back() == strides[d] * dims[d]) {
            sizes.back() *= dims[d];
            steps.back() = strides[d];
        } else {
            sizes.push_back(dims[d]);
            steps.push_back(strides[d]);
        }
    }
    if (sizes.empty()) sizes.push_back(1), steps.push_back(0);
    dims = sizes, strides = steps;
}

}  // namespace

ElementwiseKernel elementwise_kernel(const std::string& name) {
    const auto found = table().find(name);
    return found == table().end() ? nullptr : found->second.kernel;
}

int elementwise_result_bytes(const std::string& name) { return table().at(name).result_bytes; }

void ElementwiseProgram::compile(int64_t count, const std::vector<at::Tensor>& read,
                                 const std::vector<ElementwiseCode>& code,
                                 const std::vector<std::pair<int, at::Tensor>>& written) {
    count_ = count;
    cost_ = static_cast<int64_t>(code.size());
    std::vector<Place> values(read.size() + code.size());
    std::vector<size_t> last_use(values.size(), 0);
    size_t last_read = 0;  // the last operation that reads a dense input
    for (size_t k = 0; k < code.size(); ++k) {
        for (size_t i = 1; i < code[k].values.size(); ++i) last_use[static_cast<size_t>(code[k].values[i])] = k;
    }
    for (const auto& [value, tensor] : written) last_use[static_cast<size_t>(value)] = code.size();
    for (size_t i = 0; i < read.size(); ++i) {
        const at::Tensor& tensor = read[i];
        const int bytes = static_cast<int>(tensor.element_size());
        TORCH_CHECK(tensor.numel() == count, "an elementwise input has another number of elements");
        values[i].bytes = bytes;
        tensors_.push_back(tensor);
        if (tensor.is_contiguous()) {
            values[i].memory = static_cast<int>(i);
            last_read = std::max(last_read, last_use[i]);
            continue;
        }
        Load load{static_cast<int>(i), registers_, bytes, tensor.sizes().vec(), tensor.strides().vec(), false};
        merge(load.dims, load.strides);
        load.constant = load.dims.size() == 1 && load.strides[0] == 0;
        values[i].reg = registers_++;
        loads_.push_back(std::move(load));
    }
    // Registers of inputs stay: one that is constant is filled once. The others are taken again after the last use.
    std::vector<int> unused;
    for (size_t k = 0; k < code.size(); ++k) {
        const ElementwiseEntry* entry = nullptr;
        const auto found = table().find(code[k].operation);
        TORCH_CHECK(found != table().end(), "there is no elementwise kernel ", code[k].operation);
        entry = &found->second;
        Operation operation{entry->kernel, {}, {}};
        for (size_t i = 1; i < code[k].values.size(); ++i) {
            operation.operands[i - 1] = values[static_cast<size_t>(code[k].values[i])];
        }
        Place& result = values[static_cast<size_t>(code[k].values[0])];
        result.bytes = entry->result_bytes;
        // A result goes to its output directly, unless an input that may lie in the same memory is read later.
        const at::Tensor* output = nullptr;
        for (const auto& [value, tensor] : written) {
            if (value == code[k].values[0] && !output) output = &tensor;
        }
        // A register whose value is read here for the last time can take the result, unless the result's elements are
        // wider: they would overwrite operands before those are read.
        std::vector<int> later;
        for (size_t i = 1; i < code[k].values.size(); ++i) {
            const auto operand = static_cast<size_t>(code[k].values[i]);
            const Place& place = values[operand];
            const auto known = [&](const std::vector<int>& list) {
                return std::find(list.begin(), list.end(), place.reg) != list.end();
            };
            if (operand < read.size() || last_use[operand] != k || place.reg < 0 || known(unused) || known(later)) continue;
            (place.bytes >= result.bytes ? unused : later).push_back(place.reg);
        }
        if (output && k >= last_read) {
            result.memory = static_cast<int>(tensors_.size());
            tensors_.push_back(*output);
        } else if (unused.empty()) {
            result.reg = registers_++;
        } else {
            result.reg = unused.back();
            unused.pop_back();
        }
        unused.insert(unused.end(), later.begin(), later.end());
        operation.result = result;
        operations_.push_back(operation);
    }
    for (const auto& [value, tensor] : written) {
        const Place& place = values[static_cast<size_t>(value)];
        TORCH_CHECK(tensor.is_contiguous() && static_cast<int>(tensor.element_size()) == place.bytes,
                    "an elementwise output has another layout");
        if (place.memory >= 0 && static_cast<size_t>(place.memory) >= read.size() &&
            tensors_[static_cast<size_t>(place.memory)].is_same(tensor)) {
            continue;
        }
        TORCH_CHECK(place.reg >= 0, "an elementwise result is written twice");
        stores_.push_back({place.reg, static_cast<int>(tensors_.size()), place.bytes});
        tensors_.push_back(tensor);
    }
}

void ElementwiseProgram::run_range(int64_t begin, int64_t end, char* const* places) const {
    thread_local std::vector<char> scratch;
    const auto wanted = static_cast<size_t>(registers_ * kRegisterBytes + 64);
    if (scratch.size() < wanted) scratch.resize(wanted);
    char* registers = scratch.data();
    const auto reg = [&](int index) { return registers + index * kRegisterBytes; };
    for (const Load& load : loads_) {
        if (load.constant) {
            gather_bytes(load.bytes, reg(load.reg), places[load.tensor], load.dims, load.strides, 0,
                         std::min(kBlock, end - begin));
        }
    }
    for (int64_t at = begin; at < end; at += kBlock) {
        const int64_t n = std::min(kBlock, end - at);
        const auto place = [&](const Place& value) -> char* {
            if (value.memory >= 0) return places[value.memory] + at * value.bytes;
            return value.reg >= 0 ? reg(value.reg) : nullptr;
        };
        for (const Load& load : loads_) {
            if (load.constant) continue;
            gather_bytes(load.bytes, reg(load.reg), places[load.tensor], load.dims, load.strides, at, n);
        }
        for (const Operation& operation : operations_) {
            operation.kernel(place(operation.result), place(operation.operands[0]), place(operation.operands[1]),
                             place(operation.operands[2]), n);
        }
        for (const Store& store : stores_) {
            std::memcpy(places[store.tensor] + at * store.bytes, reg(store.reg), static_cast<size_t>(n * store.bytes));
        }
    }
}

void ElementwiseProgram::run() const {
    if (count_ == 0) return;
    constexpr size_t kFew = 32;
    char* few[kFew];
    std::vector<char*> many;
    char** places = few;
    if (tensors_.size() > kFew) {
        many.resize(tensors_.size());
        places = many.data();
    }
    for (size_t i = 0; i < tensors_.size(); ++i) places[i] = static_cast<char*>(tensors_[i].data_ptr());
    const int64_t grain = std::max<int64_t>(kBlock, kGrain / std::max<int64_t>(cost_, 1));
    if (count_ <= grain) return run_range(0, count_, places);
    at::parallel_for(0, count_, grain, [&](int64_t begin, int64_t end) { run_range(begin, end, places); });
}

}  // namespace emu
