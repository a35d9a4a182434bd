#include "hccl.h"

#include "cann.h"
#include "failure.h"

namespace npu {

const Hccl& hccl() {
    static const Hccl functions = [] {
        Hccl made;
#define NPU_RESOLVE(name, arguments)                                                  \
    made.name = reinterpret_cast<int(*) arguments>(find_symbol("libhccl.so", #name)); \
    if (!made.name) fail(PJRT_FAILED_PRECONDITION, "CANN's libhccl.so has no %s: install CANN 8.2 or newer", #name);
        NPU_HCCL_FUNCTIONS(NPU_RESOLVE)
#undef NPU_RESOLVE
        return made;
    }();
    return functions;
}

void check_hccl(int code, const char* call) {
    if (code == 0) return;
    const char* message = cann().aclGetRecentErrMsg();
    fail(PJRT_INTERNAL, "%s failed with HCCL's error %d%s%s", call, code, message && *message ? ": " : "",
         message ? message : "");
}

int hccl_type(PJRT_Buffer_Type type) {
    switch (type) {
        case PJRT_S8:
            return 0;
        case PJRT_S16:
            return 1;
        case PJRT_S32:
            return 2;
        case PJRT_F16:
            return 3;
        case PJRT_F32:
            return 4;
        case PJRT_S64:
            return 5;
        case PJRT_U64:
            return 6;
        case PJRT_U8:
            return 7;
        case PJRT_U16:
            return 8;
        case PJRT_U32:
            return 9;
        case PJRT_F64:
            return 10;
        case PJRT_BF16:
            return 11;
        default:
            return -1;
    }
}

}  // namespace npu
