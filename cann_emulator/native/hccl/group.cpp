// HcclGroupStart ... HcclGroupEnd: the sends and receives between them make progress together, whatever their order.
#include <utility>

#include "api.h"

namespace hccl {
namespace {
using Entry = std::pair<std::shared_ptr<Communicator>, Operation>;

struct Group {
    int depth = 0;
    std::vector<Entry> entries;
};
thread_local Group group;

// All point-to-point operations of one communicator and stream become one, in the place of the first.
std::vector<Entry> merged(std::vector<Entry> entries) {
    std::vector<Entry> result;
    for (auto& [communicator, operation] : entries) {
        Operation* same = nullptr;
        if (!operation.is_collective())
            for (auto& [other, earlier] : result)
                if (other == communicator && earlier.stream == operation.stream && !earlier.is_collective()) same = &earlier;
        if (!same) {
            result.emplace_back(std::move(communicator), std::move(operation));
            continue;
        }
        same->call = Call{};
        same->call.op = Op::batch_send_recv;
        same->payload += operation.payload;
        same->transfers.insert(same->transfers.end(), operation.transfers.begin(), operation.transfers.end());
    }
    return result;
}
}  // namespace

HcclResult submit(std::shared_ptr<Communicator> communicator, Operation operation) {
    if (group.depth == 0) return communicator->enqueue(std::move(operation));
    group.entries.emplace_back(std::move(communicator), std::move(operation));
    return HCCL_SUCCESS;
}

}  // namespace hccl

using namespace hccl;

HCCL_API HcclResult HcclGroupStart() {
    ++group.depth;
    return HCCL_SUCCESS;
}

HCCL_API HcclResult HcclGroupEnd() {
    if (group.depth == 0) return refuse(Fault::bad_argument, "HcclGroupEnd without HcclGroupStart.");
    if (--group.depth) return HCCL_SUCCESS;
    HcclResult result = HCCL_SUCCESS;
    for (auto& [communicator, operation] : merged(std::exchange(group.entries, {}))) {
        const auto status = communicator->enqueue(std::move(operation));
        if (result == HCCL_SUCCESS) result = status;
    }
    return result;
}
