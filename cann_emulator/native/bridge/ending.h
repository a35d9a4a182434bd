// The end of the interpreter. From then on Python ends any other thread that asks for the GIL, and where C++ is on that
// thread's stack this ends the process with "terminate called without an active exception".
#pragma once

#include <shared_mutex>

namespace emu {

// Has Python tell us of its end, in its atexit handlers. GIL held; false with a Python exception.
bool watch_for_the_end();

// While it lives the interpreter does not end, unless it already has: then what holds Python objects is left alone.
class BeforeTheEnd {
public:
    BeforeTheEnd();
    explicit operator bool() const;

private:
    std::shared_lock<std::shared_mutex> lock_;
};

}  // namespace emu
