// CANN_EMULATOR_HCCL_PORT_CLASH=1: take the ports that HCCL takes on hardware, so that two jobs on a host clash as they do
// there. Without it no port is used and any number of jobs run side by side.
//
// - HcclGetRootInfo listens on the host: HCCL_HOST_SOCKET_PORT_RANGE, else HCCL_IF_BASE_PORT, else 60000.
// - Each communicator listens on its device: HCCL_NPU_SOCKET_PORT_RANGE, else 16666. Devices have network addresses of
//   their own; an abstract socket name with the device's number stands for one.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>

#include "api.h"

namespace hccl {
namespace {

bool wanted() {
    const char* text = std::getenv("CANN_EMULATOR_HCCL_PORT_CLASH");
    return text && *text && *text != '0';
}

// "60000", "60000-60050", "60000,60010-60015" or "auto", which is an empty list: any port.
std::vector<int> parse_ports(const char* text) {
    std::vector<int> ports;
    if (std::strcmp(text, "auto") == 0) return ports;
    while (*text) {
        int first = 0, last = 0, used = 0;
        if (std::sscanf(text, "%d-%d%n", &first, &last, &used) < 2) {
            if (std::sscanf(text, "%d%n", &first, &used) < 1) break;
            last = first;
        }
        for (int port = first; port <= last; ++port) ports.push_back(port);
        text += used;
        if (*text == ',') ++text;
    }
    return ports;
}

template <class Bind> Failure claim(const std::vector<int>& ports, Fault fault, const char* where, const Bind& bind_one) {
    if (ports.empty()) return {};
    for (const int port : ports)
        if (bind_one(port)) return {};
    return {fault, format("%s: port %d%s is in use by another process.", where, ports.front(),
                          ports.size() > 1 ? " and the others of the range" : "")};
}

bool listen_on(int family, const sockaddr* address, socklen_t length) {
    const int socket = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (socket < 0) return true;
    if (bind(socket, address, length) == 0 && listen(socket, 1) == 0) return true;   // held until the process ends
    close(socket);
    return false;
}

std::mutex claims;

}  // namespace

Failure claim_host_port() {
    static bool claimed = false;
    std::lock_guard<std::mutex> lock(claims);
    if (!wanted() || claimed) return {};
    const char* range = std::getenv("HCCL_HOST_SOCKET_PORT_RANGE");
    const char* base = std::getenv("HCCL_IF_BASE_PORT");
    auto failure = claim(parse_ports(range ? range : base ? base : "60000"), Fault::host_port, "host", [](int port) {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(static_cast<uint16_t>(port));
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        return listen_on(AF_INET, reinterpret_cast<sockaddr*>(&address), sizeof(address));
    });
    claimed = failure.fault == Fault::none;
    return failure;
}

Failure claim_device_port(int device) {
    static std::set<int> claimed;
    std::lock_guard<std::mutex> lock(claims);
    if (!wanted() || claimed.count(device)) return {};
    const char* range = std::getenv("HCCL_NPU_SOCKET_PORT_RANGE");
    const auto where = format("device %d", device);
    auto failure = claim(parse_ports(range ? range : "16666"), Fault::device_port, where.c_str(), [&](int port) {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        const int length = std::snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "hccl-npu%d-%d", device, port);
        return listen_on(AF_UNIX, reinterpret_cast<sockaddr*>(&address),
                         static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length));
    });
    if (failure.fault == Fault::none) claimed.insert(device);
    return failure;
}

}  // namespace hccl
