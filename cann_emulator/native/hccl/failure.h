// Why a communicator or a call fails, in HCCL's terms: error code, EI number and text.
#pragma once

#include <cstdint>
#include <string>

#include "constants.h"

namespace hccl {

enum class Fault : uint32_t {
    none,
    bad_argument,   // EI0003
    not_supported,  // EI0003
    bad_pointer,    // EI0003
    inconsistent,   // EI0005: ranks called a collective with different arguments
    no_connection,  // EI0006: a rank did not come to the communicator in time
    timeout,        // EI0002: a rank did not come to a collective in time
    lost_rank,      // EI0002: a rank died or left
    bad_device,     // EI0014: two ranks on one device
    host_port,      // EJ0003
    device_port,    // EI0019
    internal,
};

// The aclError with which a stream fails whose collective cannot finish.
constexpr int stream_error = 507048;   // ACL_ERROR_RT_FFTS_PLUS_TIMEOUT

struct Failure {
    Fault fault = Fault::none;
    std::string reason;
};

HcclResult code_of(Fault fault);
// The whole message, laid out as CANN lays out its own: number, process, time, title, reason, remedy.
std::string message_of(const Failure& failure);
// Leaves the message as the calling thread's last error and returns the HCCL code.
HcclResult refuse(Fault fault, const char* format, ...) __attribute__((format(printf, 2, 3)));
HcclResult refuse(const Failure& failure);
std::string format(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace hccl
