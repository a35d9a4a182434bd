// Collectives between the devices of this process, through HCCL.
#pragma once

#include "executable.h"

namespace npu {

class Communicators {
public:
    explicit Communicators(PJRT_Client& client) : client_(client) {}
    // This device's part of the step, on its compute stream. Every other device of the step's group calls it too.
    void run(const Step& step, PJRT_LoadedExecutable& executable, const Loaded& loaded, const std::vector<Model::Span>& inputs,
             const std::vector<Model::Span>& outputs);

private:
    PJRT_Client& client_;
};

}  // namespace npu
