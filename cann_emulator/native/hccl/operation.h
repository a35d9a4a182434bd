// A call of an HCCL operator on its way to the communicator's thread.
#pragma once

#include <vector>

#include "core.h"
#include "peers.h"

namespace hccl {

struct Operation {
    Call call{};
    const char* send = nullptr;
    char* receive = nullptr;
    // Operators with counts of their own for each rank, in elements: what this rank sends to and receives from each
    // rank, and where it lies.
    std::vector<uint64_t> send_counts, send_offsets, receive_counts, receive_offsets;
    std::vector<Transfer> transfers;

    void* stream = nullptr;
    int stream_id = -1;
    uint64_t payload = 0;                 // bytes that this rank sends, for the counters
    std::vector<emu::FencePtr> after;     // what was open on the stream when it was enqueued
    emu::FencePtr fence;

    bool is_collective() const { return transfers.empty() && call.op != Op::batch_send_recv; }
};

void run_collective(Peers& peers, const Operation& operation);
void run_transfers(Peers& peers, const Operation& operation);

}  // namespace hccl
