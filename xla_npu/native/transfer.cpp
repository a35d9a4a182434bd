#include "transfer.h"

#include <cstdlib>
#include <cstring>

#include "api.h"
#include "cann.h"

namespace npu {
namespace {
// Up to here a copy goes through pinned memory on the caller's thread; beyond, on a thread of its own from where the
// data is, since copying it once more would cost more than the thread's start.
constexpr size_t staged = 256 << 10;

char* at(const BlockPtr& block, size_t offset) { return static_cast<char*>(block->data) + offset; }

// Pinned memory for one staged copy; kept for the next.
class Staging {
public:
    std::shared_ptr<void> take() {
        void* data = nullptr;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            if (!unused_.empty()) {
                data = unused_.back();
                unused_.pop_back();
            }
        }
        if (!data) NPU_CALL(aclrtMallocHost, &data, staged);
        return {data, [this](void* pointer) {
                    std::lock_guard<std::mutex> lock(mutex_);
                    unused_.push_back(pointer);
                }};
    }

private:
    std::mutex mutex_;
    std::vector<void*> unused_;
};

Staging& staging() {
    static Staging& instance = *new Staging;  // outlives every copy
    return instance;
}

// Runs `work` on a thread once `after` is done, and gives its outcome. What `work` holds is let go before that.
Completion::Ptr run_later(TaskThread& thread, Completion::Ptr after, std::function<void()> work) {
    auto done = Completion::pending();
    thread.add([done, after = std::move(after), work = std::move(work)]() mutable {
        Completion::Outcome outcome = after->wait();
        if (!outcome) {
            try {
                work();
            } catch (const Failure& failure) {
                outcome = failure;
            }
        }
        work = nullptr;
        done->finish(std::move(outcome));
    });
    return done;
}

// On a thread of the host: from memory that is not pinned, after all earlier work with the block.
void upload(PJRT_Device& device, const BlockPtr& block, const std::vector<Completion::Ptr>& before, size_t offset,
            const void* host, size_t bytes) {
    for (const auto& use : before) use->wait();
    device.activate();
    NPU_CALL(aclrtMemcpy, at(block, offset), bytes, host, bytes, host_to_device);
}

// Failed already: nothing to copy.
bool failed(const Completion::Ptr& completion) { return completion->ready() && completion->outcome(); }
}  // namespace

Completion::Ptr copy_from_host(Memory& memory, const BlockPtr& block, size_t offset, const void* host, size_t bytes,
                               std::shared_ptr<void> keep) {
    PJRT_Device& device = memory.device;
    if (bytes == 0) return Completion::done();
    if (memory.kind != MemoryKind::device) {
        std::memcpy(at(block, offset), host, bytes);
        return Completion::done();
    }
    Completion::Ptr done;
    if (bytes <= staged) {
        device.activate();
        auto pinned = staging().take();
        std::memcpy(pinned.get(), host, bytes);
        block->make_wait(*device.uploads);
        NPU_CALL(aclrtMemcpyAsync, at(block, offset), bytes, pinned.get(), bytes, host_to_device,
                 device.uploads->handle);
        done = Completion::recorded(*device.uploads, {pinned});
    } else {
        done = run_later(device.upload_thread, Completion::done(), [=, &device, before = block->open_uses()] {
            upload(device, block, before, offset, host, bytes);
            (void)keep;
        });
    }
    block->used_by(done);
    return done;
}

Completion::Ptr copy_to_host(Memory& memory, const Held& held, size_t offset, void* host, size_t bytes) {
    PJRT_Device& device = memory.device;
    if (bytes == 0 || failed(held.defined)) return held.defined;
    const bool on_device = memory.kind == MemoryKind::device;
    auto work = [=, &device] {
        if (!on_device) {
            std::memcpy(host, at(held.block, offset), bytes);
            return;
        }
        device.activate();
        NPU_CALL(aclrtMemcpy, host, bytes, at(held.block, offset), bytes, device_to_host);
    };
    // The caller is about to wait for a small array: another thread would only make that longer.
    if (bytes <= staged && held.defined->ready()) {
        work();
        return Completion::done();
    }
    auto done = run_later(device.download_thread, held.defined, std::move(work));
    held.block->used_by(done);
    return done;
}

Held copy_to_memory(Memory& from, const Held& held, Memory& to, size_t bytes) {
    auto block = to.device.allocate(to.kind, bytes);
    if (failed(held.defined)) return {std::move(block), held.defined};
    const auto async = [](Memory& memory) { return memory.kind != MemoryKind::unpinned_host; };
    Completion::Ptr done;
    if (bytes == 0) {
        done = held.defined;
    } else if (async(from) && async(to) && (from.kind == MemoryKind::device || to.kind == MemoryKind::device)) {
        const CopyKind kind = from.kind != MemoryKind::device ? host_to_device
                              : to.kind != MemoryKind::device ? device_to_host
                                                              : device_to_device;
        Stream& stream = kind == device_to_host ? *from.device.downloads : *to.device.uploads;
        stream.device.activate();
        held.defined->make_wait(stream);
        block->make_wait(stream);
        NPU_CALL(aclrtMemcpyAsync, block->data, bytes, held.block->data, bytes, kind, stream.handle);
        done = Completion::recorded(stream, {held.block, block});
    } else if (to.kind == MemoryKind::device) {
        done = run_later(to.device.upload_thread, held.defined, [=, &to, before = block->open_uses()] {
            upload(to.device, block, before, 0, held.block->data, bytes);
        });
    } else {
        done = copy_to_host(from, held, 0, block->data, bytes);
    }
    held.block->used_by(done);
    block->used_by(done);
    return {std::move(block), std::move(done)};
}

namespace api {

void Client_BufferFromHostBuffer(PJRT_Client_BufferFromHostBuffer_Args& args) {
    Shape shape{args.type, Dims(args.dims, args.dims + args.num_dims)};
    const size_t element = size_of(shape.type), bytes = shape.bytes();
    auto& memory = args.memory   ? *static_cast<Memory*>(args.memory)
                   : args.device ? args.device->memory(MemoryKind::device)
                                 : args.client->devices.front()->memory(MemoryKind::device);
    if (!is_dense(shape.dims, strides_of(args.device_layout, shape.dims, element), element)) {
        fail(PJRT_UNIMPLEMENTED, "Arrays on this platform are dense and row-major; another layout was asked for");
    }
    Dims strides = args.num_byte_strides ? Dims(args.byte_strides, args.byte_strides + args.num_byte_strides)
                                         : dense_strides(shape.dims, element);
    const void* host = args.data;
    std::shared_ptr<void> packed;
    if (!is_dense(shape.dims, strides, element)) {
        packed.reset(std::malloc(std::max<size_t>(bytes, 1)), std::free);
        copy_strided(packed.get(), dense_strides(shape.dims, element), host, strides, shape.dims, element);
        host = packed.get();
    }
    auto block = memory.device.allocate(memory.kind, bytes);
    auto done = copy_from_host(memory, block, 0, host, bytes, packed);
    // Data that was packed or staged is the caller's again; else not before the copy is done.
    const bool read = packed || bytes <= staged;
    if (args.host_buffer_semantics == PJRT_ONLY_DURING_CALL && !read) {
        if (const auto& outcome = done->wait()) throw *outcome;
    }
    args.done_with_host_buffer = new PJRT_Event{read ? Completion::done() : done};
    args.buffer = new PJRT_Buffer(memory, std::move(shape), std::move(block), std::move(done));
}

void Buffer_ToHostBuffer(PJRT_Buffer_ToHostBuffer_Args& args) {
    const PJRT_Buffer& buffer = *args.src;
    const size_t bytes = buffer.shape.bytes();
    if (!args.dst) {
        args.dst_size = bytes;
        return;
    }
    if (args.dst_size < bytes) {
        fail(PJRT_INVALID_ARGUMENT, "An array of %zu bytes does not fit into %zu bytes of host memory", bytes,
             args.dst_size);
    }
    const size_t element = size_of(buffer.shape.type);
    const Dims& dims = buffer.shape.dims;
    Dims strides = strides_of(args.host_layout, dims, element);
    const Held held = buffer.hold();
    if (is_dense(dims, strides, element)) {
        args.event = new PJRT_Event{copy_to_host(buffer.memory, held, 0, args.dst, bytes)};
        return;
    }
    std::shared_ptr<void> packed(std::malloc(std::max<size_t>(bytes, 1)), std::free);
    auto done = Completion::pending();
    copy_to_host(buffer.memory, held, 0, packed.get(), bytes)
        ->then([=, dst = args.dst, dims = dims](const Completion::Outcome& outcome) {
            if (!outcome) copy_strided(dst, strides, packed.get(), dense_strides(dims, element), dims, element);
            done->finish(outcome);
        });
    args.event = new PJRT_Event{std::move(done)};
}

static void check_range(const PJRT_Buffer& buffer, int64_t offset, int64_t size) {
    const auto bytes = static_cast<int64_t>(buffer.shape.bytes());
    if (offset < 0 || size < 0 || offset > bytes || size > bytes - offset) {
        fail(PJRT_INVALID_ARGUMENT, "%ld bytes from byte %ld of a buffer of %ld bytes", static_cast<long>(size),
             static_cast<long>(offset), static_cast<long>(bytes));
    }
}

void Buffer_CopyRawToHost(PJRT_Buffer_CopyRawToHost_Args& args) {
    check_range(*args.buffer, args.offset, args.transfer_size);
    args.event = new PJRT_Event{copy_to_host(args.buffer->memory, args.buffer->hold(), static_cast<size_t>(args.offset),
                                             args.dst, static_cast<size_t>(args.transfer_size))};
}

void Buffer_CopyToMemory(PJRT_Buffer_CopyToMemory_Args& args) {
    auto& to = *static_cast<Memory*>(args.dst_memory);
    Held copy = copy_to_memory(args.buffer->memory, args.buffer->hold(), to, args.buffer->shape.bytes());
    args.dst_buffer = new PJRT_Buffer(to, args.buffer->shape, std::move(copy.block), std::move(copy.defined));
}

void Buffer_CopyToDevice(PJRT_Buffer_CopyToDevice_Args& args) {
    auto& to = args.dst_device->memory(MemoryKind::device);
    Held copy = copy_to_memory(args.buffer->memory, args.buffer->hold(), to, args.buffer->shape.bytes());
    args.dst_buffer = new PJRT_Buffer(to, args.buffer->shape, std::move(copy.block), std::move(copy.defined));
}

}  // namespace api
}  // namespace npu
