// The values of HCCL's enumerations, under HCCL's own names. Their source is signatures/acl_enums.json.
#pragma once

#include <cstdint>

enum HcclResult : int {
    HCCL_SUCCESS = 0,
    HCCL_E_PARA = 1,
    HCCL_E_PTR = 2,
    HCCL_E_MEMORY = 3,
    HCCL_E_INTERNAL = 4,
    HCCL_E_NOT_SUPPORT = 5,
    HCCL_E_NOT_FOUND = 6,
    HCCL_E_UNAVAIL = 7,
    HCCL_E_SYSCALL = 8,
    HCCL_E_TIMEOUT = 9,
    HCCL_E_TCP_CONNECT = 11,
    HCCL_E_RUNTIME = 15,
    HCCL_E_REMOTE = 21,
    HCCL_E_SUSPENDING = 22,
};

enum HcclReduceOp : uint32_t { HCCL_REDUCE_SUM = 0, HCCL_REDUCE_PROD = 1, HCCL_REDUCE_MAX = 2, HCCL_REDUCE_MIN = 3 };

enum HcclDataType : uint32_t {
    HCCL_DATA_TYPE_INT8 = 0,
    HCCL_DATA_TYPE_INT16 = 1,
    HCCL_DATA_TYPE_INT32 = 2,
    HCCL_DATA_TYPE_FP16 = 3,
    HCCL_DATA_TYPE_FP32 = 4,
    HCCL_DATA_TYPE_INT64 = 5,
    HCCL_DATA_TYPE_UINT64 = 6,
    HCCL_DATA_TYPE_UINT8 = 7,
    HCCL_DATA_TYPE_UINT16 = 8,
    HCCL_DATA_TYPE_UINT32 = 9,
    HCCL_DATA_TYPE_FP64 = 10,
    HCCL_DATA_TYPE_BFP16 = 11,
    HCCL_DATA_TYPE_INT128 = 12,
    HCCL_DATA_TYPE_HIF8 = 14,
    HCCL_DATA_TYPE_FP8E4M3 = 15,
    HCCL_DATA_TYPE_FP8E5M2 = 16,
    HCCL_DATA_TYPE_FP8E8M0 = 17,
};

enum HcclSendRecvType : int { HCCL_SEND = 0, HCCL_RECV = 1 };

struct HcclSendRecvItem {
    HcclSendRecvType sendRecvType;
    void* buf;
    uint64_t count;
    HcclDataType dataType;
    uint32_t remoteRank;
};
static_assert(sizeof(HcclSendRecvItem) == 32);

constexpr uint32_t HCCL_ROOT_INFO_BYTES = 4108;
constexpr uint32_t HCCL_COMM_CONFIG_MAGIC_WORD = 0xf0f0f0f0;
// One above the last configuration feature of the header that torch_npu is built with.
constexpr uint32_t HCCL_COMM_CONFIG_RESERVED = 12;
constexpr uint32_t COMM_NAME_MAX_LENGTH = 128;
