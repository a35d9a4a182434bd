// Creating, dividing, asking and destroying communicators.
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "api.h"

namespace hccl {
namespace {

// The part of HcclCommConfig that has an effect; `size` says how much of it the caller has.
struct Config {
    size_t size;
    uint32_t magic, version;
    uint64_t reserved;
    uint32_t buffer_size, deterministic;
    char name[COMM_NAME_MAX_LENGTH];
    char udi[128];
    uint32_t op_expansion_mode, traffic_class, service_level, world_rank;
    uint64_t job;
    uint8_t zero_copy;
    int32_t exec_timeout;
};
static_assert(offsetof(Config, name) == 32 && offsetof(Config, exec_timeout) == 316);

Failure read_config(const void* data, Settings* settings) {
    *settings = Settings::from_environment();
    if (!data) return {};
    const auto* config = static_cast<const Config*>(data);
    if (config->magic != HCCL_COMM_CONFIG_MAGIC_WORD)
        return {Fault::bad_argument, "config was not prepared by HcclCommConfigInit."};
    if (config->size >= offsetof(Config, udi)) settings->name.assign(config->name, strnlen(config->name, sizeof(config->name) - 1));
    if (config->size >= offsetof(Config, exec_timeout) + sizeof(config->exec_timeout) && config->exec_timeout >= 0)
        settings->exec_timeout_s = config->exec_timeout;
    return {};
}

RootId read_root(const void* info) {
    RootId root;
    std::memcpy(&root, info, sizeof(root));
    return root;
}

HcclResult check_ranks(uint32_t ranks, uint32_t rank) {
    if (ranks == 0 || ranks > max_ranks)
        return refuse(Fault::bad_argument, "nRanks=%u, which is not in 1 to %u.", ranks, max_ranks);
    if (rank >= ranks) return refuse(Fault::bad_argument, "rank=%u, but nRanks=%u.", rank, ranks);
    return HCCL_SUCCESS;
}

HcclResult initialise(uint32_t ranks, const void* info, uint32_t rank, const void* config, void** comm) {
    if (!info || !comm) return refuse(Fault::bad_pointer, "rootInfo or comm is null.");
    if (const auto result = check_ranks(ranks, rank)) return result;
    const int device = emu::current_device();
    if (device < 0) return refuse(Fault::bad_argument, "no device is set in this thread. Call aclrtSetDevice first.");
    Settings settings;
    if (const auto failure = read_config(config, &settings); failure.fault != Fault::none) return refuse(failure);
    const auto root = read_root(info);
    auto communicator = std::make_shared<Communicator>(root, rank, device, std::move(settings));
    emu::GilPause pause;
    auto failure = claim_device_port(communicator->physical_device());
    if (failure.fault == Fault::none) failure = communicator->join(ranks);
    if (failure.fault == Fault::none) failure = communicator->connect();
    Segment::release(root);
    if (failure.fault != Fault::none) return refuse(failure);
    *comm = keep(std::move(communicator));
    return HCCL_SUCCESS;
}

HcclResult make_root(RootId* root) {
    if (const auto failure = claim_host_port(); failure.fault != Fault::none) return refuse(failure);
    *root = Segment::create();
    if (root->file < 0) return refuse(Fault::internal, "cannot make shared memory: %s.", std::strerror(errno));
    return HCCL_SUCCESS;
}

// Where a rank is told something about one communicator.
template <class Use> HcclResult with(void* comm, const Use& use) {
    const auto communicator = find(comm);
    return communicator ? use(*communicator) : HCCL_E_PARA;
}

template <class Value> HcclResult answer(Value* to, Value value) {
    if (!to) return refuse(Fault::bad_pointer, "the pointer for the result is null.");
    *to = value;
    return HCCL_SUCCESS;
}

}  // namespace
}  // namespace hccl

using namespace hccl;

HCCL_API HcclResult HcclGetRootInfo(void* info) {
    if (!info) return refuse(Fault::bad_pointer, "rootInfo is null.");
    RootId root;
    if (const auto result = make_root(&root)) return result;
    std::memset(info, 0, HCCL_ROOT_INFO_BYTES);
    std::memcpy(info, &root, sizeof(root));
    return HCCL_SUCCESS;
}

HCCL_API HcclResult HcclGetRootInfoScalable(void* info) { return HcclGetRootInfo(info); }

HCCL_API HcclResult HcclCommInitRootInfo(uint32_t ranks, const void* info, uint32_t rank, void** comm) {
    return initialise(ranks, info, rank, nullptr, comm);
}

HCCL_API HcclResult HcclCommInitRootInfoConfig(uint32_t ranks, const void* info, uint32_t rank, const void* config,
                                               void** comm) {
    return initialise(ranks, info, rank, config, comm);
}

// All roots are on this machine, so that the first one can serve every rank.
HCCL_API HcclResult HcclCommInitRootInfoScalable(uint32_t ranks, uint32_t roots, const void* infos, uint32_t rank,
                                                 uint32_t, const void* config, void** comm) {
    if (roots == 0) return refuse(Fault::bad_argument, "nRoot is 0.");
    return initialise(ranks, infos, rank, config, comm);
}

// One process with a rank for each device.
HCCL_API HcclResult HcclCommInitAll(uint32_t count, int32_t* devices, void** comms) {
    if (!devices || !comms) return refuse(Fault::bad_pointer, "devices or comms is null.");
    if (const auto result = check_ranks(count, 0)) return result;
    RootId root;
    if (const auto result = make_root(&root)) return result;
    std::vector<std::shared_ptr<Communicator>> communicators;
    Failure failure;
    for (uint32_t rank = 0; rank < count && failure.fault == Fault::none; ++rank) {
        if (devices[rank] < 0 || devices[rank] >= emu::device_count())
            failure = {Fault::bad_device, format("devices[%u]=%d, but there are %d devices.", rank, devices[rank],
                                                 emu::device_count())};
        communicators.push_back(std::make_shared<Communicator>(root, rank, devices[rank], Settings::from_environment()));
        if (failure.fault == Fault::none) failure = communicators.back()->join(count);
    }
    for (const auto& communicator : communicators)
        if (failure.fault == Fault::none) failure = communicator->connect();
    Segment::release(root);
    if (failure.fault != Fault::none) return refuse(failure);
    for (uint32_t rank = 0; rank < count; ++rank) comms[rank] = keep(std::move(communicators[rank]));
    return HCCL_SUCCESS;
}

HCCL_API HcclResult HcclCreateSubCommConfig(void** comm, uint32_t ranks, uint32_t* members, uint64_t id, uint32_t rank,
                                            const void* config, void** result) {
    if (!comm || !result) return refuse(Fault::bad_pointer, "comm or subComm is null.");
    // What a rank passes that does not belong to the new communicator.
    if (!members && id == 0xFFFFFFFF) {
        *result = nullptr;
        return HCCL_SUCCESS;
    }
    if (!members) return refuse(Fault::bad_pointer, "rankIds is null.");
    const auto parent = find(*comm);
    if (!parent) return HCCL_E_PARA;
    if (const auto code = check_ranks(ranks, rank)) return code;
    uint64_t name = id ^ 0x9e3779b97f4a7c15ull;
    for (uint32_t i = 0; i < ranks; ++i) {
        if (members[i] >= parent->size())
            return refuse(Fault::bad_argument, "rankIds[%u]=%u, but the communicator has %u ranks.", i, members[i],
                          parent->size());
        name = (name ^ members[i]) * 0x100000001b3ull;
    }
    if (members[rank] != parent->rank())
        return refuse(Fault::bad_argument, "rankIds[subCommRankId=%u]=%u, but this is rank %u.", rank, members[rank],
                      parent->rank());
    RootId root{};
    Failure failure;
    if (rank == 0) {
        if (const auto code = make_root(&root)) return code;
        failure = parent->announce(name, root);
    } else {
        emu::GilPause pause;
        failure = parent->find_announced(name, &root);
    }
    if (failure.fault != Fault::none) return refuse(failure);
    const auto code = initialise(ranks, &root, rank, config, result);
    if (rank == 0) parent->withdraw(name);
    return code;
}

// torch_npu goes on with root info where a rank table is refused.
HCCL_API HcclResult HcclCommInitClusterInfoConfig(const char* table, uint32_t, const void*, void**) {
    return refuse(Fault::not_supported, "rank tables (%s) are not read by the emulator; create communicators with "
                                        "HcclGetRootInfo. Unset RANK_TABLE_FILE.", table ? table : "null");
}

HCCL_API HcclResult HcclCommInitClusterInfo(const char* table, uint32_t rank, void** comm) {
    return HcclCommInitClusterInfoConfig(table, rank, nullptr, comm);
}

HCCL_API HcclResult HcclCommDestroy(void* comm) {
    auto communicator = take_out(comm);
    if (!communicator) return HCCL_E_PARA;
    communicator.reset();   // waits for what is in its queue
    return HCCL_SUCCESS;
}

HCCL_API HcclResult HcclGetRankSize(void* comm, uint32_t* ranks) {
    return with(comm, [&](auto& communicator) { return answer(ranks, communicator.size()); });
}

HCCL_API HcclResult HcclGetRankId(void* comm, uint32_t* rank) {
    return with(comm, [&](auto& communicator) { return answer(rank, communicator.rank()); });
}

HCCL_API HcclResult HcclGetCommName(void* comm, char* name) {
    if (!name) return refuse(Fault::bad_pointer, "commName is null.");
    return with(comm, [&](auto& communicator) {
        std::snprintf(name, COMM_NAME_MAX_LENGTH, "%s", communicator.name().c_str());
        return HCCL_SUCCESS;
    });
}

// The caller shows the thread's last error as the reason, so it is set here too.
HCCL_API HcclResult HcclGetCommAsyncError(void* comm, HcclResult* error) {
    return with(comm, [&](auto& communicator) {
        const auto failure = communicator.failure();
        return answer(error, failure.fault == Fault::none ? HCCL_SUCCESS : refuse(failure));
    });
}

HCCL_API HcclResult HcclCommSuspend(void* comm) {
    return with(comm, [](auto&) { return HCCL_SUCCESS; });
}

HCCL_API HcclResult HcclCommResume(void* comm) {
    return with(comm, [](auto& communicator) {
        const auto failure = communicator.resume();
        return failure.fault == Fault::none ? HCCL_SUCCESS : refuse(failure);
    });
}

HCCL_API HcclResult HcclCommWorkingDevNicSet(void* comm, uint32_t* ranks, bool* use_backup, uint32_t count) {
    return with(comm, [&](auto& communicator) {
        if (count && (!ranks || !use_backup)) return refuse(Fault::bad_pointer, "ranks or useBackup is null.");
        for (uint32_t i = 0; i < count; ++i)
            if (ranks[i] >= communicator.size())
                return refuse(Fault::bad_argument, "ranks[%u]=%u, but the communicator has %u ranks.", i, ranks[i],
                              communicator.size());
        return HCCL_SUCCESS;
    });
}

HCCL_API uint32_t HcclGetCommConfigCapability() { return HCCL_COMM_CONFIG_RESERVED; }

HCCL_API const char* HcclGetErrorString(HcclResult code) {
    static constexpr const char* texts[] = {
        "no error",           "parameter error",       "empty pointer",        "memory error",        "internal error",
        "not support feature", "not found specific resource", "resource unavailable", "call system interface error",
        "timeout",            "open file fail",        "tcp connect fail",     "roce connect fail",   "tcp transfer fail",
        "roce transfer fail", "call runtime api fail", "call driver api fail", "call profiling api fail", "call cce api fail",
        "call network api fail", "try again",          "error cqe",            "error communicator suspending",
        "retry constraint",   "out of memory",
    };
    const auto index = static_cast<uint32_t>(code);
    return index < std::size(texts) ? texts[index] : "unknown error";
}
