#include "segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <mutex>
#include <random>
#include <set>

namespace hccl {
namespace {
constexpr uint64_t root_magic = 0x4c43434855'4d45ull;   // "EMUHCCL"

// Memory files that this process has made and still holds open for the other ranks.
struct Made {
    std::mutex mutex;
    std::set<std::pair<uint64_t, int>> files;   // key and descriptor
};
Made& made() {
    static auto* instance = new Made;
    return *instance;
}

size_t page_up(size_t bytes) { return (bytes + 4095) & ~size_t{4095}; }

uint64_t this_host() {
    static const uint64_t id = [] {
        std::string boot;
        std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
        return static_cast<uint64_t>(std::hash<std::string>{}(boot));
    }();
    return id;
}

// State letter and start time of a process, from /proc/PID/stat. False where there is no such process.
bool read_stat(int32_t pid, char* state, uint64_t* started) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string text;
    if (!std::getline(file, text)) return false;
    // The fields after the command, which is in parentheses and may hold anything: state is the first, the start time
    // the twentieth.
    const auto end = text.rfind(')');
    if (end == std::string::npos) return false;
    unsigned long long ticks = 0;
    *state = 0;
    std::sscanf(text.c_str() + end + 1,
                " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu", state, &ticks);
    *started = ticks;
    return *state != 0;
}
}  // namespace

Process Process::self() {
    Process process{getpid(), 0};
    char state;
    read_stat(process.pid, &state, &process.started);
    return process;
}

bool Process::alive() const {
    char state;
    uint64_t since;
    return read_stat(pid, &state, &since) && since == started && state != 'Z' && state != 'X';
}

std::string describe(const Call& call) {
    const auto& op = info(call.op);
    if (call.op == Op::none || call.op == Op::barrier || call.op == Op::batch_send_recv) return op.name;
    std::string text = format("%s(count=%llu, dtype=%s", op.name, static_cast<unsigned long long>(call.count),
                              name_of_dtype(call.dtype).c_str());
    if (op.reduces) text += ", op=" + name_of_reduction(call.reduction);
    if (op.has_root) text += ", root=" + std::to_string(call.root);
    if (call.op == Op::send) text += ", destination=" + std::to_string(call.root);
    if (call.op == Op::recv) text += ", source=" + std::to_string(call.root);
    return text + ")";
}

RootId Segment::create() {
    RootId root{};
    root.magic = root_magic;
    root.host = this_host();
    root.owner = Process::self();
    std::random_device random;
    for (auto& word : root.key) word = (static_cast<uint64_t>(random()) << 32) | random();
    root.file = memfd_create("hccl", MFD_CLOEXEC);
    if (root.file < 0) return root;
    if (ftruncate(root.file, page_up(sizeof(Header))) != 0 ||
        pwrite(root.file, root.key, sizeof(root.key), offsetof(Header, key)) != sizeof(root.key)) {
        close(root.file);
        root.file = -1;
        return root;
    }
    std::lock_guard<std::mutex> lock(made().mutex);
    made().files.emplace(root.key[0], root.file);
    return root;
}

void Segment::release(const RootId& root) {
    std::lock_guard<std::mutex> lock(made().mutex);
    if (made().files.erase({root.key[0], root.file})) close(root.file);
}

Segment::~Segment() {
    if (base_) munmap(base_, size_);
}

Failure Segment::attach(const RootId& root, uint32_t ranks) {
    if (root.magic != root_magic) return {Fault::bad_argument, "rootInfo was not made by HcclGetRootInfo."};
    if (root.host != this_host())
        return {Fault::no_connection, "rootInfo was made on another machine. The emulator connects ranks of one machine."};
    const auto path = format("/proc/%d/fd/%d", root.owner.pid, root.file);
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    uint64_t key[2] = {};
    if (file < 0 || pread(file, key, sizeof(key), offsetof(Header, key)) != sizeof(key) ||
        std::memcmp(key, root.key, sizeof(key)) != 0) {
        const int error = errno;
        if (file >= 0) close(file);
        if (!root.owner.alive())
            return {Fault::no_connection,
                    format("the process that called HcclGetRootInfo (PID %d) is gone.", root.owner.pid)};
        return {Fault::no_connection,
                format("the communicator of the process that called HcclGetRootInfo (PID %d) is closed, or the user of "
                       "this process may not open its files (%s).", root.owner.pid, std::strerror(error))};
    }
    ranks_ = ranks;
    rank_offset_ = page_up(sizeof(Header));
    count_offset_ = page_up(rank_offset_ + sizeof(Rank) * ranks);
    channel_offset_ = page_up(count_offset_ + sizeof(uint64_t) * 4 * ranks * ranks);
    slot_offset_ = page_up(channel_offset_ + sizeof(Channel) * ranks * ranks);
    piece_offset_ = slot_offset_ + slot_bytes * 2 * ranks;
    size_ = piece_offset_ + piece_bytes * pieces_in_flight * ranks * ranks;

    // Grows only: under a lock, so that ranks that disagree about the size do not cut each other's memory off.
    flock(file, LOCK_EX);
    struct stat status {};
    const bool sized = fstat(file, &status) == 0 && (static_cast<size_t>(status.st_size) >= size_ ||
                                                     ftruncate(file, static_cast<off_t>(size_)) == 0);
    flock(file, LOCK_UN);
    void* memory = sized ? mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0) : MAP_FAILED;
    const int error = errno;
    close(file);
    if (memory == MAP_FAILED)
        return {Fault::internal, format("cannot map %zu bytes of shared memory: %s.", size_, std::strerror(error))};
    base_ = static_cast<char*>(memory);
    uint32_t agreed = 0;
    if (!header().ranks.compare_exchange_strong(agreed, ranks) && agreed != ranks)
        return {Fault::inconsistent, format("nRanks is %u here and %u on a rank that came earlier.", ranks, agreed)};
    return {};
}

void sleep_on(std::atomic<uint32_t>& word, uint32_t seen, int64_t milliseconds) {
    const timespec time{milliseconds / 1000, milliseconds % 1000 * 1000000};
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen, &time, nullptr, 0);
}

void ring(std::atomic<uint32_t>& word) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace hccl
