#include "failure.h"

#include <cstdarg>
#include <cstdio>

#include "api.h"

namespace npu {
namespace {
struct Error : PJRT_Error {
    Failure failure;
    explicit Error(const Failure& failure) : PJRT_Error{&table}, failure(failure) {}
    static const PJRT_Error_FunctionTable table;
};

const Failure& of(const PJRT_Error* error) { return static_cast<const Error*>(error)->failure; }

const PJRT_Error_FunctionTable Error::table = {
    sizeof(PJRT_Error_FunctionTable),
    sizeof(Error),
    nullptr,
    [](PJRT_Error* error) { delete static_cast<Error*>(error); },
    [](const PJRT_Error* error, const char** message, size_t* size) {
        *message = of(error).message.c_str();
        *size = of(error).message.size();
    },
    [](const PJRT_Error* error) { return of(error).code; },
    [](const PJRT_Error*, PJRT_Error_PayloadVisitor, void*) {},
};
}  // namespace

void fail(PJRT_Error_Code code, const char* format, ...) {
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    std::string text(std::vsnprintf(nullptr, 0, format, arguments), '\0');
    std::vsnprintf(text.data(), text.size() + 1, format, again);
    va_end(again);
    va_end(arguments);
    throw Failure(code, std::move(text));
}

PJRT_Error* make_error(const Failure& failure) { return new Error(failure); }
Failure failure_of(const PJRT_Error& error) { return of(&error); }

namespace api {
void Error_Destroy(PJRT_Error_Destroy_Args& args) { delete static_cast<Error*>(args.error); }
void Error_Message(PJRT_Error_Message_Args& args) {
    Error::table.message(args.error, &args.message, &args.message_size);
}
void Error_GetCode(PJRT_Error_GetCode_Args& args) { args.code = of(args.error).code; }
void Error_ForEachPayload(PJRT_Error_ForEachPayload_Args&) {}  // failures carry no payload
}  // namespace api

}  // namespace npu
