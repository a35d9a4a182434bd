// What the files that call into Python share.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <memory>

#include "core.h"

namespace emu {

// Holds the GIL. Says so, after a while, where a thread does not get it.
class Gil {
public:
    Gil();
    ~Gil();
    Gil(const Gil&) = delete;
    Gil& operator=(const Gil&) = delete;

private:
    PyGILState_STATE state_;
    bool watched_ = false;
};

// A reference that is owned.
struct Decref {
    void operator()(PyObject* object) const { Py_XDECREF(object); }
};
using Owned = std::unique_ptr<PyObject, Decref>;

// The pending exception as an error of the thread, and its code: the exception's own `code` where it is a refusal,
// else an inner error that says where it was raised.
int report_exception(const char* name);

}  // namespace emu
