// The operators: check what was passed, put it in the communicator's queue, return.
#include <limits>

#include "api.h"

namespace hccl {
namespace {

// Collects what a call passes and remembers the first thing that is wrong with it.
class Request {
public:
    Request(Op op, void* comm, void* stream) : communicator_(find(comm)) {
        operation_.call.op = op;
        operation_.stream = stream;
        if (!communicator_) {
            result_ = HCCL_E_PARA;   // find() has left the message
            return;
        }
        if (const auto failure = communicator_->failure(); failure.fault != Fault::none)
            result_ = refuse(failure);
        else if (emu::stream_device(stream) != communicator_->device())
            reject(Fault::bad_argument, format("stream is not a stream of device %d, on which the communicator is",
                                               communicator_->device()));
    }
    explicit operator bool() const { return result_ == HCCL_SUCCESS; }
    Operation& operation() { return operation_; }
    uint32_t ranks() const { return communicator_->size(); }
    uint32_t rank() const { return communicator_->rank(); }

    Request& type(uint32_t dtype, uint32_t reduction = 0) {
        operation_.call.dtype = dtype;
        operation_.call.reduction = reduction;
        if (info(operation_.call.op).reduces && reduction > HCCL_REDUCE_MIN)
            reject(Fault::not_supported, format("op=%u is not a reduction (sum 0, prod 1, max 2, min 3)", reduction));
        else if (auto why = why_unsupported(operation_.call.op, dtype, reduction); !why.empty())
            reject(Fault::not_supported, why);
        return *this;
    }
    Request& same_type(uint32_t send, uint32_t receive) {
        if (send != receive)
            reject(Fault::bad_argument, "sendType is " + name_of_dtype(send) + " and recvType " + name_of_dtype(receive) +
                                            "; they must be the same");
        return *this;
    }
    Request& count(uint64_t count) {
        operation_.call.count = count;
        return *this;
    }
    Request& root(uint32_t root) {
        operation_.call.root = root;
        return check_rank(root, "root");
    }
    Request& check_rank(uint32_t rank, const char* argument) {
        if (*this && rank >= ranks())
            reject(Fault::bad_argument, format("%s=%u, but the communicator has ranks 0 to %u", argument, rank, ranks() - 1));
        return *this;
    }
    Request& send(const void* data, uint64_t elements) {
        check_buffer(data, elements, operation_.call.dtype, "sendBuf");
        operation_.send = static_cast<const char*>(data);
        return *this;
    }
    Request& receive(const void* data, uint64_t elements) {
        check_buffer(data, elements, operation_.call.dtype, "recvBuf");
        operation_.receive = static_cast<char*>(const_cast<void*>(data));
        return *this;
    }
    // Arrays with an element for each rank; copied, since the caller's may be gone when the operation runs.
    Request& send_layout(const void* counts, const void* offsets) {
        return layout(counts, offsets, "sendCounts", operation_.send_counts, operation_.send_offsets);
    }
    Request& receive_layout(const void* counts, const void* offsets) {
        return layout(counts, offsets, "recvCounts", operation_.receive_counts, operation_.receive_offsets);
    }
    Request& transfer(bool sends, uint32_t peer, void* data, uint64_t elements, uint32_t dtype) {
        check_rank(peer, sends ? "destRank" : "srcRank");
        check_buffer(data, elements, dtype, sends ? "sendBuf" : "recvBuf");
        operation_.transfers.push_back({sends, peer, static_cast<char*>(data), elements, dtype});
        if (sends) operation_.payload += elements * size_of(dtype);
        return *this;
    }
    HcclResult submit(uint64_t payload_elements) {
        operation_.payload += payload_elements * size_of(operation_.call.dtype);
        return submit();
    }
    HcclResult submit() {
        return *this ? hccl::submit(std::move(communicator_), std::move(operation_)) : result_;
    }
    void reject(Fault fault, const std::string& reason) {
        if (*this) result_ = refuse(fault, "%s: %s.", info(operation_.call.op).name, reason.c_str());
    }

private:
    void check_buffer(const void* data, uint64_t elements, uint32_t dtype, const char* argument) {
        if (!*this || elements == 0) return;
        const uint64_t size = size_of(dtype);
        if (!data) return reject(Fault::bad_pointer, format("%s is null", argument));
        if (elements > std::numeric_limits<int64_t>::max() / size)
            return reject(Fault::bad_argument, format("%s: %llu elements are too many", argument,
                                                      static_cast<unsigned long long>(elements)));
        int device = -1;
        const auto access = emu::check_access(data, elements * size, &device);
        const auto range = format("%s (%p, %llu bytes) ", argument, data, static_cast<unsigned long long>(elements * size));
        if (access == emu::Access::freed) return reject(Fault::bad_pointer, range + "lies in memory that was freed");
        if (access == emu::Access::outside || device < 0)
            return reject(Fault::bad_pointer, range + "is not within one allocation of device memory");
        if (device != communicator_->device())
            reject(Fault::bad_pointer, range + format("is memory of device %d, the communicator is on device %d", device,
                                                      communicator_->device()));
    }
    Request& layout(const void* counts, const void* offsets, const char* argument, std::vector<uint64_t>& to_counts,
                    std::vector<uint64_t>& to_offsets) {
        if (!*this) return *this;
        if (!counts || !offsets) {
            reject(Fault::bad_pointer, format("%s or its displacements are null", argument));
            return *this;
        }
        const auto* count = static_cast<const uint64_t*>(counts);
        const auto* offset = static_cast<const uint64_t*>(offsets);
        to_counts.assign(count, count + ranks());
        to_offsets.assign(offset, offset + ranks());
        return *this;
    }

    std::shared_ptr<Communicator> communicator_;
    Operation operation_;
    HcclResult result_ = HCCL_SUCCESS;
};

uint64_t sum(const std::vector<uint64_t>& counts) {
    uint64_t total = 0;
    for (const auto count : counts) total += count;
    return total;
}

// The extent of a buffer with a part for each rank.
uint64_t extent(const std::vector<uint64_t>& counts, const std::vector<uint64_t>& offsets) {
    uint64_t end = 0;
    for (size_t rank = 0; rank < counts.size(); ++rank)
        if (counts[rank]) end = std::max(end, offsets[rank] + counts[rank]);
    return end;
}

}  // namespace
}  // namespace hccl

using namespace hccl;

HCCL_API HcclResult HcclAllReduce(void* send, void* receive, uint64_t count, uint32_t dtype, uint32_t reduction,
                                  void* comm, void* stream) {
    Request request(Op::all_reduce, comm, stream);
    return request.type(dtype, reduction).count(count).send(send, count).receive(receive, count).submit(count);
}

HCCL_API HcclResult HcclBroadcast(void* data, uint64_t count, uint32_t dtype, uint32_t root, void* comm, void* stream) {
    Request request(Op::broadcast, comm, stream);
    request.type(dtype).count(count).root(root).receive(data, count);
    return request.submit(request && request.rank() == root ? count : 0);
}

HCCL_API HcclResult HcclAllGather(void* send, void* receive, uint64_t count, uint32_t dtype, void* comm, void* stream) {
    Request request(Op::all_gather, comm, stream);
    request.type(dtype).count(count).send(send, count);
    if (request) request.receive(receive, count * request.ranks());
    return request.submit(count);
}

HCCL_API HcclResult HcclAllGatherV(void* send, uint64_t count, void* receive, const void* counts, const void* offsets,
                                   uint32_t dtype, void* comm, void* stream) {
    Request request(Op::all_gather_v, comm, stream);
    request.type(dtype).count(count).send(send, count).receive_layout(counts, offsets);
    if (request) {
        auto& operation = request.operation();
        operation.send_counts.assign(request.ranks(), count);
        request.receive(receive, extent(operation.receive_counts, operation.receive_offsets));
    }
    return request.submit(count);
}

HCCL_API HcclResult HcclReduceScatter(void* send, void* receive, uint64_t count, uint32_t dtype, uint32_t reduction,
                                      void* comm, void* stream) {
    Request request(Op::reduce_scatter, comm, stream);
    request.type(dtype, reduction).count(count).receive(receive, count);
    if (request) request.send(send, count * request.ranks());
    return request.submit(request ? count * request.ranks() : 0);
}

HCCL_API HcclResult HcclReduceScatterV(void* send, const void* counts, const void* offsets, void* receive,
                                       uint64_t count, uint32_t dtype, uint32_t reduction, void* comm, void* stream) {
    Request request(Op::reduce_scatter_v, comm, stream);
    request.type(dtype, reduction).count(count).receive(receive, count).send_layout(counts, offsets);
    auto& operation = request.operation();
    if (request) {
        operation.receive_counts.assign(request.ranks(), count);
        request.send(send, extent(operation.send_counts, operation.send_offsets));
    }
    return request.submit(sum(operation.send_counts));
}

HCCL_API HcclResult HcclAlltoAll(const void* send, uint64_t send_count, uint32_t send_type, const void* receive,
                                 uint64_t receive_count, uint32_t receive_type, void* comm, void* stream) {
    Request request(Op::all_to_all, comm, stream);
    request.type(send_type).same_type(send_type, receive_type).count(send_count);
    if (request && send_count != receive_count)
        request.reject(Fault::bad_argument, format("sendCount is %llu and recvCount %llu; they must be the same",
                                                   static_cast<unsigned long long>(send_count),
                                                   static_cast<unsigned long long>(receive_count)));
    const uint64_t total = request ? send_count * request.ranks() : 0;
    return request.send(send, total).receive(receive, total).submit(total);
}

HCCL_API HcclResult HcclAlltoAllV(const void* send, const void* send_counts, const void* send_offsets,
                                  uint32_t send_type, const void* receive, const void* receive_counts,
                                  const void* receive_offsets, uint32_t receive_type, void* comm, void* stream) {
    Request request(Op::all_to_all_v, comm, stream);
    request.type(send_type).same_type(send_type, receive_type);
    request.send_layout(send_counts, send_offsets).receive_layout(receive_counts, receive_offsets);
    auto& operation = request.operation();
    const uint64_t total = sum(operation.send_counts);
    return request.count(total)
        .send(send, extent(operation.send_counts, operation.send_offsets))
        .receive(receive, extent(operation.receive_counts, operation.receive_offsets))
        .submit(total);
}

// The counts as a matrix, row: sender, column: receiver; each rank's parts lie one after the other.
HCCL_API HcclResult HcclAlltoAllVC(const void* send, const void* matrix, uint32_t send_type, const void* receive,
                                   uint32_t receive_type, void* comm, void* stream) {
    Request request(Op::all_to_all_vc, comm, stream);
    request.type(send_type).same_type(send_type, receive_type);
    if (!matrix) request.reject(Fault::bad_pointer, "sendCountMatrix is null");
    auto& operation = request.operation();
    if (request) {
        const auto* counts = static_cast<const uint64_t*>(matrix);
        const uint32_t ranks = request.ranks(), me = request.rank();
        uint64_t sent = 0, received = 0;
        for (uint32_t rank = 0; rank < ranks; ++rank) {
            operation.send_counts.push_back(counts[me * ranks + rank]);
            operation.send_offsets.push_back(sent);
            sent += counts[me * ranks + rank];
            operation.receive_counts.push_back(counts[rank * ranks + me]);
            operation.receive_offsets.push_back(received);
            received += counts[rank * ranks + me];
        }
    }
    const uint64_t total = sum(operation.send_counts);
    return request.count(total).send(send, total).receive(receive, sum(operation.receive_counts)).submit(total);
}

HCCL_API HcclResult HcclReduce(void* send, void* receive, uint64_t count, uint32_t dtype, uint32_t reduction,
                               uint32_t root, void* comm, void* stream) {
    Request request(Op::reduce, comm, stream);
    request.type(dtype, reduction).count(count).root(root).send(send, count);
    if (request && request.rank() == root) request.receive(receive, count);
    return request.submit(count);
}

HCCL_API HcclResult HcclScatter(void* send, void* receive, uint64_t count, uint32_t dtype, uint32_t root, void* comm,
                                void* stream) {
    Request request(Op::scatter, comm, stream);
    request.type(dtype).count(count).root(root).receive(receive, count);
    const bool sends = request && request.rank() == root;
    if (sends) request.send(send, count * request.ranks());
    return request.submit(sends ? count * request.ranks() : 0);
}

HCCL_API HcclResult HcclBarrier(void* comm, void* stream) { return Request(Op::barrier, comm, stream).submit(); }

HCCL_API HcclResult HcclSend(void* data, uint64_t count, uint32_t dtype, uint32_t peer, void* comm, void* stream) {
    Request request(Op::send, comm, stream);
    request.type(dtype).count(count).operation().call.root = peer;
    return request.transfer(true, peer, data, count, dtype).submit();
}

HCCL_API HcclResult HcclRecv(void* data, uint64_t count, uint32_t dtype, uint32_t peer, void* comm, void* stream) {
    Request request(Op::recv, comm, stream);
    request.type(dtype).count(count).operation().call.root = peer;
    return request.transfer(false, peer, data, count, dtype).submit();
}

HCCL_API HcclResult HcclBatchSendRecv(HcclSendRecvItem* items, uint32_t count, void* comm, void* stream) {
    Request request(Op::batch_send_recv, comm, stream);
    if (!items || !count) request.reject(Fault::bad_pointer, "sendRecvInfo is empty");
    for (uint32_t i = 0; request && i < count; ++i) {
        const auto& item = items[i];
        if (item.sendRecvType != HCCL_SEND && item.sendRecvType != HCCL_RECV)
            request.reject(Fault::bad_argument, format("item %u is neither HCCL_SEND nor HCCL_RECV", i));
        request.type(item.dataType)
            .transfer(item.sendRecvType == HCCL_SEND, item.remoteRank, item.buf, item.count, item.dataType);
    }
    return request.submit();
}
