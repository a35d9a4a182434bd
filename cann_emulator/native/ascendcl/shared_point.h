// An event's progress in memory that processes share. Internal to libascendcl.so.
#pragma once

#include <sys/types.h>

#include <string>

#include "core.h"

namespace emu {

class SharedPoint : public std::enable_shared_from_this<SharedPoint> {
public:
    static std::shared_ptr<SharedPoint> create();                       // null, with the thread's error set
    static std::shared_ptr<SharedPoint> open(const std::string& name);  // likewise
    ~SharedPoint();

    std::string name() const;                        // by which another process opens it
    void record(const std::vector<FencePtr>& open);  // the event is reached when these are done
    bool reached() const;
    FencePtr fence();  // done when the event, as recorded last, is reached; failed when its process ended before

private:
    struct Page {
        std::atomic<uint64_t> recorded, reached;
    };
    SharedPoint(pid_t owner, int file, Page* page) : owner_(owner), file_(file), page_(page) {}
    static std::shared_ptr<SharedPoint> map(pid_t owner, int file);
    pid_t owner_;
    int file_;
    Page* page_;
};

}  // namespace emu
