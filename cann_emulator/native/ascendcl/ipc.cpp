// Sharing device memory between processes.
#include "runtime.h"

namespace {
int not_yet(const char* call) { return emu::fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "%s: not emulated.", call); }
}

ACL_API int aclrtIpcMemGetExportKey(void*, size_t, char*, size_t, uint64_t) { return not_yet("aclrtIpcMemGetExportKey"); }
ACL_API int aclrtIpcMemImportByKey(void**, const char*, uint64_t) { return not_yet("aclrtIpcMemImportByKey"); }
ACL_API int aclrtIpcMemSetImportPid(const char*, int32_t*, size_t) { return 0; }
ACL_API int aclrtIpcMemClose(const char*) { return 0; }
