// CANN's C libraries, found at run time: the plugin loads, and JAX starts with its other backends, without them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace npu {

// Opaque to the plugin, as in CANN: streams, events, models' descriptions, datasets and data buffers are pointers.
#define NPU_RUNTIME_FUNCTIONS(X)                                                                                 \
    X(int, aclInit, (const char* config))                                                                        \
    X(const char*, aclGetRecentErrMsg, ())                                                                       \
    X(const char*, aclrtGetSocName, ())                                                                          \
    X(int, aclrtGetDeviceCount, (uint32_t* count))                                                               \
    X(int, aclrtSetDevice, (int32_t device))                                                                     \
    X(int, aclrtCreateStream, (void** stream))                                                                   \
    X(int, aclrtDestroyStream, (void* stream))                                                                   \
    X(int, aclrtSynchronizeStream, (void* stream))                                                               \
    X(int, aclrtStreamWaitEvent, (void* stream, void* event))                                                    \
    X(int, aclrtCreateEventExWithFlag, (void** event, uint32_t flag))                                            \
    X(int, aclrtDestroyEvent, (void* event))                                                                     \
    X(int, aclrtRecordEvent, (void* event, void* stream))                                                        \
    X(int, aclrtQueryEventStatus, (void* event, int* status))                                                    \
    X(int, aclrtSynchronizeEvent, (void* event))                                                                 \
    X(int, aclrtMalloc, (void** pointer, size_t size, int policy))                                               \
    X(int, aclrtFree, (void* pointer))                                                                           \
    X(int, aclrtMallocHost, (void** pointer, size_t size))                                                       \
    X(int, aclrtFreeHost, (void* pointer))                                                                       \
    X(int, aclrtHostRegister, (void* pointer, uint64_t size, int type, void** device_pointer))                   \
    X(int, aclrtHostUnregister, (void* pointer))                                                                 \
    X(int, aclrtGetMemInfo, (int kind, size_t* free, size_t* total))                                             \
    X(int, aclrtMemcpy, (void* to, size_t capacity, const void* from, size_t size, int kind))                    \
    X(int, aclrtMemcpyAsync, (void* to, size_t capacity, const void* from, size_t size, int kind, void* stream)) \
    X(int, aclrtMemsetAsync, (void* to, size_t capacity, int32_t value, size_t size, void* stream))              \
    X(int, aclrtDeviceCanAccessPeer, (int32_t* can, int32_t device, int32_t peer))                               \
    X(int, aclrtDeviceEnablePeerAccess, (int32_t peer, uint32_t flags))

#define NPU_MODEL_FUNCTIONS(X)                                                                      \
    X(int, aclmdlQuerySizeFromMem, (const void* model, size_t size, size_t* work, size_t* weights)) \
    X(int, aclmdlLoadFromMemWithMem,                                                                \
      (const void* model, size_t size, uint32_t* id, void* work, size_t work_size, void* weights,   \
       size_t weights_size))                                                                        \
    X(int, aclmdlUnload, (uint32_t id))                                                             \
    X(void*, aclmdlCreateDataset, ())                                                               \
    X(int, aclmdlDestroyDataset, (const void* dataset))                                             \
    X(int, aclmdlAddDatasetBuffer, (void* dataset, void* buffer))                                   \
    X(void*, aclCreateDataBuffer, (void* data, size_t size))                                        \
    X(int, aclDestroyDataBuffer, (const void* buffer))                                              \
    X(int, aclUpdateDataBuffer, (void* buffer, void* data, size_t size))                            \
    X(int, aclmdlExecuteAsync, (uint32_t id, const void* inputs, void* outputs, void* stream))

struct Cann {
#define NPU_FUNCTION(result, name, arguments) result(*name) arguments = nullptr;
    NPU_RUNTIME_FUNCTIONS(NPU_FUNCTION)
    NPU_MODEL_FUNCTIONS(NPU_FUNCTION)
#undef NPU_FUNCTION
};

enum CopyKind { host_to_device = 1, device_to_host = 2, device_to_device = 3 };

// Loads CANN once a process and initialises it. Throws NOT_FOUND, saying how to get CANN or its emulator.
void load_cann();
// After load_cann().
const Cann& cann();

// Throws a Failure with CANN's own message for a code other than 0.
void check(int code, const char* call);
#define NPU_CALL(name, ...) ::npu::check(::npu::cann().name(__VA_ARGS__), #name)

// The address of a function in another of CANN's libraries, or null.
void* find_symbol(const char* library, const char* name);

}  // namespace npu
