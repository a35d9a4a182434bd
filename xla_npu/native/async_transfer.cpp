// Buffers that the host fills piece by piece, or reads into memory that it names later.
#include <atomic>
#include <cstdlib>

#include "api.h"
#include "cann.h"
#include "transfer.h"

using namespace npu;

namespace npu {
namespace {
// Done when all of several copies are, and with the first failure among them.
class Together {
public:
    explicit Together(Completion::Ptr done) : done_(std::move(done)) {}
    void add(const Completion::Ptr& copy, const std::shared_ptr<Together>& self) {
        ++open_;
        copy->then([self](const Completion::Outcome& outcome) { self->one_done(outcome); });
    }
    void no_more() { one_done(std::nullopt); }
    void one_done(const Completion::Outcome& outcome) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            if (outcome && !outcome_) outcome_ = outcome;
        }
        if (--open_ == 0) done_->finish(outcome_);
    }

private:
    const Completion::Ptr done_;
    std::atomic<int> open_{1};
    std::mutex mutex_;
    Completion::Outcome outcome_;
};
}  // namespace
}  // namespace npu

struct PJRT_AsyncHostToDeviceTransferManager {
    struct Item {
        Shape shape;
        BlockPtr block;
        Completion::Ptr filled;
        std::shared_ptr<Together> copies;
    };
    Memory& memory;
    std::vector<Item> items;

    Item& item(int index) {
        if (index < 0 || static_cast<size_t>(index) >= items.size()) {
            fail(PJRT_INVALID_ARGUMENT, "Buffer %d of a transfer of %zu buffers", index, items.size());
        }
        return items[static_cast<size_t>(index)];
    }
    PJRT_Event* copy(Item& item, size_t offset, const void* data, size_t bytes, bool last, std::shared_ptr<void> keep) {
        const auto done = copy_from_host(memory, item.block, offset, data, bytes, std::move(keep));
        item.copies->add(done, item.copies);
        if (last) item.copies->no_more();
        return new PJRT_Event{done};
    }
};

namespace npu::api {

void Client_CreateBuffersForAsyncHostToDevice(PJRT_Client_CreateBuffersForAsyncHostToDevice_Args& args) {
    auto& memory =
        args.memory ? *static_cast<Memory*>(args.memory) : args.client->devices.front()->memory(MemoryKind::device);
    std::unique_ptr<PJRT_AsyncHostToDeviceTransferManager> made(new PJRT_AsyncHostToDeviceTransferManager{memory, {}});
    for (size_t i = 0; i < args.num_shape_specs; ++i) {
        const PJRT_ShapeSpec& spec = args.shape_specs[i];
        Shape shape{spec.element_type, Dims(spec.dims, spec.dims + spec.num_dims)};
        auto filled = Completion::pending();
        auto block = memory.device.allocate(memory.kind, shape.bytes());
        made->items.push_back({std::move(shape), std::move(block), filled, std::make_shared<Together>(filled)});
    }
    args.transfer_manager = made.release();
}

void AsyncHostToDeviceTransferManager_Destroy(PJRT_AsyncHostToDeviceTransferManager_Destroy_Args& args) {
    for (auto& item : args.transfer_manager->items) {
        if (!item.filled->known_done()) {
            item.copies->one_done(std::nullopt);  // what was started goes on, and nothing more comes
        }
    }
    delete args.transfer_manager;
}
void AsyncHostToDeviceTransferManager_TransferData(PJRT_AsyncHostToDeviceTransferManager_TransferData_Args& args) {
    auto& item = args.transfer_manager->item(args.buffer_index);
    const auto bytes = static_cast<int64_t>(item.shape.bytes());
    if (args.offset < 0 || args.transfer_size < 0 || args.offset > bytes || args.transfer_size > bytes - args.offset) {
        fail(PJRT_INVALID_ARGUMENT, "%ld bytes at byte %ld do not fit into a buffer of %ld bytes",
             static_cast<long>(args.transfer_size), static_cast<long>(args.offset), static_cast<long>(bytes));
    }
    args.done_with_h2d_transfer =
        args.transfer_manager->copy(item, static_cast<size_t>(args.offset), args.data,
                                    static_cast<size_t>(args.transfer_size), args.is_last_transfer, nullptr);
}
void AsyncHostToDeviceTransferManager_TransferLiteral(
    PJRT_AsyncHostToDeviceTransferManager_TransferLiteral_Args& args) {
    auto& item = args.transfer_manager->item(args.buffer_index);
    const Dims dims(args.shape_dims, args.shape_dims + args.shape_num_dims);
    const size_t element = size_of(args.shape_element_type), bytes = count_of(dims) * element;
    if (bytes != item.shape.bytes()) {
        fail(PJRT_INVALID_ARGUMENT, "An array of %zu bytes for a buffer of %zu", bytes, item.shape.bytes());
    }
    const Dims strides = strides_of(args.shape_layout, dims, element);
    const void* data = args.data;
    std::shared_ptr<void> packed;
    if (!is_dense(dims, strides, element)) {
        packed.reset(std::malloc(std::max<size_t>(bytes, 1)), std::free);
        copy_strided(packed.get(), dense_strides(dims, element), data, strides, dims, element);
        data = packed.get();
    }
    args.done_with_h2d_transfer = args.transfer_manager->copy(item, 0, data, bytes, true, packed);
}
void AsyncHostToDeviceTransferManager_RetrieveBuffer(PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args& args) {
    auto& item = args.transfer_manager->item(args.buffer_index);
    args.buffer_out = new PJRT_Buffer(args.transfer_manager->memory, item.shape, item.block, item.filled);
}
void AsyncHostToDeviceTransferManager_Device(PJRT_AsyncHostToDeviceTransferManager_Device_Args& args) {
    args.device_out = &args.transfer_manager->memory.device;
}
void AsyncHostToDeviceTransferManager_BufferCount(PJRT_AsyncHostToDeviceTransferManager_BufferCount_Args& args) {
    args.buffer_count = args.transfer_manager->items.size();
}
void AsyncHostToDeviceTransferManager_BufferSize(PJRT_AsyncHostToDeviceTransferManager_BufferSize_Args& args) {
    args.buffer_size = args.transfer_manager->item(args.buffer_index).shape.bytes();
}
void AsyncHostToDeviceTransferManager_SetBufferError(PJRT_AsyncHostToDeviceTransferManager_SetBufferError_Args& args) {
    args.transfer_manager->item(args.buffer_index)
        .filled->finish(Failure(args.error_code, std::string(args.error_message, args.error_message_size)));
}
void AsyncHostToDeviceTransferManager_AddMetadata(PJRT_AsyncHostToDeviceTransferManager_AddMetadata_Args&) {}  // hints

// ---- reading into memory that is named later

namespace {
struct LaterRead {
    Memory& memory;
    Held held;
    size_t offset, bytes;
    Completion::Ptr done;
};
}  // namespace

void Buffer_CopyRawToHostFuture(PJRT_Buffer_CopyRawToHostFuture_Args& args) {
    auto done = Completion::pending();
    args.callback_data = new LaterRead{args.buffer->memory, args.buffer->hold(), static_cast<size_t>(args.offset),
                                       static_cast<size_t>(args.transfer_size), done};
    args.event = new PJRT_Event{std::move(done)};
    args.future_ready_callback = [](PJRT_Buffer_CopyRawToHostFuture_Callback_Args* given) {
        std::unique_ptr<LaterRead> read(static_cast<LaterRead*>(given->callback_data));
        if (given->error_code != PJRT_OK) {
            read->done->finish(
                Failure(given->error_code, std::string(given->error_message, given->error_message_size)));
            return;
        }
        try {
            copy_to_host(read->memory, read->held, read->offset, given->dst, read->bytes)
                ->then([done = read->done](const Completion::Outcome& outcome) { done->finish(outcome); });
        } catch (const Failure& failure) {
            read->done->finish(failure);
        }
    };
}

// The same memory, ready when both its contents and the caller's dependency are.
void Buffer_DonateWithControlDependency(PJRT_Buffer_DonateWithControlDependency_Args& args) {
    Held held = args.buffer->take();
    auto done = Completion::pending();
    auto both = std::make_shared<Together>(done);
    both->add(held.defined, both);
    args.callback_data = new std::shared_ptr<Together>(both);
    args.dependency_ready_callback = [](PJRT_Buffer_DonateWithControlDependency_Callback_Args* given) {
        std::unique_ptr<std::shared_ptr<Together>> both(static_cast<std::shared_ptr<Together>*>(given->callback_data));
        Completion::Outcome outcome;
        if (given->error_code != PJRT_OK) {
            outcome.emplace(given->error_code, std::string(given->error_message, given->error_message_size));
        }
        (*both)->one_done(outcome);
    };
    args.out_buffer = new PJRT_Buffer(args.buffer->memory, args.buffer->shape, held.block, std::move(done));
}

// ---- host memory that the device may read directly

void Client_DmaMap(PJRT_Client_DmaMap_Args& args) {
    void* device_pointer = nullptr;
    constexpr int mapped = 0;
    args.client->devices.front()->activate();
    NPU_CALL(aclrtHostRegister, args.data, args.size, mapped, &device_pointer);
}
void Client_DmaUnmap(PJRT_Client_DmaUnmap_Args& args) { NPU_CALL(aclrtHostUnregister, args.data); }

}  // namespace npu::api

// What a caller wants to see in traces while it waits for a device.
struct PJRT_AsyncTrackingEvent {};

namespace npu::api {
void Device_CreateAsyncTrackingEvent(PJRT_Device_CreateAsyncTrackingEvent_Args& args) {
    args.event = new PJRT_AsyncTrackingEvent;
}
void AsyncTrackingEvent_Destroy(PJRT_AsyncTrackingEvent_Destroy_Args& args) { delete args.event; }
}  // namespace npu::api
