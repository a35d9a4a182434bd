#include "worker.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "callback.h"
#include "failure.h"

extern char** environ;

namespace npu {
namespace {
struct Broken : std::runtime_error {
    using std::runtime_error::runtime_error;
};

void write_all(int socket, std::string_view data) {
    while (!data.empty()) {
        const ssize_t sent = send(socket, data.data(), data.size(), MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) throw Broken(std::strerror(errno));
        data.remove_prefix(static_cast<size_t>(sent));
    }
}

void read_all(int socket, char* data, size_t size) {
    while (size > 0) {
        const ssize_t got = recv(socket, data, size, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) throw Broken(got < 0 ? std::strerror(errno) : "end of data");
        data += got;
        size -= static_cast<size_t>(got);
    }
}

std::string read_text(int socket, size_t size) {
    std::string text(size, '\0');
    read_all(socket, text.data(), size);
    return text;
}

PJRT_Error_Code code_named(const std::string& name) {
    static const std::map<std::string, PJRT_Error_Code> codes = {{"INVALID_ARGUMENT", PJRT_INVALID_ARGUMENT},
                                                                 {"UNIMPLEMENTED", PJRT_UNIMPLEMENTED},
                                                                 {"RESOURCE_EXHAUSTED", PJRT_RESOURCE_EXHAUSTED},
                                                                 {"FAILED_PRECONDITION", PJRT_FAILED_PRECONDITION},
                                                                 {"NOT_FOUND", PJRT_NOT_FOUND},
                                                                 {"UNAVAILABLE", PJRT_UNAVAILABLE}};
    const auto found = codes.find(name);
    return found == codes.end() ? PJRT_INTERNAL : found->second;
}
}  // namespace

namespace {
std::mutex interpreter_mutex;
std::string named_interpreter = "python3";

// The Python that runs the compiler: XLA_NPU_PYTHON, else the one whose package loaded the plugin.
std::string interpreter() {
    if (const char* python = std::getenv("XLA_NPU_PYTHON")) return python;
    std::lock_guard<std::mutex> lock(interpreter_mutex);
    return named_interpreter;
}

// Whether a child process has ended; it stays to be reaped.
bool ended(pid_t process) {
    siginfo_t info{};
    return process >= 0 && waitid(P_PID, process, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == process;
}
}  // namespace

Worker::Worker(std::string python, std::string precision)
    : python_(std::move(python)), precision_(std::move(precision)) {}
Worker::~Worker() { stop(); }

void Worker::start() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        fail(PJRT_INTERNAL, "The compiler was not started: socketpair: %s", std::strerror(errno));
    }
    constexpr int wanted = 3;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    // dup2 clears close-on-exec, except where both ends are the same.
    const int theirs = ends[1] == wanted ? fcntl(ends[1], F_DUPFD_CLOEXEC, wanted + 1) : ends[1];
    posix_spawn_file_actions_adddup2(&actions, theirs, wanted);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    // Its own process group: Ctrl-C stops the program, and the closed socket stops the compiler.
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setpgroup(&attributes, 0);
    const std::string setting = "--" + precision_;
    const char* arguments[] = {python_.c_str(), "-m", "xla_npu.compiler",
                               "--fd",          "3",  precision_.empty() ? nullptr : setting.c_str(),
                               nullptr};
    pid_t process = -1;
    const int error =
        posix_spawnp(&process, python_.c_str(), &actions, &attributes, const_cast<char**>(arguments), environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (theirs != ends[1]) close(theirs);
    if (error) {
        close(ends[0]);
        fail(PJRT_INTERNAL, "The compiler was not started: %s: %s (XLA_NPU_PYTHON names the interpreter)",
             python_.c_str(), std::strerror(error));
    }
    socket_ = ends[0];
    process_ = process;
}

std::string Worker::stop() {
    if (process_ < 0) return "not running";
    close(socket_);
    int status = 0;
    // A compiler that was closed ends at once; one that hangs is killed.
    for (int i = 0; i < 200 && waitpid(process_, &status, WNOHANG) == 0; ++i) {
        if (i == 100) kill(process_, SIGKILL);
        usleep(10000);
    }
    socket_ = process_ = -1;
    answered_ = false;
    if (WIFSIGNALED(status))
        return std::string("killed by signal ") + std::to_string(WTERMSIG(status)) + " (" +
               strsignal(WTERMSIG(status)) + ")";
    return "exit code " + std::to_string(WEXITSTATUS(status));
}

Answer Worker::ask(const std::string& header, std::string_view code, std::string_view options) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (ended(process_)) stop();  // between two programs: nobody's fault
    if (process_ < 0) start();
    const uint64_t payload = code.size() + options.size();
    uint32_t frame[3] = {static_cast<uint32_t>(header.size()), static_cast<uint32_t>(payload),
                         static_cast<uint32_t>(payload >> 32)};
    try {
        write_all(socket_, {reinterpret_cast<const char*>(frame), sizeof frame});
        write_all(socket_, header);
        write_all(socket_, code);
        write_all(socket_, options);
        read_all(socket_, reinterpret_cast<char*>(frame), sizeof frame);
        Answer answer;
        answer.text = read_text(socket_, frame[0]);
        answer.payload = read_text(socket_, frame[1] | static_cast<uint64_t>(frame[2]) << 32);
        answer.header = Json::parse(answer.text);
        answered_ = true;
        return answer;
    } catch (const Broken&) {
        const bool ran = answered_;
        const std::string end = stop();
        if (!ran && end.rfind("exit", 0) == 0) {
            fail(PJRT_INTERNAL,
                 "The compiler (%s -m xla_npu.compiler) ended before it answered: %s. What it wrote is on the error "
                 "output. XLA_NPU_PYTHON names the Python that xla_npu is installed in",
                 python_.c_str(), end.c_str());
        }
        fail(PJRT_INTERNAL,
             "The compiler process died while it compiled this program: %s. What it wrote is on the error output; the "
             "next program gets a new process. Set XLA_NPU_DUMP to a folder to keep the program",
             end.c_str());
    }
}

std::shared_ptr<Worker> Workers::worker(const std::string& precision) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& found = workers_[precision];
    if (!found) found = std::make_shared<Worker>(interpreter(), precision);
    return found;
}

void Workers::stop() {
    std::map<std::string, std::shared_ptr<Worker>> ended;  // outside of the lock
    std::lock_guard<std::mutex> lock(mutex_);
    ended.swap(workers_);
}

Answer Workers::ask(const char* what, const Source& source, const std::string& soc, int devices) {
    std::string targets;
    for (const std::string& name : host_targets()) targets += (targets.empty() ? "" : ", ") + json_quote(name);
    const std::string header = "{\"op\": " + json_quote(what) + ", \"format\": " + json_quote(source.format) +
                               ", \"code_size\": " + std::to_string(source.code.size()) +
                               ", \"options_size\": " + std::to_string(source.options.size()) +
                               ", \"soc\": " + json_quote(soc) + ", \"device_count\": " + std::to_string(devices) +
                               ", \"default_memory\": \"device\", \"host_targets\": [" + targets + "]}";
    std::string precision;  // the compiler asks for another process where GE must be set up differently
    for (;;) {
        Answer answer = worker(precision)->ask(header, source.code, source.options);
        if (answer.header["ok"].truth(false)) return answer;
        const std::string retry = answer.header["retry_precision"].text("");
        if (retry.empty() || retry == precision) {
            throw Failure(code_named(answer.header["code"].text("INTERNAL")),
                          answer.header["message"].text("the compiler gave no reason"));
        }
        precision = retry;
    }
}

}  // namespace npu

// Called once by the Python package.
extern "C" __attribute__((visibility("default"))) void npu_set_interpreter(const char* python) {
    std::lock_guard<std::mutex> lock(npu::interpreter_mutex);
    npu::named_interpreter = python;
}
