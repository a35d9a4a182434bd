// CANN's compiled operators are a package of their own for each family of SoCs.
#pragma once

#include "launch.h"

namespace emu {

// Refuses (561000) where the home has no operators for the SoC, as CANN does where that package is not installed.
int check_kernel_package(const Operator& op);

}  // namespace emu
