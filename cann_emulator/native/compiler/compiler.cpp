// libacl_op_compiler.so: options of the operator compiler. Nothing is compiled: options are kept and given back.
#include <cstring>
#include <map>

#include "acl_constants.h"
#include "core.h"

#define ACL_API extern "C" EMU_API

extern "C" void emu_coexist();

namespace {
std::mutex mutex;

constexpr int ACL_OP_JIT_COMPILE = 10;

// By default operators come ready-made and are not compiled when they are called.
std::map<int, std::string>& options() {
    static std::map<int, std::string> values = {{ACL_OP_JIT_COMPILE, "disable"}};
    return values;
}

// This library is loaded with torch_npu even where libascendcl.so was loaded long before torch.
__attribute__((constructor)) void on_load() { emu_coexist(); }
}  // namespace

ACL_API int aclSetCompileopt(int option, const char* value) {
    std::lock_guard<std::mutex> lock(mutex);
    options()[option] = value ? value : "";
    return 0;
}

ACL_API size_t aclGetCompileoptSize(int option) {
    std::lock_guard<std::mutex> lock(mutex);
    return options()[option].size() + 1;
}

ACL_API int aclGetCompileopt(int option, char* value, size_t length) {
    std::lock_guard<std::mutex> lock(mutex);
    const std::string& text = options()[option];
    if (!value || length < text.size() + 1) {
        return emu::fail(ACL_ERROR_INVALID_PARAM, "aclGetCompileopt: %zu bytes for a value of %zu.", length,
                         text.size() + 1);
    }
    std::memcpy(value, text.c_str(), text.size() + 1);
    return 0;
}
