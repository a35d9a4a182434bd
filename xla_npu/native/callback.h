// Steps that call back into the host's program.
#pragma once

#include "executable.h"

namespace npu {

void run_callback(const Step& step, PJRT_Device& device, const std::vector<Model::Span>& inputs,
                  const std::vector<Model::Span>& outputs);

}  // namespace npu
