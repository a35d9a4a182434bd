#include "api.h"

#include <new>
#include <string>
#include <type_traits>

#include "failure.h"

namespace npu {
extern PJRT_Profiler_Extension profiler_extension;  // profile.cpp

namespace {
// An entry point as the caller sees it: exceptions become errors.
template <auto function, typename Args>
PJRT_Error* guarded(Args* args) noexcept {
    try {
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
