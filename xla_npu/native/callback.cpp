#include "callback.h"

namespace npu {

void run_callback(const Step& step, PJRT_Device&, const std::vector<Model::Span>&, const std::vector<Model::Span>&) {
    fail(PJRT_UNIMPLEMENTED, "The host function '%s' is not registered", step.target.c_str());
}

}  // namespace npu
