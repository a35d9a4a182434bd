// Models: the programs of .om files as lists of steps on tensors whose places are known beforehand.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace emu {

// A node of a prepared model. Runs without the GIL; throws what torch throws, or ModelError.
struct Step {
    virtual ~Step() = default;
    virtual void run() = 0;
    std::string name;  // "Add (add_12)", for messages
};
using Steps = std::vector<std::unique_ptr<Step>>;

// An error that is already the thread's; only its code is carried.
struct ModelError {
    int code;
};

// Gives libopapi the functions that prepare and execute models.
void set_models();

}  // namespace emu
