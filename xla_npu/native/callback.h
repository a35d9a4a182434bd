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

// The functions that programs may call by name.
std::vector<std::string> host_targets();

// Throws NOT_FOUND when a step calls a function that this process does not have.
void check_host_targets(const std::vector<Step>& steps);

}  // namespace npu
