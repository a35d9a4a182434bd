// The systems-on-chip that can be emulated: CANN_EMULATOR_SOC names one.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "runtime.h"

namespace emu {
namespace {
constexpr int64_t MiB = 1 << 20, KiB = 1 << 10;
// name, cube cores, vector cores, L2 bytes, unified buffer bytes of a vector core, architecture number
constexpr Soc socs[] = {
    {"Ascend910A", 32, 32, 32 * MiB, 256 * KiB, 1001},
    {"Ascend910B", 32, 32, 32 * MiB, 256 * KiB, 1001},
    {"Ascend910ProA", 32, 32, 32 * MiB, 256 * KiB, 1001},
    {"Ascend910ProB", 30, 30, 32 * MiB, 256 * KiB, 1001},
    {"Ascend910PremiumA", 32, 32, 32 * MiB, 256 * KiB, 1001},
    {"Ascend310P1", 10, 8, 16 * MiB, 256 * KiB, 2002},
    {"Ascend310P3", 8, 7, 16 * MiB, 256 * KiB, 2002},
    {"Ascend910B1", 24, 48, 192 * MiB, 192 * KiB, 2201},
    {"Ascend910B2", 24, 48, 192 * MiB, 192 * KiB, 2201},
    {"Ascend910B2C", 24, 48, 192 * MiB, 192 * KiB, 2201},
    {"Ascend910B3", 20, 40, 192 * MiB, 192 * KiB, 2201},
    {"Ascend910B4", 20, 40, 96 * MiB, 192 * KiB, 2201},
    {"Ascend910B4-1", 20, 40, 168 * MiB, 192 * KiB, 2201},
    {"Ascend910_9391", 24, 48, 192 * MiB, 192 * KiB, 2201},
    {"Ascend910_9392", 24, 48, 192 * MiB, 192 * KiB, 2201},
    {"Ascend910_9381", 24, 48, 192 * MiB, 192 * KiB, 2201},
    {"Ascend910_9382", 24, 48, 192 * MiB, 192 * KiB, 2201},
    {"Ascend910_9372", 20, 40, 192 * MiB, 192 * KiB, 2201},
    {"Ascend910_9362", 20, 40, 192 * MiB, 192 * KiB, 2201},
    {"Ascend950DT_9591", 32, 64, 128 * MiB, 248 * KiB, 3510},
    {"Ascend950DT_9581", 32, 64, 128 * MiB, 248 * KiB, 3510},
    {"Ascend950PR_9599", 32, 64, 128 * MiB, 248 * KiB, 3510},
    {"Ascend950PR_9589", 32, 64, 128 * MiB, 248 * KiB, 3510},
    {"Ascend950PR_9579", 28, 56, 128 * MiB, 248 * KiB, 3510},
};
constexpr const char* default_soc = "Ascend910_9391";

const Soc* find_soc(const char* name) {
    const auto found = std::find_if(std::begin(socs), std::end(socs),
                                    [name](const Soc& soc) { return std::strcmp(soc.name, name) == 0; });
    return found == std::end(socs) ? nullptr : found;
}
}  // namespace

const Soc* wanted_soc() {
    static const Soc* const chosen = [] {
        const char* name = std::getenv("CANN_EMULATOR_SOC");
        return find_soc(name && *name ? name : default_soc);
    }();
    return chosen;
}

std::string soc_names() {
    std::string names;
    for (const Soc& soc : socs) names += (names.empty() ? "" : ", ") + std::string(soc.name);
    return names;
}

const Soc& soc() {
    static const Soc& chosen = wanted_soc() ? *wanted_soc() : *find_soc(default_soc);
    return chosen;
}

const std::string& soc_name() {
    static const std::string name = soc().name;
    return name;
}

}  // namespace emu

ACL_API const char* aclrtGetSocName() { return emu::wanted_soc() ? emu::soc().name : nullptr; }
