// One run of a program on one device.
#pragma once

#include "callback.h"
#include "executable.h"

namespace npu {

// What one run works on: its values' memory, filled in as the program's values are numbered.
struct Run {
    std::vector<Model::Span> values;
    std::vector<BlockPtr> blocks;  // by value
    const Program* program = nullptr;
    PJRT_Device* device = nullptr;
    Loaded* loaded = nullptr;
    Communicators* communicators = nullptr;
    std::shared_ptr<Meeting> meeting;

    void run(const std::vector<Step>& steps);
    void copy(const Model::Span& to, const Model::Span& from);

private:
    void run(const Step& step);
    std::vector<Model::Span> spans(const std::vector<size_t>& indices) const;
    template <typename Value>
    Value read(size_t value);  // waits for the stream

    void carry(const Step& step);

    size_t turn_ = 0;  // callbacks so far
    std::map<size_t, BlockPtr> aside_;
};

}  // namespace npu
