// Counters of launches, bytes and time by name, written to $CANN_EMULATOR_STATS/<pid>.json about once a second while
// something is launched, and when the process ends.
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>

#include "runtime.h"
#include "trace.h"

namespace emu {
namespace {
const char* const kind_names[] = {"kernel", "copy", "collective"};

struct Counter {
    Kind kind;
    std::string name;
    std::atomic<int64_t> launches{0}, bytes{0}, time_ns{0};
    Counter(Kind k, const char* n) : kind(k), name(n) {}
};

struct Counters {
    std::mutex mutex;
    std::map<std::pair<int, std::string>, int> ids;
    std::deque<Counter> all;
    std::vector<Counter*> by_id = std::vector<Counter*>(capacity);  // read without the lock
    std::atomic<int64_t> next_write{0};
    std::string file;  // empty: nobody asked
    pid_t owner = 0;
    static constexpr int capacity = 4096;
};

Counters& counters() {
    static Counters& instance = *new Counters;
    return instance;
}

std::string json_text(const std::string& text) {
    std::string quoted = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') quoted += '\\';
        if (static_cast<unsigned char>(c) >= 0x20) quoted += c;
    }
    return quoted + "\"";
}

std::string as_json() {
    auto& state = counters();
    std::string text =
        "{\"pid\": " + std::to_string(getpid()) + ", \"soc\": " + json_text(soc_name()) + ", \"devices\": {";
    bool first = true;
    for (int device = 0; device < device_count(); ++device) {
        if (!hbm_peak(device)) continue;
        text += std::string(first ? "" : ", ") + "\"" + std::to_string(device) +
                "\": {\"hbm_bytes\": " + std::to_string(hbm_used(device)) +
                ", \"hbm_peak_bytes\": " + std::to_string(hbm_peak(device)) + "}";
        first = false;
    }
    text += "}, \"counters\": [";
    first = true;
    std::lock_guard<std::mutex> lock(state.mutex);
    for (const Counter& counter : state.all) {
        if (!counter.launches) continue;
        text += std::string(first ? "" : ",") + "\n  {\"name\": " + json_text(counter.name) + ", \"kind\": \"" +
                kind_names[static_cast<int>(counter.kind)] + "\", \"launches\": " + std::to_string(counter.launches) +
                ", \"bytes\": " + std::to_string(counter.bytes) + ", \"time_ns\": " + std::to_string(counter.time_ns) +
                "}";
        first = false;
    }
    return text + "]}\n";
}

void make_folders(const std::string& folder) {
    for (size_t at = 1; at != std::string::npos;) {
        at = folder.find('/', at + 1);
        mkdir(folder.substr(0, at).c_str(), 0777);
    }
}

void write_at_exit() {
    auto& state = counters();
    if (state.owner != getpid()) return;  // a forked child has nothing of its own to report
    if (!state.file.empty()) emu_write_stats(state.file.c_str());
    trace_flush();
}
}  // namespace

void start_counters() {
    static const bool started = [] {
        auto& state = counters();
        state.owner = getpid();
        if (const char* folder = std::getenv("CANN_EMULATOR_STATS"); folder && *folder) {
            make_folders(folder);
            state.file = std::string(folder) + "/" + std::to_string(getpid()) + ".json";
        }
        std::atexit(write_at_exit);
        return true;
    }();
    (void)started;
}

int counter_id(Kind kind, const char* name) {
    auto& state = counters();
    std::lock_guard<std::mutex> lock(state.mutex);
    const auto [entry, added] =
        state.ids.try_emplace({static_cast<int>(kind), name}, static_cast<int>(state.all.size()));
    if (added && entry->second < Counters::capacity) {
        state.all.emplace_back(kind, name);
        state.by_id[entry->second] = &state.all.back();
    }
    return entry->second;
}

int64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * int64_t{1000000000} + now.tv_nsec;
}

void record(int id, int device, int stream, int64_t start_ns, int64_t end_ns, int64_t bytes) {
    auto& state = counters();
    if (id < 0 || id >= Counters::capacity) return;
    Counter& counter = *state.by_id[id];
    counter.launches.fetch_add(1, std::memory_order_relaxed);
    counter.bytes.fetch_add(bytes, std::memory_order_relaxed);
    counter.time_ns.fetch_add(end_ns - start_ns, std::memory_order_relaxed);
    if (trace_wanted())
        trace_add(counter.name.c_str(), kind_names[static_cast<int>(counter.kind)], device, stream, start_ns, end_ns,
                  bytes);
    int64_t next = state.next_write.load(std::memory_order_relaxed);
    if (end_ns >= next && !state.file.empty() && state.next_write.compare_exchange_strong(next, end_ns + 1000000000) &&
        state.owner == getpid()) {
        emu_write_stats(state.file.c_str());
    }
}

}  // namespace emu

// Writes the counters to a file now; whoever reads it sees the old or the new one, never half of it.
extern "C" EMU_API int emu_write_stats(const char* path) {
    static std::mutex writing;
    std::lock_guard<std::mutex> lock(writing);
    const std::string text = emu::as_json();
    const std::string temporary = std::string(path) + ".new";
    FILE* file = std::fopen(temporary.c_str(), "w");
    if (!file) return emu::fail(ACL_ERROR_INVALID_PARAM, "cannot write %s.", temporary.c_str());
    const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
    if (std::fclose(file) != 0 || !written || std::rename(temporary.c_str(), path) != 0) {
        return emu::fail(ACL_ERROR_INTERNAL_ERROR, "cannot write %s.", path);
    }
    return 0;
}

// Launches so far of one operator, or of all operators (null): what a tool asks before and after a call to learn
// whether the call reached a kernel.
extern "C" EMU_API int64_t emu_kernel_launches(const char* name) {
    auto& state = emu::counters();
    std::lock_guard<std::mutex> lock(state.mutex);
    int64_t launches = 0;
    for (const emu::Counter& counter : state.all) {
        if (counter.kind == emu::Kind::kernel && (!name || counter.name == name)) launches += counter.launches;
    }
    return launches;
}
