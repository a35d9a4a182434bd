// Slots that this platform has no use for: they answer, so that a newer framework that tries one goes on.
#include "api.h"
#include "failure.h"

namespace npu::api {

#define NPU_UNIMPLEMENTED(name) \
    void name(PJRT_##name##_Args&) { fail(PJRT_UNIMPLEMENTED, "PJRT_" #name " is not supported by the npu plugin"); }
NPU_UNIMPLEMENTED(CopyToDeviceStream_Destroy)
NPU_UNIMPLEMENTED(CopyToDeviceStream_AddChunk)
NPU_UNIMPLEMENTED(CopyToDeviceStream_TotalBytes)
NPU_UNIMPLEMENTED(CopyToDeviceStream_GranuleSize)
NPU_UNIMPLEMENTED(CopyToDeviceStream_CurrentBytes)
NPU_UNIMPLEMENTED(TopologyDescription_MakeCanonicalShapeForMemorySpace)
NPU_UNIMPLEMENTED(Device_PoisonExecution)
#undef NPU_UNIMPLEMENTED

}  // namespace npu::api
