// One run of a program on one device.
#pragma once

#include <atomic>

#include "executable.h"

namespace npu {

// What one run works on: its values' memory, filled in as the program's values are numbered.
struct Run {
    const Program& program;
    Loaded& loaded;
    PJRT_LoadedExecutable& executable;
    std::vector<Model::Span> values;
    std::vector<BlockPtr> blocks;  // by value

    PJRT_Device& device() const { return *loaded.device; }
    void run(const std::vector<Step>& steps);

private:
    void run(const Step& step);
    std::vector<Model::Span> spans(const std::vector<size_t>& indices) const;
    void copy(const Model::Span& to, const Model::Span& from);
    template <typename Value>
    Value read(size_t value);  // waits for the stream
};

}  // namespace npu
