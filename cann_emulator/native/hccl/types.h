// What HCCL transports and computes: data types, reductions and operators, as tables.
#pragma once

#include <cstddef>
#include <string>

#include "constants.h"

namespace hccl {

enum class Op : uint32_t {
    none, all_reduce, broadcast, all_gather, all_gather_v, reduce_scatter, reduce_scatter_v, all_to_all, all_to_all_v,
    all_to_all_vc, reduce, scatter, barrier, send, recv, batch_send_recv,
};

struct OpInfo {
    const char* name;
    bool reduces;        // takes a reduction: its data types are those that HCCL reduces
    bool has_root;
    bool equal_counts;   // every rank passes the same count; otherwise counts are compared pair by pair
};
const OpInfo& info(Op op);
// The id under which an operator's calls are counted.
int counter(Op op);

// 0 for a value that is not a data type.
size_t size_of(uint32_t dtype);
std::string name_of_dtype(uint32_t dtype);
std::string name_of_reduction(uint32_t reduction);

// Empty, or why HCCL refuses the data type (with `reduction`, where the operator reduces) on this SoC.
std::string why_unsupported(Op op, uint32_t dtype, uint32_t reduction);

}  // namespace hccl
