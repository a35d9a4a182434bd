// CANN_EMULATOR_TRACE=file.json: a Chrome trace (chrome://tracing, Perfetto) of every kernel, copy and collective.
//
// The file is a complete JSON array after every write: each one puts its events over the closing bracket and closes the
// array again, in one system call. So it can be read while the process runs and after the process was killed.
// One file belongs to one process: "%p" in the name stands for the process id; without it the first process takes the
// name (and holds a lock on the file), and each later one puts its id in front of the extension.
#include "trace.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <set>

namespace emu {
namespace {
struct Trace {
    std::mutex mutex;
    int fd = -1;
    off_t end = 0;  // where the closing bracket is
    bool empty = true;
    std::string pending;
    int64_t next_flush = 0;
    pid_t owner = 0;
    std::set<int> rows;  // device and stream of every row that has been given its name
};

Trace& trace() {
    static Trace& instance = *new Trace;
    return instance;
}

const char* setting() {
    static const char* const text = [] {
        const char* value = std::getenv("CANN_EMULATOR_TRACE");
        return value && *value ? value : nullptr;
    }();
    return text;
}

// Opens the file and locks it; -1 where another process has it.
int open_own(const std::string& path) {
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return -1;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        close(fd);
        return -1;
    }
    return ftruncate(fd, 0) == 0 ? fd : -1;
}

std::string with_pid(std::string path) {
    const std::string pid = std::to_string(getpid());
    const size_t extension = path.find_last_of('.');
    const size_t folder = path.find_last_of('/');
    const bool has_extension = extension != std::string::npos && (folder == std::string::npos || extension > folder);
    return path.insert(has_extension ? extension : path.size(), "." + pid);
}

void open_file(Trace& state) {
    std::string path = setting();
    const size_t mark = path.find("%p");
    if (mark != std::string::npos) path.replace(mark, 2, std::to_string(getpid()));
    state.owner = getpid();
    state.fd = open_own(path);
    if (state.fd < 0) state.fd = open_own(with_pid(path));
    if (state.fd < 0)
        std::fprintf(stderr, "cann_emulator: cannot write the trace %s\n", path.c_str());
    else if (pwrite(state.fd, "[\n]\n", 4, 0) == 4)
        state.end = 2;
}

void flush(Trace& state) {
    if (state.fd < 0 || state.pending.empty()) return;
    state.pending += "\n]\n";
    const auto size = static_cast<ssize_t>(state.pending.size());
    if (pwrite(state.fd, state.pending.data(), state.pending.size(), state.end) == size) state.end += size - 3;
    state.pending.clear();
}

void add(Trace& state, const char* format, ...) __attribute__((format(printf, 2, 3)));
void add(Trace& state, const char* format, ...) {
    char line[512];
    va_list args;
    va_start(args, format);
    const int length = std::vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (length <= 0 || length >= static_cast<int>(sizeof line)) return;
    if (!state.empty) state.pending += ",\n";
    state.empty = false;
    state.pending.append(line, static_cast<size_t>(length));
}
}  // namespace

bool trace_wanted() { return setting() != nullptr; }

void trace_add(const char* name, const char* kind, int device, int stream, int64_t start_ns, int64_t end_ns,
               int64_t bytes) {
    constexpr int streams_of_device = 10000;
    auto& state = trace();
    std::lock_guard<std::mutex> lock(state.mutex);
    if (!state.owner) open_file(state);
    if (state.owner != getpid()) return;  // the file belongs to the process this one was forked from
    const int row = device * streams_of_device + stream;
    if (state.rows.insert(row).second) {
        add(state,
            "{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": %d, \"tid\": %d, \"args\": {\"name\": \"device %d "
            "stream %d\"}}",
            getpid(), row, device, stream);
    }
    add(state,
        "{\"name\": \"%s\", \"cat\": \"%s\", \"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f, \"dur\": %.3f, "
        "\"args\": {\"bytes\": %lld}}",
        name, kind, getpid(), row, static_cast<double>(start_ns) / 1e3, static_cast<double>(end_ns - start_ns) / 1e3,
        static_cast<long long>(bytes));
    if (end_ns >= state.next_flush || state.pending.size() > (1u << 20)) {
        flush(state);
        state.next_flush = end_ns + 1000000000;
    }
}

void trace_flush() {
    auto& state = trace();
    std::lock_guard<std::mutex> lock(state.mutex);
    if (state.owner == getpid()) flush(state);
}

}  // namespace emu
