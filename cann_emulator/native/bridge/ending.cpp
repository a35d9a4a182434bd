#include "ending.h"

#include <atomic>
#include <thread>

#include "python.h"

namespace emu {
namespace {

// Never destroyed: threads may ask at the process's end.
std::shared_mutex& mutex() {
    static auto& instance = *new std::shared_mutex;
    return instance;
}
std::atomic<bool> g_ended{false};
std::thread::id g_last;  // the thread that ends the interpreter, and may use it to the last; set before g_ended
thread_local int t_inside = 0;

// Whoever the lock is waited for may need the GIL.
template <typename Lock>
void take(Lock& lock) {
    if (lock.try_lock()) return;
    if (!PyGILState_Check()) return lock.lock();
    PyThreadState* const thread = PyEval_SaveThread();
    lock.lock();
    PyEval_RestoreThread(thread);
}

PyObject* end(PyObject*, PyObject*) {
    g_last = std::this_thread::get_id();
    g_ended = true;  // nobody enters any more; those who are inside are waited for
    std::unique_lock lock(mutex(), std::defer_lock);
    take(lock);
    Py_RETURN_NONE;
}

PyMethodDef g_end{"end_of_kernels", end, METH_NOARGS, "Waits for threads that run kernels, and lets no other do so."};

}  // namespace

bool watch_for_the_end() {
    const Owned module(PyImport_ImportModule("atexit"));
    const Owned handler(PyCFunction_New(&g_end, nullptr));
    if (!module || !handler) return false;
    return Owned(PyObject_CallMethod(module.get(), "register", "O", handler.get())) != nullptr;
}

BeforeTheEnd::BeforeTheEnd() : lock_(mutex(), std::defer_lock) {
    if (t_inside++ > 0) {
        open_ = true;  // a kernel that starts another
    } else if (g_ended) {
        open_ = g_last == std::this_thread::get_id();
    } else {
        take(lock_);
        open_ = !g_ended;
    }
}
BeforeTheEnd::~BeforeTheEnd() { --t_inside; }

bool ended() { return g_ended; }

}  // namespace emu
