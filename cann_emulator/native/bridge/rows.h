// Rows: aclnn operators that are one ATen operator, run by boxed dispatch without Python and without the GIL.
#pragma once

#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include <ATen/core/ivalue.h>

#include "launch.h"

namespace emu {

// What one argument of the ATen operator is given.
struct RowArgument {
    std::string keyword;  // ATen's name for it; empty where it is given by position
    int source;           // index of the aclnn argument, or -1
    at::IValue literal;   // the value where source is -1
};

// Registers a row for the operator. Throws c10::Error where it does not fit ATen's schema.
void add_row(int op, const std::string& name, const std::string& overload, const std::vector<RowArgument>& arguments,
             const std::vector<int>& outputs, bool compute_in_fp32, bool cube);
bool has_row(int op);
// What ATen says where arguments do not fit each other, as the operator's first phase does on hardware.
struct BadArguments : std::runtime_error {
    using std::runtime_error::runtime_error;
};
// Runs the row. Throws BadArguments, or what ATen throws where it has no code for a dtype.
void run_row(int op, const Slot* slots);

}  // namespace emu
