// Finds and loads libcann_bridge.so, which computes the operators.
#pragma once

#include "launch.h"

namespace emu {

// The backend, loaded on the first call; null, with the reason as the thread's last error, where that failed.
const Backend* load_backend();

}  // namespace emu
