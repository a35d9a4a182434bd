#include "api.h"

#include <pthread.h>

#include <new>
#include <string>
#include <type_traits>

#include "failure.h"

namespace npu {
extern PJRT_Profiler_Extension profiler_extension;  // profile.cpp

namespace {
// Set in the child of a process that forked after it made a client: the child has none of its threads.
bool forked = false;

// Entry points that wait for such a thread.
template <typename Args, typename... Needy>
constexpr bool among = (std::is_same_v<Args, Needy> || ...);
template <typename Args>
constexpr bool needs_threads =
    among<Args, PJRT_Client_Create_Args, PJRT_Client_Compile_Args, PJRT_Client_BufferFromHostBuffer_Args,
          PJRT_Client_CreateBuffersForAsyncHostToDevice_Args, PJRT_Executable_DeserializeAndLoad_Args,
          PJRT_LoadedExecutable_Execute_Args, PJRT_Buffer_ToHostBuffer_Args, PJRT_Buffer_CopyRawToHost_Args,
          PJRT_Buffer_CopyToDevice_Args, PJRT_Buffer_CopyToMemory_Args>;
// Entry points that give back what is the parent's as well: the child leaves it as it is.
template <typename Args>
constexpr bool gives_back = among<Args, PJRT_Client_Destroy_Args, PJRT_LoadedExecutable_Destroy_Args,
                                  PJRT_Buffer_Destroy_Args, PJRT_Buffer_Delete_Args, PJRT_Event_Destroy_Args>;

// An entry point as the caller sees it: exceptions become errors.
template <auto function, typename Args>
PJRT_Error* guarded(Args* args) noexcept {
    try {
        if constexpr (std::is_same_v<Args, PJRT_Client_Create_Args>) {
            static const int watched = pthread_atfork(nullptr, nullptr, [] { forked = true; });
            (void)watched;
        }
        if constexpr (needs_threads<Args>) {
            if (forked) {
                fail(PJRT_FAILED_PRECONDITION,
                     "NPUs cannot be used in a process that was forked after its parent began to use them. Start "
                     "processes with multiprocessing.get_context('spawn'), or fork before JAX's first use");
            }
        }
        if constexpr (gives_back<Args>) {
            if (forked) return nullptr;
        }
        function(*args);
        return nullptr;
    } catch (const Failure& failure) {
        return make_error(failure);
    } catch (const std::bad_alloc&) {
        return make_error({PJRT_RESOURCE_EXHAUSTED, "Out of host memory"});
    } catch (const std::exception& error) {
        return make_error({PJRT_INTERNAL, error.what()});
    }
}

#define NPU_ENTRY(name) guarded<api::name, PJRT_##name##_Args>,

PJRT_Stream_Extension streams = {{sizeof(PJRT_Stream_Extension), PJRT_EXTENSION_STREAM, &profiler_extension.base},
                                 PJRT_STREAM_SLOTS(NPU_ENTRY)};
PJRT_Layouts_Extension layouts = {{sizeof(PJRT_Layouts_Extension), PJRT_EXTENSION_LAYOUTS, &streams.base},
                                  PJRT_LAYOUTS_SLOTS(NPU_ENTRY)};
PJRT_Shardings_Extension shardings = {{sizeof(PJRT_Shardings_Extension), PJRT_EXTENSION_SHARDINGS, &layouts.base},
                                      PJRT_SHARDINGS_SLOTS(NPU_ENTRY)};

const PJRT_Api table = {sizeof(PJRT_Api),
                        &shardings.base,
                        {sizeof(PJRT_Api_Version), nullptr, PJRT_API_MAJOR, PJRT_API_MINOR},
                        PJRT_SLOTS(NPU_ENTRY)};
#undef NPU_ENTRY
}  // namespace
}  // namespace npu

extern "C" __attribute__((visibility("default"))) const PJRT_Api* GetPjrtApi() { return &npu::table; }
