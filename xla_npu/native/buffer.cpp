#include "buffer.h"

#include <cstring>

#include "api.h"
#include "cann.h"

using namespace npu;

PJRT_Buffer::PJRT_Buffer(Memory& memory, Shape shape, BlockPtr block, Completion::Ptr defined)
    : memory(memory), shape(std::move(shape)), block(std::move(block)), defined(std::move(defined)) {}

Held PJRT_Buffer::hold() const {
    std::lock_guard<std::mutex> lock(mutex);
    if (!block) fail(PJRT_INVALID_ARGUMENT, "Buffer has been deleted or donated.");
    return {block, defined};
}

Held PJRT_Buffer::take() {
    std::lock_guard<std::mutex> lock(mutex);
    if (!block) fail(PJRT_INVALID_ARGUMENT, "Buffer has been deleted or donated.");
    if (!external.empty()) fail(PJRT_FAILED_PRECONDITION, "A buffer with external references cannot be donated");
    Held held{std::move(block), defined};
    block = nullptr;
    return held;
}

void PJRT_Buffer::release() {
    BlockPtr dropped;  // freed without the lock
    std::lock_guard<std::mutex> lock(mutex);
    dropped.swap(block);
}

bool PJRT_Buffer::deleted() const {
    std::lock_guard<std::mutex> lock(mutex);
    return !block;
}

namespace npu::api {

void Buffer_Destroy(PJRT_Buffer_Destroy_Args& args) { delete args.buffer; }
void Buffer_ElementType(PJRT_Buffer_ElementType_Args& args) { args.type = args.buffer->shape.type; }
void Buffer_Dimensions(PJRT_Buffer_Dimensions_Args& args) {
    args.dims = args.buffer->shape.dims.data();
    args.num_dims = args.buffer->shape.dims.size();
}
void Buffer_UnpaddedDimensions(PJRT_Buffer_UnpaddedDimensions_Args& args) {
    args.unpadded_dims = args.buffer->shape.dims.data();
    args.num_dims = args.buffer->shape.dims.size();
}
void Buffer_DynamicDimensionIndices(PJRT_Buffer_DynamicDimensionIndices_Args& args) {
    args.dynamic_dim_indices = nullptr;
    args.num_dynamic_dims = 0;
}

void Buffer_OnDeviceSizeInBytes(PJRT_Buffer_OnDeviceSizeInBytes_Args& args) {
    args.on_device_size_in_bytes = args.buffer->shape.bytes();
}
void Buffer_Device(PJRT_Buffer_Device_Args& args) { args.device = &args.buffer->device(); }
void Buffer_Memory(PJRT_Buffer_Memory_Args& args) { args.memory = &args.buffer->memory; }
void Buffer_Delete(PJRT_Buffer_Delete_Args& args) { args.buffer->release(); }
void Buffer_IsDeleted(PJRT_Buffer_IsDeleted_Args& args) { args.is_deleted = args.buffer->deleted(); }
// Even pinned memory is read through copies, which wait for what is still being written.
void Buffer_IsOnCpu(PJRT_Buffer_IsOnCpu_Args& args) { args.is_on_cpu = false; }
void Buffer_ReadyEvent(PJRT_Buffer_ReadyEvent_Args& args) {
    std::lock_guard<std::mutex> lock(args.buffer->mutex);
    args.event = new PJRT_Event{args.buffer->defined};
}
void Buffer_UnsafePointer(PJRT_Buffer_UnsafePointer_Args& args) {
    args.buffer_pointer = reinterpret_cast<uintptr_t>(args.buffer->hold().block->data);
}
void Buffer_OpaqueDeviceMemoryDataPointer(PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args& args) {
    std::lock_guard<std::mutex> lock(args.buffer->mutex);
    const auto& block = args.buffer->block              ? args.buffer->block
                        : args.buffer->external.empty() ? args.buffer->block
                                                        : args.buffer->external.back();
    if (!block) fail(PJRT_INVALID_ARGUMENT, "Buffer has been deleted or donated.");
    args.device_memory_ptr = block->data;
}
void Buffer_IncreaseExternalReferenceCount(PJRT_Buffer_IncreaseExternalReferenceCount_Args& args) {
    auto held = args.buffer->hold();
    std::lock_guard<std::mutex> lock(args.buffer->mutex);
    args.buffer->external.push_back(std::move(held.block));
}
void Buffer_DecreaseExternalReferenceCount(PJRT_Buffer_DecreaseExternalReferenceCount_Args& args) {
    BlockPtr dropped;
    std::lock_guard<std::mutex> lock(args.buffer->mutex);
    if (args.buffer->external.empty()) fail(PJRT_INVALID_ARGUMENT, "The buffer has no external reference");
    dropped = std::move(args.buffer->external.back());
    args.buffer->external.pop_back();
}

void Buffer_Bitcast(PJRT_Buffer_Bitcast_Args& args) {
    Shape shape{args.element_type, Dims(args.dims, args.dims + args.num_dims)};
    if (shape.bytes() != args.buffer->shape.bytes()) {
        fail(PJRT_INVALID_ARGUMENT, "A bitcast from %zu bytes to %zu", args.buffer->shape.bytes(), shape.bytes());
    }
    const Held held = args.buffer->hold();
    args.out_buffer = new PJRT_Buffer(args.buffer->memory, std::move(shape), held.block, held.defined);
}

void Client_CreateViewOfDeviceBuffer(PJRT_Client_CreateViewOfDeviceBuffer_Args& args) {
    Shape shape{args.element_type, Dims(args.dims, args.dims + args.num_dims)};
    if (!is_dense(shape.dims, strides_of(args.layout, shape.dims, size_of(shape.type)), size_of(shape.type))) {
        fail(PJRT_UNIMPLEMENTED, "A view of device memory that is not dense and row-major: make a copy that is");
    }
    auto& memory = args.memory ? *static_cast<Memory*>(args.memory) : args.device->memory(MemoryKind::device);
    auto block = std::make_shared<Block>(nullptr, args.device_buffer_ptr, shape.bytes());
    block->release = [callback = args.on_delete_callback, data = args.device_buffer_ptr,
                      user_arg = args.on_delete_callback_arg] {
        if (callback) callback(data, user_arg);
    };
    // The contents are there when the caller's stream has done what is on it now.
    if (args.stream) {
        memory.device.activate();
        NPU_CALL(aclrtSynchronizeStream, reinterpret_cast<void*>(args.stream));
    }
    args.buffer = new PJRT_Buffer(memory, std::move(shape), std::move(block), Completion::done());
}

void Client_CreateUninitializedBuffer(PJRT_Client_CreateUninitializedBuffer_Args& args) {
    Shape shape{args.shape_element_type, Dims(args.shape_dims, args.shape_dims + args.shape_num_dims)};
    auto& memory = args.memory ? *static_cast<Memory*>(args.memory) : args.device->memory(MemoryKind::device);
    auto block = memory.device.allocate(memory.kind, shape.bytes());
    args.buffer = new PJRT_Buffer(memory, std::move(shape), std::move(block), Completion::done());
}

void Client_CreateErrorBuffer(PJRT_Client_CreateErrorBuffer_Args& args) {
    Shape shape{args.shape_element_type, Dims(args.shape_dims, args.shape_dims + args.shape_num_dims)};
    auto& memory = *static_cast<Memory*>(args.memory);
    auto block = memory.device.allocate(memory.kind, 0);
    args.buffer = new PJRT_Buffer(
        memory, std::move(shape), std::move(block),
        Completion::failed({args.error_code, std::string(args.error_message, args.error_message_size)}));
}

}  // namespace npu::api

// ---- buffers that are filled later

struct PJRT_FulfillAliasBufferCallback {
    PJRT_Buffer* alias;
    Completion::Ptr filled;
};

namespace npu::api {

void Client_CreateAliasBuffer(PJRT_Client_CreateAliasBuffer_Args& args) {
    Shape shape{args.shape_element_type, Dims(args.shape_dims, args.shape_dims + args.shape_num_dims)};
    auto& memory = *static_cast<Memory*>(args.memory);
    auto filled = Completion::pending();
    auto block = memory.device.allocate(memory.kind, shape.bytes());
    args.alias_buffer = new PJRT_Buffer(memory, std::move(shape), std::move(block), filled);
    args.fulfill_alias_buffer_cb = new PJRT_FulfillAliasBufferCallback{args.alias_buffer, std::move(filled)};
}

void Client_FulfillAliasBuffer(PJRT_Client_FulfillAliasBuffer_Args& args) {
    std::unique_ptr<PJRT_FulfillAliasBufferCallback> callback(args.fulfill_alias_buffer_cb);
    if (args.status_code != PJRT_OK) {
        callback->filled->finish(Failure(args.status_code, std::string(args.error_message, args.error_message_size)));
        return;
    }
    const Held held = args.buffer->hold();
    {
        std::lock_guard<std::mutex> lock(callback->alias->mutex);
        callback->alias->block = held.block;
    }
    held.defined->then([filled = callback->filled](const Completion::Outcome& outcome) { filled->finish(outcome); });
}

}  // namespace npu::api
