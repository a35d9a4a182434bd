// Finds and loads libcann_bridge.so, which computes the operators.
#pragma once

#include "../model/model.h"
#include "launch.h"

namespace emu {

// Called once by the bridge while it is being loaded.
EMU_API void set_model_backend(const ModelBackend& backend);

// The backend, loaded on the first call; null, with the reason as the thread's last error, where that failed.
const Backend* load_backend();

}  // namespace emu
