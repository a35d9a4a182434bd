// Lets torch_npu load next to a CUDA build of torch.
//
// Both register options of the device memory allocator under the same names in one table of libc10, which throws on the
// second registration while libtorch_npu.so is being loaded: the process would abort. CANN's libraries are loaded
// after libc10 (and after CUDA's registration) and before libtorch_npu's static initialisers, so a constructor here can
// take those names out of the table; torch_npu then puts them back. In a torch without CUDA they are absent and
// nothing is done.
#include <dlfcn.h>

#include <unordered_set>

#include "runtime.h"

namespace emu {

using Keys = std::unordered_set<std::string>;

// The options that both torch 2.14's CUDA allocator and torch_npu 2.14's define.
static const char* const shared_options[] = {"per_process_memory_fraction", "pinned_reserve_segment_size_mb"};

static int remove_shared_options(Keys& keys) {
    int removed = 0;
    for (const char* option : shared_options) removed += static_cast<int>(keys.erase(option));
    return removed;
}

}  // namespace emu

// For tests: how many of `names` would be taken out.
extern "C" EMU_API int emu_count_shared_options(const char* const* names, int count) {
    emu::Keys keys(names, names + count);
    return emu::remove_shared_options(keys);
}

// Also called when libacl_op_compiler.so is loaded: a process may have loaded this library long before torch.
extern "C" EMU_API void emu_coexist() {
    void* c10 = dlopen("libc10.so", RTLD_NOW | RTLD_NOLOAD);
    if (!c10) return;
    const auto keys = reinterpret_cast<emu::Keys& (*)()>(
        dlsym(c10, "_ZN3c1016CachingAllocator26AcceleratorAllocatorConfig14getMutableKeysB5cxx11Ev"));
    if (keys) emu::remove_shared_options(keys());
    dlclose(c10);
}

__attribute__((constructor)) static void coexist_on_load() { emu_coexist(); }
