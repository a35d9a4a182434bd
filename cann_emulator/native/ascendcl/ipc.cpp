// Sharing device memory between processes. The first export of an allocation moves its pages into a memory file, which
// other processes of the user open by way of the exporting process.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <map>

#include "runtime.h"

namespace emu {
namespace {
struct Shared {
    std::mutex mutex;
    std::map<std::string, void*> imported;  // by key
};

Shared& shared() {
    static Shared& instance = *new Shared;
    return instance;
}

int lost(const char* key) {
    return fail(ACL_ERROR_RT_INVALID_HANDLE,
                "EE1001: %s: the process that exported this memory has ended, or has freed it.", key);
}
}  // namespace
}  // namespace emu

using namespace emu;

ACL_API int aclrtIpcMemGetExportKey(void* pointer, size_t size, char* key, size_t length, uint64_t) {
    uintptr_t begin;
    const int fd = share_block(pointer, size, &begin);
    if (fd < 0) return last_error_code();
    const auto offset = reinterpret_cast<uintptr_t>(pointer) - begin;
    const int written = std::snprintf(key, length, "%d:%d:%zu:%zu", getpid(), fd, static_cast<size_t>(offset), size);
    if (written > 0 && static_cast<size_t>(written) < length) return 0;
    return fail(ACL_ERROR_RT_PARAM_INVALID, "EE1001: aclrtIpcMemGetExportKey: %zu bytes are too few for a key.",
                length);
}

ACL_API int aclrtIpcMemImportByKey(void** pointer, const char* key, uint64_t) {
    int device = -1;
    if (const int error = need_device(&device)) return error;
    int pid, file;
    size_t offset, size;
    if (std::sscanf(key, "%d:%d:%zu:%zu", &pid, &file, &offset, &size) != 4) {
        return fail(ACL_ERROR_RT_INVALID_HANDLE, "EE1001: %s is not a key of shared memory.", key);
    }
    const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(file);
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return lost(key);
    const size_t whole = static_cast<size_t>(lseek(fd, 0, SEEK_END));
    void* mapped = offset + size > whole ? MAP_FAILED : mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped == MAP_FAILED) return lost(key);
    std::lock_guard<std::mutex> lock(shared().mutex);
    add_block(mapped, whole, device, Origin::imported, 0);
    shared().imported[key] = mapped;
    *pointer = static_cast<char*>(mapped) + offset;
    return 0;
}

ACL_API int aclrtIpcMemClose(const char* key) {
    std::lock_guard<std::mutex> lock(shared().mutex);
    const auto found = shared().imported.find(key);
    if (found == shared().imported.end()) return 0;  // the exporting side closes its key too; its memory stays
    size_t bytes, charged;
    int device;
    if (take_block(found->second, Origin::imported, &bytes, &device, &charged)) munmap(found->second, bytes);
    shared().imported.erase(found);
    return 0;
}

// Any process of the user may import: there is nothing to allow.
ACL_API int aclrtIpcMemSetImportPid(const char*, int32_t*, size_t) { return 0; }
