// The entry points: one function for every slot of the API's table, which throws a Failure where the slot returns an
// error.
#pragma once

#include "pjrt.h"

namespace npu::api {

#define NPU_DECLARE(name) void name(PJRT_##name##_Args& args);
PJRT_SLOTS(NPU_DECLARE)
PJRT_LAYOUTS_SLOTS(NPU_DECLARE)
PJRT_SHARDINGS_SLOTS(NPU_DECLARE)
PJRT_STREAM_SLOTS(NPU_DECLARE)
#undef NPU_DECLARE

}  // namespace npu::api
