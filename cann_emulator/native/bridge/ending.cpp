#include "ending.h"

#include <atomic>

#include "python.h"

namespace emu {
namespace {

// Never destroyed: threads may ask at the process's end.
std::shared_mutex& mutex() {
    static auto& instance = *new std::shared_mutex;
    return instance;
}
std::atomic<bool> g_ended{false};

// Whoever the lock is waited for may need the GIL.
template <typename Lock>
void take(Lock& lock) {
    if (!PyGILState_Check()) return lock.lock();
    PyThreadState* const thread = PyEval_SaveThread();
    lock.lock();
    PyEval_RestoreThread(thread);
}

PyObject* end(PyObject*, PyObject*) {
    std::unique_lock lock(mutex(), std::defer_lock);
    take(lock);
    g_ended = true;
    Py_RETURN_NONE;
}

PyMethodDef g_end{"end_of_kernels", end, METH_NOARGS, "Waits for threads that release models, and lets no other do so."};

}  // namespace

bool watch_for_the_end() {
    const Owned module(PyImport_ImportModule("atexit"));
    const Owned handler(PyCFunction_New(&g_end, nullptr));
    if (!module || !handler) return false;
    return Owned(PyObject_CallMethod(module.get(), "register", "O", handler.get())) != nullptr;
}

BeforeTheEnd::BeforeTheEnd() : lock_(mutex(), std::defer_lock) {
    if (!g_ended) take(lock_);  // Python's functions may be gone otherwise
}
BeforeTheEnd::operator bool() const { return !g_ended; }

}  // namespace emu
