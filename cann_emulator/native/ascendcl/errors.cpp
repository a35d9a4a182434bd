// The calling thread's last error and its text.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "runtime.h"

namespace emu {
namespace {
struct LastError {
    int code = 0;
    std::string message;
    std::string handed_out;  // keeps the pointer that aclGetRecentErrMsg returned valid
};
thread_local LastError last_error;
}  // namespace

int last_error_code() { return last_error.code; }

int fail_text(int code, const std::string& message) {
    last_error.code = code;
    last_error.message = message;
    return code;
}

int fail(int code, const char* format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    std::string text(std::vsnprintf(nullptr, 0, format, args), '\0');
    std::vsnprintf(text.data(), text.size() + 1, format, again);
    va_end(again);
    va_end(args);
    return fail_text(code, text);
}

}  // namespace emu

// As in CANN, reading the message clears it.
ACL_API const char* aclGetRecentErrMsg() {
    auto& error = emu::last_error;
    if (error.message.empty()) return nullptr;
    error.handed_out = std::move(error.message);
    error.message.clear();
    return error.handed_out.c_str();
}

ACL_API int aclrtPeekAtLastError(int) { return emu::last_error.code; }

ACL_API int aclrtGetLastError(int) {
    const int code = emu::last_error.code;
    emu::last_error.code = 0;
    return code;
}

// The log that callers write through CANN: shown on stderr from ASCEND_GLOBAL_LOG_LEVEL (0 debug ... 3 error) on.
ACL_API void aclAppLog(int level, const char* function, const char* file, uint32_t line, const char* format, ...) {
    static const int threshold = [] {
        const char* text = std::getenv("ASCEND_GLOBAL_LOG_LEVEL");
        const char* to_screen = std::getenv("ASCEND_SLOG_PRINT_TO_STDOUT");
        return to_screen && *to_screen == '1' ? (text ? std::atoi(text) : 3) : 4;
    }();
    if (level < threshold) return;
    va_list args;
    va_start(args, format);
    std::fprintf(stderr, "[%s] %s:%u %s: ",
                 level == 3   ? "ERROR"
                 : level == 2 ? "WARNING"
                              : "INFO",
                 file, line, function);
    std::vfprintf(stderr, format, args);
    std::fputc('\n', stderr);
    va_end(args);
}
