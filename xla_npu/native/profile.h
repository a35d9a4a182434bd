// What devices ran while a trace is being taken.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "completion.h"

struct PJRT_Device;

namespace npu {

// Whether somebody takes a trace: asked before anything is recorded.
bool tracing();
int64_t wall_clock_ns();
// One piece of work on a device: from `start_ns` until `done`.
void trace(const PJRT_Device& device, const char* line, const std::string& name, int64_t start_ns,
           const Completion::Ptr& done);

}  // namespace npu
