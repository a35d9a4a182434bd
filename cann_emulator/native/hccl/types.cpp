#include "types.h"

#include <string_view>

#include "core.h"

namespace hccl {
namespace {
constexpr OpInfo ops[] = {
    {"none", false, false, false},
    {"HcclAllReduce", true, false, true},
    {"HcclBroadcast", false, true, true},
    {"HcclAllGather", false, false, true},
    {"HcclAllGatherV", false, false, false},
    {"HcclReduceScatter", true, false, true},
    {"HcclReduceScatterV", true, false, false},
    {"HcclAlltoAll", false, false, true},
    {"HcclAlltoAllV", false, false, false},
    {"HcclAlltoAllVC", false, false, false},
    {"HcclReduce", true, true, true},
    {"HcclScatter", false, true, true},
    {"HcclBarrier", false, false, true},
    {"HcclSend", false, false, true},
    {"HcclRecv", false, false, true},
    {"HcclBatchSendRecv", false, false, true},
};

enum class Where { nowhere, everywhere, on_950 };

struct DtypeInfo {
    uint32_t value;
    const char* name;
    size_t size;
    Where moved;     // by operators that only transport
    Where reduced;
    bool product;    // with HCCL_REDUCE_PROD, where reduced
};
constexpr DtypeInfo dtypes[] = {
    {HCCL_DATA_TYPE_INT8, "int8", 1, Where::everywhere, Where::everywhere, true},
    {HCCL_DATA_TYPE_INT16, "int16", 2, Where::everywhere, Where::everywhere, false},
    {HCCL_DATA_TYPE_INT32, "int32", 4, Where::everywhere, Where::everywhere, true},
    {HCCL_DATA_TYPE_FP16, "float16", 2, Where::everywhere, Where::everywhere, true},
    {HCCL_DATA_TYPE_FP32, "float32", 4, Where::everywhere, Where::everywhere, true},
    {HCCL_DATA_TYPE_INT64, "int64", 8, Where::everywhere, Where::everywhere, true},
    {HCCL_DATA_TYPE_UINT64, "uint64", 8, Where::everywhere, Where::on_950, true},
    {HCCL_DATA_TYPE_UINT8, "uint8", 1, Where::everywhere, Where::nowhere, false},
    {HCCL_DATA_TYPE_UINT16, "uint16", 2, Where::everywhere, Where::nowhere, false},
    {HCCL_DATA_TYPE_UINT32, "uint32", 4, Where::everywhere, Where::nowhere, false},
    {HCCL_DATA_TYPE_FP64, "float64", 8, Where::everywhere, Where::on_950, true},
    {HCCL_DATA_TYPE_BFP16, "bfloat16", 2, Where::everywhere, Where::everywhere, false},
    {HCCL_DATA_TYPE_INT128, "int128", 16, Where::on_950, Where::nowhere, false},
    {HCCL_DATA_TYPE_HIF8, "hifloat8", 1, Where::on_950, Where::nowhere, false},
    {HCCL_DATA_TYPE_FP8E4M3, "float8_e4m3", 1, Where::on_950, Where::nowhere, false},
    {HCCL_DATA_TYPE_FP8E5M2, "float8_e5m2", 1, Where::on_950, Where::nowhere, false},
    {HCCL_DATA_TYPE_FP8E8M0, "float8_e8m0", 1, Where::on_950, Where::nowhere, false},
};
constexpr const char* reductions[] = {"sum", "prod", "max", "min"};

const DtypeInfo* find(uint32_t dtype) {
    for (const auto& entry : dtypes)
        if (entry.value == dtype) return &entry;
    return nullptr;
}

bool holds(Where where) {
    static const bool is_950 = std::string_view(emu::soc_name()).rfind("Ascend950", 0) == 0;
    return where == Where::everywhere || (where == Where::on_950 && is_950);
}
}  // namespace

const OpInfo& info(Op op) { return ops[static_cast<uint32_t>(op)]; }

int counter(Op op) {
    static const auto ids = [] {
        struct { int id[std::size(ops)]; } table;
        for (size_t i = 0; i < std::size(ops); ++i) table.id[i] = emu::counter_id(emu::Kind::collective, ops[i].name);
        return table;
    }();
    return ids.id[static_cast<uint32_t>(op)];
}

size_t size_of(uint32_t dtype) {
    const auto* entry = find(dtype);
    return entry ? entry->size : 0;
}

std::string name_of_dtype(uint32_t dtype) {
    const auto* entry = find(dtype);
    return entry ? entry->name : "data type " + std::to_string(dtype);
}

std::string name_of_reduction(uint32_t reduction) {
    return reduction < std::size(reductions) ? reductions[reduction] : "reduction " + std::to_string(reduction);
}

std::string why_unsupported(Op op, uint32_t dtype, uint32_t reduction) {
    const auto* entry = find(dtype);
    const bool reduces = info(op).reduces;
    if (entry && !reduces && holds(entry->moved)) return {};
    if (entry && reduces && holds(entry->reduced) && (entry->product || reduction != HCCL_REDUCE_PROD)) return {};
    const bool product = reduces && reduction == HCCL_REDUCE_PROD;
    std::string allowed;
    for (const auto& each : dtypes)
        if (holds(reduces ? each.reduced : each.moved) && (each.product || !product))
            allowed += (allowed.empty() ? "" : ", ") + std::string(each.name);
    return name_of_dtype(dtype) + " is not supported" + (product ? " with the reduction prod" : "") + " on " +
           emu::soc_name() + ". Supported: " + allowed + ". Convert the tensor first.";
}

}  // namespace hccl
