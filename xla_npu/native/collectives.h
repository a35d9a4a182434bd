// Collectives between the devices of this process, through HCCL.
#pragma once

#include <map>
#include <mutex>
#include <vector>

#include "executable.h"

namespace npu {

class Communicators {
public:
    Communicators() = default;
    ~Communicators() { release(); }
    Communicators(const Communicators&) = delete;
    Communicators& operator=(const Communicators&) = delete;

    // Gives all communicators back to HCCL; those that are needed again are made again.
    void release();
    // This device's part of the step, on its compute stream. Every other device of the step's group calls it too.
    void run(const Step& step, const Program& program, const Loaded& loaded, const Model::Span& input,
             const Model::Span& output);

private:
    void permute(const Step& step, const Program& program, const Loaded& loaded, const Model::Span& input,
                 const Model::Span& output);
    // The communicator of the devices, as the one at `rank` sees it. HCCL makes all of them at once.
    void* get(const std::vector<int32_t>& devices, size_t rank);

    std::mutex mutex_;
    std::map<std::vector<int32_t>, std::vector<void*>> communicators_;
};

}  // namespace npu
