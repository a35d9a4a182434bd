// HCCL's C interface, found at run time when the first collective needs it.
#pragma once

#include <cstdint>

#include "pjrt.h"

namespace npu {

struct HcclItem {
    enum Direction : int { send = 0, receive = 1 } direction;
    void* data;
    uint64_t count;
    uint32_t type;
    uint32_t peer;
};

#define NPU_HCCL_FUNCTIONS(X)                                                                                      \
    X(HcclCommInitAll, (uint32_t count, int32_t* devices, void** communicators))                                   \
    X(HcclCommDestroy, (void* communicator))                                                                       \
    X(HcclAllReduce,                                                                                               \
      (void* from, void* to, uint64_t count, uint32_t type, uint32_t reduction, void* communicator, void* stream)) \
    X(HcclAllGather, (void* from, void* to, uint64_t count, uint32_t type, void* communicator, void* stream))      \
    X(HcclReduceScatter,                                                                                           \
      (void* from, void* to, uint64_t count, uint32_t type, uint32_t reduction, void* communicator, void* stream)) \
    X(HcclAlltoAll, (const void* from, uint64_t from_count, uint32_t from_type, const void* to, uint64_t to_count, \
                     uint32_t to_type, void* communicator, void* stream))                                          \
    X(HcclBroadcast, (void* data, uint64_t count, uint32_t type, uint32_t root, void* communicator, void* stream)) \
    X(HcclBatchSendRecv, (HcclItem * items, uint32_t count, void* communicator, void* stream))

struct Hccl {
#define NPU_FUNCTION(name, arguments) int(*name) arguments = nullptr;
    NPU_HCCL_FUNCTIONS(NPU_FUNCTION)
#undef NPU_FUNCTION
};

// Loads the library on the first call. Throws NOT_FOUND where there is none.
const Hccl& hccl();
// Throws a Failure with HCCL's own message for a code other than 0.
void check_hccl(int code, const char* call);
#define NPU_HCCL(name, ...) ::npu::check_hccl(::npu::hccl().name(__VA_ARGS__), #name)

// HCCL's number of an element type that it moves and reduces, or -1.
int hccl_type(PJRT_Buffer_Type type);

}  // namespace npu
