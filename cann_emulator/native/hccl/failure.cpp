#include "failure.h"

#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <ctime>

#include "core.h"

namespace hccl {
namespace {
struct FaultInfo {
    Fault fault;
    HcclResult code;
    const char* number;
    const char* title;
    const char* remedy;
};
constexpr FaultInfo faults[] = {
    {Fault::bad_argument, HCCL_E_PARA, "EI0003", "Invalid argument of a collective communication function.",
     "Correct the argument."},
    {Fault::not_supported, HCCL_E_NOT_SUPPORT, "EI0003", "Invalid argument of a collective communication function.",
     "Use a supported data type or reduction."},
    {Fault::bad_pointer, HCCL_E_PTR, "EI0003", "Invalid argument of a collective communication function.",
     "Pass memory of the device that the communicator was created on."},
    {Fault::inconsistent, HCCL_E_PARA, "EI0005",
     "The arguments for collective communication are inconsistent between ranks.",
     "Make every rank call the same operators in the same order, with the same counts, data types, reductions and "
     "roots."},
    {Fault::no_connection, HCCL_E_TIMEOUT, "EI0006", "Getting socket times out.",
     "Look for an earlier error on the ranks named here, check that the job started all of them, or raise "
     "HCCL_CONNECT_TIMEOUT."},
    {Fault::timeout, HCCL_E_TIMEOUT, "EI0002", "The wait execution of the Notify register times out.",
     "Look for an earlier error or a long pause on the ranks named here, or raise HCCL_EXEC_TIMEOUT."},
    {Fault::lost_rank, HCCL_E_REMOTE, "EI0002", "The wait execution of the Notify register times out.",
     "Look for the first error on the ranks named here; the other ranks only wait for them."},
    {Fault::bad_device, HCCL_E_PARA, "EI0014", "The device of a rank is invalid.",
     "Give each rank a device of its own, for example torch.npu.set_device(LOCAL_RANK), and start no more ranks than "
     "there are devices (CANN_EMULATOR_DEVICES)."},
    {Fault::host_port, HCCL_E_TCP_CONNECT, "EJ0003",
     "Failed to bind the IP port. Reason: The IP address and port have been bound already.",
     "Give each job on the host ports of its own: HCCL_IF_BASE_PORT or HCCL_HOST_SOCKET_PORT_RANGE."},
    {Fault::device_port, HCCL_E_UNAVAIL, "EI0019", "Communication_Error_Bind_IP_Port",
     "Give each job on the device a port of its own: HCCL_NPU_SOCKET_PORT_RANGE."},
    {Fault::internal, HCCL_E_INTERNAL, "EI9999", "Inner Error!", "Report it with this message."},
};

const FaultInfo& find(Fault fault) {
    for (const auto& entry : faults)
        if (entry.fault == fault) return entry;
    return faults[std::size(faults) - 1];
}

std::string timestamp() {
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    tm local;
    localtime_r(&now.tv_sec, &local);
    char date[32];
    std::strftime(date, sizeof(date), "%Y-%m-%d-%H:%M:%S", &local);
    return format("%s.%03ld.%03ld", date, now.tv_nsec / 1000000, now.tv_nsec / 1000 % 1000);
}

std::string print(const char* text, va_list args) {
    va_list again;
    va_copy(again, args);
    std::string result(std::vsnprintf(nullptr, 0, text, again), '\0');
    va_end(again);
    std::vsnprintf(result.data(), result.size() + 1, text, args);
    return result;
}
}  // namespace

std::string format(const char* text, ...) {
    va_list args;
    va_start(args, text);
    auto result = print(text, args);
    va_end(args);
    return result;
}

HcclResult code_of(Fault fault) { return fault == Fault::none ? HCCL_SUCCESS : find(fault).code; }

std::string message_of(const Failure& failure) {
    const auto& entry = find(failure.fault);
    return format("%s: [PID: %d] %s %s Reason: %s\n        Solution: %s", entry.number, getpid(), timestamp().c_str(),
                  entry.title, failure.reason.c_str(), entry.remedy);
}

HcclResult refuse(const Failure& failure) {
    const auto code = code_of(failure.fault);
    emu::fail_text(code, message_of(failure));
    return code;
}

HcclResult refuse(Fault fault, const char* text, ...) {
    va_list args;
    va_start(args, text);
    Failure failure{fault, print(text, args)};
    va_end(args);
    return refuse(failure);
}

}  // namespace hccl
