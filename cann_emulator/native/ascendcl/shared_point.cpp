#include "shared_point.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "runtime.h"

namespace emu {

std::shared_ptr<SharedPoint> SharedPoint::map(pid_t owner, int file) {
    void* page = file < 0 ? MAP_FAILED : mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) return std::shared_ptr<SharedPoint>(new SharedPoint(owner, file, static_cast<Page*>(page)));
    if (file >= 0) close(file);
    fail(ACL_ERROR_RT_INVALID_HANDLE, "EE1001: the event's process, %d, has ended, or has destroyed the event.", owner);
    return nullptr;
}

std::shared_ptr<SharedPoint> SharedPoint::create() {
    int file = memfd_create("cann-emulator-event", MFD_CLOEXEC);
    if (file >= 0 && ftruncate(file, sizeof(Page)) != 0) {
        close(file);
        file = -1;
    }
    return map(getpid(), file);
}

std::shared_ptr<SharedPoint> SharedPoint::open(const std::string& name) {
    int owner = -1, number = -1;
    std::sscanf(name.c_str(), "%d:%d", &owner, &number);
    const std::string path = "/proc/" + std::to_string(owner) + "/fd/" + std::to_string(number);
    return map(owner, ::open(path.c_str(), O_RDWR | O_CLOEXEC));
}

SharedPoint::~SharedPoint() {
    munmap(page_, sizeof(Page));
    close(file_);
}

std::string SharedPoint::name() const { return std::to_string(owner_) + ":" + std::to_string(file_); }

void SharedPoint::record(const std::vector<FencePtr>& open) {
    const uint64_t turn = ++page_->recorded;
    if (open.empty()) {
        page_->reached = turn;
        return;
    }
    std::thread([self = shared_from_this(), open, turn] {
        for (const FencePtr& fence : open) fence->wait();
        uint64_t now = self->page_->reached;
        while (now < turn && !self->page_->reached.compare_exchange_weak(now, turn)) {
        }
    }).detach();
}

bool SharedPoint::reached() const { return page_->reached >= page_->recorded; }

FencePtr SharedPoint::fence() {
    auto fence = std::make_shared<Fence>();
    std::thread([self = shared_from_this(), fence, turn = page_->recorded.load()] {
        while (self->page_->reached < turn) {
            if (kill(self->owner_, 0) != 0) {
                fence->complete(ACL_ERROR_RT_IPC_ERROR, "EE9999: process " + std::to_string(self->owner_) +
                                                            " ended before its event was reached.");
                return;
            }
            std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
        fence->complete(0);
    }).detach();
    return fence;
}

}  // namespace emu
