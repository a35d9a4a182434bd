// The Profiler extension: devices' work for jax.profiler, as an XSpace with a plane for each device.
#include "profile.h"

#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "api.h"
#include "device.h"
#include "proto.h"

namespace npu {
namespace {
struct Piece {
    int device;
    std::string line, name;
    int64_t start_ns, end_ns;
};

std::atomic<int> open_traces{0};

struct Pieces {
    std::mutex mutex;
    std::vector<Piece> all;
};
Pieces& pieces() {
    static Pieces& instance = *new Pieces;
    return instance;
}

// ---- the messages of tsl/profiler/protobuf/xplane.proto that are written here
std::string named(int64_t id, const std::string& name) {
    std::string metadata, entry;
    proto::put(metadata, 1, static_cast<uint64_t>(id));
    proto::put(metadata, 2, name);
    proto::put(entry, 1, static_cast<uint64_t>(id));
    proto::put(entry, 2, metadata);
    return entry;
}

std::string plane_of(int device, const std::vector<const Piece*>& work) {
    constexpr uint64_t ps = 1000;  // in a nanosecond
    std::map<std::string, int64_t> names;
    std::map<std::string, std::vector<const Piece*>> lines;
    for (const Piece* piece : work) {
        names.emplace(piece->name, static_cast<int64_t>(names.size()) + 1);
        lines[piece->line].push_back(piece);
    }
    std::string plane;
    proto::put(plane, 1, static_cast<uint64_t>(device) + 1);
    proto::put(plane, 2, "/device:NPU:" + std::to_string(device));
    uint64_t id = 0;
    for (const auto& [line_name, on_line] : lines) {
        int64_t begin = on_line.front()->start_ns;
        for (const Piece* piece : on_line) begin = std::min(begin, piece->start_ns);
        std::string line;
        proto::put(line, 1, ++id);
        proto::put(line, 2, line_name);
        proto::put(line, 3, static_cast<uint64_t>(begin));
        for (const Piece* piece : on_line) {
            std::string event;
            proto::put(event, 1, static_cast<uint64_t>(names[piece->name]));
            proto::put(event, 2, static_cast<uint64_t>(piece->start_ns - begin) * ps);
            proto::put(event, 3, static_cast<uint64_t>(piece->end_ns - piece->start_ns) * ps);
            proto::put(line, 4, event);
        }
        proto::put(plane, 3, line);
    }
    for (const auto& [name, number] : names) proto::put(plane, 4, named(number, name));
    return plane;
}

std::string space_of(const std::vector<Piece>& all) {
    std::map<int, std::vector<const Piece*>> devices;
    for (const Piece& piece : all) devices[piece.device].push_back(&piece);
    std::string space;
    for (const auto& [device, work] : devices) proto::put(space, 1, plane_of(device, work));
    return space;
}
}  // namespace

bool tracing() { return open_traces.load(std::memory_order_relaxed) > 0; }

int64_t wall_clock_ns() {
    using namespace std::chrono;
    return duration_cast<nanoseconds>(system_clock::now().time_since_epoch()).count();
}

void trace(const PJRT_Device& device, const char* line, const std::string& name, int64_t start_ns,
           const Completion::Ptr& done) {
    done->then([id = device.description.id, line = std::string(line), name, start_ns](const Completion::Outcome&) {
        std::lock_guard<std::mutex> lock(pieces().mutex);
        pieces().all.push_back({id, line, name, start_ns, wall_clock_ns()});
    });
}

}  // namespace npu

using namespace npu;

struct PLUGIN_Profiler {
    bool started = false;
    std::string data;  // of the last trace, until it is collected
};
struct PLUGIN_Profiler_Error {
    Failure failure;
};

namespace {

void error_destroy(PLUGIN_Profiler_Error_Destroy_Args* args) { delete args->error; }
void error_message(PLUGIN_Profiler_Error_Message_Args* args) {
    args->message = args->error->failure.message.data();
    args->message_size = args->error->failure.message.size();
}
PLUGIN_Profiler_Error* error_code(PLUGIN_Profiler_Error_GetCode_Args* args) {
    args->code = static_cast<int>(args->error->failure.code);
    return nullptr;
}
PLUGIN_Profiler_Error* create(PLUGIN_Profiler_Create_Args* args) {
    args->profiler = new PLUGIN_Profiler;
    return nullptr;
}
PLUGIN_Profiler_Error* stop(PLUGIN_Profiler_Stop_Args* args) {
    if (!args->profiler->started) return nullptr;
    args->profiler->started = false;
    std::lock_guard<std::mutex> lock(pieces().mutex);
    args->profiler->data = space_of(pieces().all);
    if (--open_traces == 0) pieces().all.clear();
    return nullptr;
}
PLUGIN_Profiler_Error* destroy(PLUGIN_Profiler_Destroy_Args* args) {
    if (args->profiler && args->profiler->started) --open_traces;
    delete args->profiler;
    return nullptr;
}
PLUGIN_Profiler_Error* start(PLUGIN_Profiler_Start_Args* args) {
    if (!args->profiler->started) ++open_traces;
    args->profiler->started = true;
    return nullptr;
}
// Copies into the caller's memory, or gives the profiler's own, which stays until the next trace.
PLUGIN_Profiler_Error* collect(PLUGIN_Profiler_CollectData_Args* args) {
    std::string& data = args->profiler->data;
    auto* own = reinterpret_cast<uint8_t*>(data.data());
    if (args->buffer && args->buffer != own) std::memcpy(args->buffer, own, data.size());
    if (!args->buffer) args->buffer = own;
    args->buffer_size_in_bytes = data.size();
    return nullptr;
}

PLUGIN_Profiler_Api functions = {sizeof(PLUGIN_Profiler_Api),
                                 nullptr,
                                 error_destroy,
                                 error_message,
                                 error_code,
                                 create,
                                 destroy,
                                 start,
                                 stop,
                                 collect};
}  // namespace

namespace npu {
PJRT_Profiler_Extension profiler_extension = {
    {sizeof(PJRT_Profiler_Extension), PJRT_EXTENSION_PROFILER, nullptr}, &functions, 0};
}
