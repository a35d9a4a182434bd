// The two phases of an aclnn call.
#include "launch.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>

#include "backend.h"
#include "kernel_package.h"

namespace emu {

// What the first phase hands to the second one.
struct Executor {
    int op;
    std::vector<Slot> slots;
    std::vector<std::string> strings;  // copies: the caller's may be gone by the second phase
};

namespace {

constexpr int kParamInvalid = 161002;
constexpr int kNoKernel = 561003;
constexpr int kAddressOutOfRange = 507035;
constexpr int kHost = -1;  // the device of pinned host memory
constexpr int kAnyDevice = -1;

struct Limit {
    int arg;
    uint64_t allowed;
};

// Limits by operator. Written while the backend loads, only read after that.
std::vector<std::vector<Limit>>& limits() {
    static std::vector<std::vector<Limit>> table(static_cast<size_t>(kOperatorCount));
    return table;
}

std::vector<std::atomic<int>>& counters() {
    static std::vector<std::atomic<int>> ids(static_cast<size_t>(kOperatorCount));
    return ids;
}

std::string dtype_list(uint64_t allowed) {
    std::string text;
    for (int dtype = 0; dtype < 64; ++dtype) {
        if (allowed >> dtype & 1) text += (text.empty() ? "" : ",") + std::string(dtype_facts(dtype).name);
    }
    return text;
}

int check_dtype(const Operator& op, int arg, const aclTensor* tensor, uint64_t allowed) {
    if (!tensor || (tensor->dtype >= 0 && tensor->dtype < 64 && allowed >> tensor->dtype & 1)) return 0;
    // CANN's own words, which people search for.
    return fail_text(kParamInvalid, std::string("EZ1001: ") + op.name + ": Tensor " + op.arg_names[arg] +
                                        " not implemented for " + dtype_facts(tensor->dtype).name +
                                        ", should be in dtype support list [" + dtype_list(allowed) + "].");
}

int check_limits(int op, const Slot* slots) {
    for (const Limit& limit : limits()[static_cast<size_t>(op)]) {
        const Operator& facts = kOperators[op];
        const Slot bits = slots[limit.arg];
        if (facts.kinds[limit.arg] == static_cast<char>(ArgKind::tensor_list)) {
            if (!bits) continue;
            for (aclTensor* tensor : object<aclTensorList>(bits)->tensors) {
                if (int code = check_dtype(facts, limit.arg, tensor, limit.allowed)) return code;
            }
        } else if (int code = check_dtype(facts, limit.arg, object<aclTensor>(bits), limit.allowed)) {
            return code;
        }
    }
    return 0;
}

// Refuses memory that is not the device's: on hardware the access would fault. `home` is the device that runs the
// operator, or kAnyDevice. Adds the tensor's size to `bytes`.
int check_memory(const Operator& op, int arg, const aclTensor* tensor, int home, int64_t* bytes) {
    if (!tensor) return 0;
    const Extent range = extent(*tensor);
    if (range.bytes == 0) return 0;
    *bytes += element_count(*tensor) * dtype_facts(tensor->dtype).bits / 8;
    int device = -1;
    const Access access = check_access(range.begin, range.bytes, &device);
    if (access == Access::ok) {
        if (device == home || device == kHost || home == kAnyDevice) return 0;
        return fail(kAddressOutOfRange,
                    "%s: argument %s lies on device %d, and the stream that runs the operator belongs to device %d. "
                    "Operators do not reach another device's memory: move the tensor first (.to('npu:%d')).",
                    op.name, op.arg_names[arg], device, home, home);
    }
    return fail(kAddressOutOfRange,
                "%s: argument %s, %zu bytes at %p, %s. The device address is out of range.", op.name,
                op.arg_names[arg], range.bytes, static_cast<const void*>(range.begin),
                access == Access::freed ? "was freed before the launch" : "is not inside one device allocation");
}

int check_all_memory(const Operator& op, const Slot* slots, int home, int64_t* bytes) {
    for (int arg = 0; op.kinds[arg]; ++arg) {
        if (!slots[arg]) continue;
        if (op.kinds[arg] == static_cast<char>(ArgKind::tensor)) {
            if (int code = check_memory(op, arg, object<aclTensor>(slots[arg]), home, bytes)) return code;
        } else if (op.kinds[arg] == static_cast<char>(ArgKind::tensor_list)) {
            for (aclTensor* tensor : object<aclTensorList>(slots[arg])->tensors) {
                if (int code = check_memory(op, arg, tensor, home, bytes)) return code;
            }
        }
    }
    return 0;
}

int counter_of(int op) {
    auto& id = counters()[static_cast<size_t>(op)];
    int known = id.load(std::memory_order_relaxed);
    if (known == 0) {  // 0 is "not asked yet": ids are kept plus one
        known = counter_id(Kind::kernel, kOperators[op].name) + 1;
        id.store(known, std::memory_order_relaxed);
    }
    return known - 1;
}

// `peers`: whether the operator may use other devices' memory.
int run(int op, const Slot* slots, void* stream, bool peers) {
    if (int code = stream_drain(stream)) return code;
    const int device = stream_device(stream);
    int64_t bytes = 0;
    if (int code = check_all_memory(kOperators[op], slots, peers ? kAnyDevice : device, &bytes)) return code;
    const int64_t start = now_ns();
    if (int code = load_backend()->run(op, slots)) return code;
    record(counter_of(op), device, stream_id(stream), start, now_ns(), bytes);
    return 0;
}

}  // namespace

const Operator& operator_at(int op) { return kOperators[op]; }
int operator_count() { return kOperatorCount; }

int operator_index(const char* name) {
    const Operator* end = kOperators + kOperatorCount;
    const Operator* found = std::lower_bound(
        kOperators, end, name, [](const Operator& op, const char* key) { return std::strcmp(op.name, key) < 0; });
    return found != end && std::strcmp(found->name, name) == 0 ? static_cast<int>(found - kOperators) : -1;
}

void set_dtype_limit(int op, int arg, uint64_t allowed) {
    limits()[static_cast<size_t>(op)].push_back({arg, allowed});
}

int prepare(int op, const Slot* slots, uint64_t* workspace_size, Executor** executor) {
    const Operator& facts = kOperators[op];
    if (!workspace_size || !executor) {
        return fail(161001, "%s: workspaceSize and executor must not be null", facts.name);
    }
    const Backend* backend = load_backend();
    if (!backend) return kNoKernel;  // load_backend said why
    if (!backend->implements(op)) {
        return fail(kNoKernel,
                    "%s is not implemented by the CANN emulator. Add a row to cann_emulator/signatures/rows/ if it is "
                    "one ATen operator, else a function decorated with @kernel(\"%s\") to a file of "
                    "cann_emulator/kernels/ (CONTRIBUTING.md shows both).",
                    facts.name, facts.name);
    }
    if (int code = check_kernel_package(facts)) return code;
    if (int code = check_limits(op, slots)) return code;
    auto made = std::make_unique<Executor>();
    made->op = op;
    const size_t count = std::strlen(facts.kinds);
    made->slots.assign(slots, slots + count);
    made->strings.reserve(count);
    for (size_t arg = 0; arg < count; ++arg) {
        if (facts.kinds[arg] == static_cast<char>(ArgKind::string) && slots[arg]) {
            made->strings.emplace_back(object<const char>(slots[arg]));
            made->slots[arg] = slot(made->strings.back().c_str());
        }
    }
    *workspace_size = 0;  // kernels take what they need from the host
    *executor = made.release();
    return 0;
}

int launch(Executor* raw, void* stream) {
    if (!raw) return fail(161001, "aclnn: the executor is null; the first phase failed or was not called");
    const std::unique_ptr<Executor> executor(raw);
    return run(executor->op, executor->slots.data(), stream, false);
}

}  // namespace emu

extern "C" EMU_API int aclDestroyAclOpExecutor(emu::Executor* executor) {
    delete executor;
    return 0;
}

// For copies between devices, which a stream of either device may run.
extern "C" EMU_API int emu_copy_views(const aclTensor* to, const aclTensor* from, void* stream) {
    static const int op = emu::operator_index("aclnnInplaceCopy");
    const emu::Slot slots[] = {emu::slot(to), emu::slot(from), 0};
    if (!emu::load_backend()) return emu::kNoKernel;
    if (int code = emu::check_limits(op, slots)) return code;
    return emu::run(op, slots, stream, true);
}
