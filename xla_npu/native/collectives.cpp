#include "collectives.h"

#include <algorithm>
#include <cstring>

#include "cann.h"
#include "hccl.h"

namespace npu {
namespace {
constexpr const char* reductions[] = {"sum", "prod", "max", "min"};  // in the order of HCCL's numbers

uint32_t reduction_named(const std::string& name) {
    const auto found = std::find(std::begin(reductions), std::end(reductions), name);
    if (found == std::end(reductions)) fail(PJRT_UNIMPLEMENTED, "Collectives do not reduce by '%s'", name.c_str());
    return static_cast<uint32_t>(found - std::begin(reductions));
}

void copy(const Model::Span& to, const Model::Span& from, void* stream) {
    if (from.bytes == 0 || to.data == from.data) return;
    NPU_CALL(aclrtMemcpyAsync, to.data, to.bytes, from.data, from.bytes, device_to_device, stream);
}
}  // namespace

void Communicators::release() {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [devices, communicators] : communicators_) {
        for (void* communicator : communicators) hccl().HcclCommDestroy(communicator);
    }
    communicators_.clear();
}

void* Communicators::get(const std::vector<int32_t>& devices, size_t rank) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& found = communicators_[devices];
    if (found.empty()) {
        std::vector<void*> made(devices.size());
        auto ids = devices;
        NPU_HCCL(HcclCommInitAll, static_cast<uint32_t>(ids.size()), ids.data(), made.data());
        found = std::move(made);
    }
    return found[rank];
}

void Communicators::run(const Step& step, const Program& program, const Loaded& loaded, const Model::Span& input,
                        const Model::Span& output) {
    if (step.operation == "collective_permute") return permute(step, program, loaded, input, output);
    void* stream = loaded.device->compute->handle;
    const std::vector<int64_t>* group = nullptr;
    size_t rank = 0;
    for (const auto& each : step.groups) {
        const auto found = std::find(each.begin(), each.end(), loaded.logical_id);
        if (found == each.end()) continue;
        group = &each;
        rank = static_cast<size_t>(found - each.begin());
    }
    if (!group || group->size() == 1 || step.count == 0) return copy(output, input, stream);
    std::vector<int32_t> devices;
    for (const int64_t id : *group) devices.push_back(program.assignment.at(static_cast<size_t>(id)));
    void* communicator = get(devices, rank);
    loaded.device->activate();
    // What is only moved may go as bytes; what HCCL reduces has a number there.
    const int number = hccl_type(step.type);
    const bool as_bytes = number < 0;
    const uint64_t count = as_bytes ? step.count * size_of(step.type) : step.count;
    const auto type = static_cast<uint32_t>(as_bytes ? hccl_type(PJRT_S8) : number);
    const bool reduces = step.operation == "all_reduce" || step.operation == "reduce_scatter";
    if (reduces && as_bytes) fail(PJRT_UNIMPLEMENTED, "HCCL does not reduce %s", name_of(step.type));
    if (step.operation == "all_reduce") {
        NPU_HCCL(HcclAllReduce, input.data, output.data, count, type, reduction_named(step.reduction), communicator,
                 stream);
    } else if (step.operation == "all_gather") {
        NPU_HCCL(HcclAllGather, input.data, output.data, count, type, communicator, stream);
    } else if (step.operation == "reduce_scatter") {
        NPU_HCCL(HcclReduceScatter, input.data, output.data, count / devices.size(), type,
                 reduction_named(step.reduction), communicator, stream);
    } else if (step.operation == "all_to_all") {
        const uint64_t part = count / devices.size();
        NPU_HCCL(HcclAlltoAll, input.data, part, type, output.data, part, type, communicator, stream);
    } else if (step.operation == "broadcast") {
        copy(output, input, stream);
        NPU_HCCL(HcclBroadcast, output.data, count, type, 0, communicator, stream);
    } else {
        fail(PJRT_UNIMPLEMENTED, "The collective '%s' is not supported", step.operation.c_str());
    }
}

// Groups are pairs of source and target. A target without a source gets zeros.
void Communicators::permute(const Step& step, const Program& program, const Loaded& loaded, const Model::Span& input,
                            const Model::Span& output) {
    void* stream = loaded.device->compute->handle;
    std::vector<int64_t> members;  // all that take part, in order
    for (const auto& pair : step.groups) members.insert(members.end(), pair.begin(), pair.end());
    std::sort(members.begin(), members.end());
    members.erase(std::unique(members.begin(), members.end()), members.end());
    const auto rank_of = [&](int64_t id) {
        return static_cast<uint32_t>(std::lower_bound(members.begin(), members.end(), id) - members.begin());
    };
    const auto type = static_cast<uint32_t>(hccl_type(PJRT_S8));
    std::vector<HcclItem> items;
    bool filled = false;
    for (const auto& pair : step.groups) {
        const int64_t source = pair.at(0), target = pair.at(1), self = loaded.logical_id;
        if (source == self && target == self) {
            copy(output, input, stream);
        } else if (source == self) {
            items.push_back({HcclItem::send, input.data, input.bytes, type, rank_of(target)});
        } else if (target == self) {
            items.push_back({HcclItem::receive, output.data, output.bytes, type, rank_of(source)});
        }
        filled = filled || target == self;
    }
    loaded.device->activate();
    if (!filled && output.bytes) NPU_CALL(aclrtMemsetAsync, output.data, output.bytes, 0, output.bytes, stream);
    if (items.empty() || input.bytes == 0) return;
    std::vector<int32_t> devices;
    for (const int64_t id : members) devices.push_back(program.assignment.at(static_cast<size_t>(id)));
    NPU_HCCL(HcclBatchSendRecv, items.data(), static_cast<uint32_t>(items.size()),
             get(devices, rank_of(loaded.logical_id)), stream);
}

}  // namespace npu
