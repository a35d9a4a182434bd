// Graph capture (model RI): kernels of the emulator run when they are launched, so nothing can be captured. Asking
// whether a stream is capturing is allowed and always answered with no.
#include "runtime.h"

namespace {
int not_supported(const char* call) {
    return emu::fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT,
                     "%s: the emulator does not capture graphs. Run eagerly (no NPUGraph, no npugraph compile mode).",
                     call);
}
}  // namespace

#define NOT_SUPPORTED(name, ...) \
    ACL_API int name(__VA_ARGS__) { return not_supported(#name); }

struct aclmdlRICondTaskParams {
    void* handle;
    int type;
    uint32_t size;
    void** models;
};

NOT_SUPPORTED(aclmdlRIAddCondTask, aclmdlRICondTaskParams, void*, uint32_t)
NOT_SUPPORTED(aclmdlRICaptureBegin, void*, int)
NOT_SUPPORTED(aclmdlRICaptureEnd, void*, void**)
NOT_SUPPORTED(aclmdlRICaptureTaskGrpBegin, void*)
NOT_SUPPORTED(aclmdlRICaptureTaskGrpEnd, void*, void**)
NOT_SUPPORTED(aclmdlRICaptureTaskUpdateBegin, void*, void*)
NOT_SUPPORTED(aclmdlRICaptureTaskUpdateEnd, void*)
NOT_SUPPORTED(aclmdlRICaptureToModelRIBegin, void*, void*, int)
NOT_SUPPORTED(aclmdlRICondHandleCreate, void*, uint32_t, int, void**)
NOT_SUPPORTED(aclmdlRICondHandleGetCondPtr, void*, uint64_t**)
NOT_SUPPORTED(aclmdlRIDebugJsonPrint, void*, const char*, uint32_t)
NOT_SUPPORTED(aclmdlRIDebugPrint, void*)
NOT_SUPPORTED(aclmdlRIExecuteAsync, void*, void*)
NOT_SUPPORTED(aclmdlRIGetId, void*, uint32_t*)

ACL_API int aclmdlRIDestroy(void*) { return 0; }
ACL_API int aclmdlRICaptureThreadExchangeMode(int*) { return 0; }

ACL_API int aclmdlRICaptureGetInfo(void*, int* status, void** model) {
    if (status) *status = 0;  // ACL_MODEL_RI_CAPTURE_STATUS_NONE
    if (model) *model = nullptr;
    return 0;
}
