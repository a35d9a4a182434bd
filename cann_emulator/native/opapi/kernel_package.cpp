#include "kernel_package.h"

#include <dlfcn.h>

#include <cctype>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

namespace emu {
namespace {

namespace fs = std::filesystem;
constexpr int kInner = 561000;

// The first prefix that a SoC's name has gives its family; a digit after Ascend910B makes it an A2.
struct Family {
    const char* prefix;
    bool then_digit;
    const char* folder;
};
constexpr Family families[] = {
    {"Ascend910B", true, "ascend910b"},  {"Ascend910_93", false, "ascend910_93"}, {"Ascend910", false, "ascend910"},
    {"Ascend310P", false, "ascend310p"}, {"Ascend950", false, "ascend950"},
};

const char* family_of(const std::string& soc) {
    for (const Family& family : families) {
        const size_t length = std::strlen(family.prefix);
        if (soc.compare(0, length, family.prefix) != 0) continue;
        if (family.then_digit && !(soc.size() > length && std::isdigit(static_cast<unsigned char>(soc[length])))) continue;
        return family.folder;
    }
    return "";
}

fs::path operator_packages() {
    if (const char* path = std::getenv("ASCEND_OPP_PATH"); path && *path) return path;
    Dl_info self{};
    dladdr(reinterpret_cast<void*>(&check_kernel_package), &self);
    return fs::path(self.dli_fname).parent_path().parent_path() / "opp";
}

// The folder that is missing, or an empty path.
fs::path missing() {
    const fs::path folder = operator_packages() / "built-in/op_impl/ai_core/tbe/kernel" / family_of(soc_name());
    std::error_code ignored;
    return fs::is_directory(folder, ignored) ? fs::path() : folder;
}

}  // namespace

int check_kernel_package(const Operator& op) {
    static const fs::path folder = missing();
    if (folder.empty()) return 0;
    return fail(kInner,
                "EZ9999: Inner Error! %s has no kernel binary for %s: %s does not exist. Install the kernels package "
                "of this SoC.",
                op.name, soc_name().c_str(), folder.c_str());
}

}  // namespace emu
