// libacl_op_compiler.so: options of the operator compiler, and the older, named operators. Nothing is compiled: options
// are kept and given back, and a named operator is refused with its name.
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

int refuse_named(const char* call, const char* type) {
    return emu::fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT,
                     "%s: the named operator %s is not emulated; only aclnn operators are. Use the aclnn form of the "
                     "operator (torch_npu: torch.npu.set_compile_mode(jit_compile=False)).",
                     call, type ? type : "(null)");
}
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

ACL_API int aclopCompileAndExecute(const char* type, int, const void* const*, const void* const*, int,
                                   const void* const*, void* const*, const void*, int, int, const char*, void*) {
    return refuse_named("aclopCompileAndExecute", type);
}

ACL_API int aclopCompileAndExecuteV2(const char* type, int, void**, void**, int, void**, void**, void*, int, int,
                                     const char*, void*) {
    return refuse_named("aclopCompileAndExecuteV2", type);
}

ACL_API void* aclCreateGraphDumpOpt() { return new int(0); }
ACL_API int aclDestroyGraphDumpOpt(const void* option) {
    delete static_cast<const int*>(option);
    return 0;
}
ACL_API int aclGenGraphAndDumpForOp(const char* type, int, const void* const*, const void* const*, int,
                                    const void* const*, void* const*, const void*, int, const char*, const void*) {
    return refuse_named("aclGenGraphAndDumpForOp", type);
}
