// The trace that CANN_EMULATOR_TRACE asks for. Internal to libascendcl.so.
#pragma once

#include <cstdint>

#include "core.h"

extern "C" EMU_API int emu_write_stats(const char* path);

namespace emu {
bool trace_wanted();
void trace_add(const char* name, const char* kind, int device, int stream, int64_t start_ns, int64_t end_ns,
               int64_t bytes);
void trace_flush();
}  // namespace emu
