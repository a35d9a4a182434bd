// Failures: an exception inside the plugin, a PJRT_Error outside of it.
#pragma once

#include <exception>
#include <string>

#include "pjrt.h"

namespace npu {

struct Failure : std::exception {
    Failure(PJRT_Error_Code code, std::string message) : code(code), message(std::move(message)) {}
    const char* what() const noexcept override { return message.c_str(); }
    PJRT_Error_Code code;
    std::string message;
};

// Throws a Failure. The message names the cause and what to do.
[[noreturn]] void fail(PJRT_Error_Code code, const char* format, ...) __attribute__((format(printf, 2, 3)));

// An error object for a caller, who destroys it.
PJRT_Error* make_error(const Failure& failure);
// The failure that a caller's error object stands for.
Failure failure_of(const PJRT_Error& error);

}  // namespace npu
