// The aclnn functions that are not operators: they have one phase and launch nothing.
#include "launch.h"

namespace {
constexpr int kFormatNd = 2;
}

extern "C" {

// There are no compiled kernels to select again, and the generator's state is torch_npu's.
EMU_API int aclnnReselectStaticKernel() { return 0; }
EMU_API int aclnnReselectStaticKernelWithPath(const char*) { return 0; }
EMU_API int aclnnSetPytorchRandom(int) { return 0; }

// The caller frees the shape with delete[].
EMU_API int aclnnNpuFormatCastCalculateSizeAndFormat(const aclTensor* source, int format, int, int64_t** shape,
                                                     uint64_t* rank, int* actual_format) {
    if (!source || !shape || !rank || !actual_format) {
        return emu::fail(161001, "aclnnNpuFormatCastCalculateSizeAndFormat: null argument");
    }
    if (format != kFormatNd) {
        return emu::fail(161002,
                         "aclnnNpuFormatCastCalculateSizeAndFormat: format %d; the CANN emulator keeps every tensor in "
                         "ND (2). Leave torch.npu.config.allow_internal_format at False",
                         format);
    }
    if (int code = aclGetViewShape(source, shape, rank)) return code;
    *actual_format = kFormatNd;
    return 0;
}

}  // extern "C"
