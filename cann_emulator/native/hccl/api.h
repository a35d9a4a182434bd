// Shared by the files that define HCCL's C functions.
#pragma once

#include "communicator.h"

#define HCCL_API extern "C" EMU_API

namespace hccl {

// ---- ports.cpp: on request, the clash of two jobs that use the same ports
Failure claim_host_port();
Failure claim_device_port(int physical_device);

// ---- group.cpp
// Hands a checked operation to its communicator, at once or, inside a group, at the group's end.
HcclResult submit(std::shared_ptr<Communicator> communicator, Operation operation);

}  // namespace hccl
