// The end of the interpreter. From then on Python ends any other thread that asks for the GIL, and where C++ is on that
// thread's stack this ends the process with "terminate called without an active exception".
#pragma once

#include <shared_mutex>

namespace emu {

// Has Python tell us of its end, in its atexit handlers. GIL held; false with a Python exception.
bool watch_for_the_end();

// What a thread that comes too late is told.
constexpr const char* kTooLate = " was not run: Python is ending, and this thread did not wait for it before";

// Whether Python has told.
bool ended();

// While it lives the interpreter does not end. False where a thread comes too late: then it leaves Python alone.
class BeforeTheEnd {
public:
    BeforeTheEnd();
    ~BeforeTheEnd();
    BeforeTheEnd(const BeforeTheEnd&) = delete;
    BeforeTheEnd& operator=(const BeforeTheEnd&) = delete;
    explicit operator bool() const { return open_; }

private:
    std::shared_lock<std::shared_mutex> lock_;
    bool open_ = false;
};

}  // namespace emu
