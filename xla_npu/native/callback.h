// Steps that call back into the host's program.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>

#include "executable.h"

namespace npu {

// Where the devices of one execution meet for callbacks that run once and whose results all of them get.
class Meeting {
public:
    using Results = std::vector<std::string>;
    void publish(size_t turn, Results results);
    // Throws what publish() will never come for.
    const Results& wait(size_t turn);
    void abandon(const Failure& failure);

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<size_t, Results> results_;
    std::optional<Failure> failure_;
};

// Runs the step's function with what the device has computed so far; waits for both.
void run_callback(const Step& step, const Loaded& loaded, Meeting& meeting, size_t turn,
                  const std::vector<Model::Span>& inputs, const std::vector<Model::Span>& outputs);

}  // namespace npu
