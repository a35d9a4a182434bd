// Kernel functions: Python code that is called with the operator's arguments, and the loading of rows and functions.
#include <Python.h>

#include <torch/csrc/autograd/python_variable.h>

#include <time.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "ending.h"
#include "models.h"
#include "python.h"
#include "rows.h"
#include "state.h"
#include "values.h"

namespace emu {
namespace {

constexpr int kParamInvalid = 161002;  // ACLNN_ERR_PARAM_INVALID
// Told apart from what the operator's own documentation refuses: here the fault may also be the row's.
constexpr const char* kFromRow = " (arguments of a table row)";
constexpr int kInner = 561000;  // ACLNN_ERR_INNER: a kernel failed in a way that is not the caller's mistake
constexpr int64_t kPatienceNs = 8'000'000'000;  // said before 10 s are over

// By operator: the Python function, or null. Written while the bridge loads.
std::vector<PyObject*> g_functions;

// The kernel function that is watched: since when its thread wants or has the GIL (0: none is), and which thread it is.
std::atomic<int64_t> g_watched_since{0};
std::atomic<int> g_watched_thread{0};

// The processor time that a thread of this process has used, in ns.
int64_t thread_time_ns(int thread) {
    timespec used{};
    clock_gettime(static_cast<clockid_t>((~static_cast<unsigned>(thread) << 3) | 6), &used);  // as pthread_getcpuclockid
    return used.tv_sec * int64_t{1'000'000'000} + used.tv_nsec;
}

// Says so, once, when a kernel does not get the GIL: the program would hang without a word. It may be refused the GIL
// at its start, or in the middle, after a torch operator that gave it up; both times its thread does next to nothing.
void watch_for_starvation() {
    int64_t seen_since = 0, seen_at = 0, seen_time = 0;
    for (;;) {
        std::this_thread::sleep_for(std::chrono::seconds(1));
        const int64_t since = g_watched_since.load(std::memory_order_relaxed);
        if (since == 0) continue;
        const int64_t used = thread_time_ns(g_watched_thread.load(std::memory_order_relaxed));
        if (since != seen_since) {
            seen_since = since, seen_at = now_ns(), seen_time = used;
            continue;
        }
        const bool idle = used - seen_time < (now_ns() - seen_at) / 4;
        if (now_ns() - since < kPatienceNs || !idle) continue;
        std::fprintf(stderr,
                     "cann_emulator: a kernel has waited 8 s for Python's GIL. Cause: torch_npu's dispatch thread "
                     "(TASK_QUEUE_ENABLE=1, its default) launches kernels while the thread that waits for them holds the "
                     "GIL. Cure: set TASK_QUEUE_ENABLE=0 (`cann-emulator run` and set_env.sh do).\n");
        std::fflush(stderr);
        return;
    }
}

}  // namespace

Gil::Gil() {
    if (!PyGILState_Check()) {
        int64_t nobody = 0;
        watched_ = g_watched_since.compare_exchange_strong(nobody, now_ns(), std::memory_order_relaxed);
        thread_local const int thread = gettid();
        if (watched_) g_watched_thread.store(thread, std::memory_order_relaxed);
    }
    state_ = PyGILState_Ensure();
}

Gil::~Gil() {
    PyGILState_Release(state_);
    if (watched_) g_watched_since.store(0, std::memory_order_relaxed);
}

namespace {

PyObject* none() {
    Py_INCREF(Py_None);
    return Py_None;
}

PyObject* tensor_object(const aclTensor* tensor) { return tensor ? THPVariable_Wrap(to_tensor(tensor)) : none(); }

PyObject* scalar_object(const aclScalar* scalar) {
    if (!scalar) return none();
    const at::Scalar value = to_scalar(*scalar);
    if (value.isBoolean()) return PyBool_FromLong(value.toBool());
    if (value.isComplex()) {
        const auto number = value.toComplexDouble();
        return PyComplex_FromDoubles(number.real(), number.imag());
    }
    return value.isFloatingPoint() ? PyFloat_FromDouble(value.toDouble()) : PyLong_FromLongLong(value.toLong());
}

template <typename Values, typename Make>
PyObject* list_object(const Values& values, Make make) {
    PyObject* list = PyList_New(static_cast<Py_ssize_t>(values.size()));
    for (size_t i = 0; i < values.size(); ++i) PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), make(values[i]));
    return list;
}

PyObject* argument_object(ArgKind kind, Slot bits) {
    switch (kind) {
        case ArgKind::tensor: return tensor_object(object<aclTensor>(bits));
        case ArgKind::scalar: return scalar_object(object<aclScalar>(bits));
        case ArgKind::integer: return PyLong_FromLongLong(static_cast<int64_t>(bits));
        case ArgKind::boolean: return PyBool_FromLong(static_cast<long>(bits & 1));
        case ArgKind::real: return PyFloat_FromDouble(real(bits));
        case ArgKind::pointer: return PyLong_FromUnsignedLongLong(bits);
        default: break;
    }
    if (!bits) return none();
    switch (kind) {
        case ArgKind::tensor_list: return list_object(object<aclTensorList>(bits)->tensors, tensor_object);
        case ArgKind::scalar_list: return list_object(object<aclScalarList>(bits)->scalars, scalar_object);
        case ArgKind::int_array: return list_object(object<aclIntArray>(bits)->values, PyLong_FromLongLong);
        case ArgKind::bool_array: return list_object(object<aclBoolArray>(bits)->values, [](long v) { return PyBool_FromLong(v); });
        case ArgKind::float_array: return list_object(object<aclFloatArray>(bits)->values, [](double v) { return PyFloat_FromDouble(v); });
        default: return PyUnicode_FromString(object<const char>(bits));
    }
}

std::string text_of(PyObject* object) {
    const Owned text(PyObject_Str(object));
    const char* bytes = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
    PyErr_Clear();
    return bytes ? bytes : "?";
}

}  // namespace

int report_exception(const char* name) {
    PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    const Owned owned_type(type), owned_value(value), owned_trace(trace);
    const Owned code(PyObject_GetAttrString(value, "code"));
    if (code && PyLong_Check(code.get())) {
        return fail_text(static_cast<int>(PyLong_AsLong(code.get())), std::string(name) + ": " + text_of(value));
    }
    PyErr_Clear();
    std::string where;  // the innermost frame's file, line and function
    for (const auto* entry = reinterpret_cast<const PyTracebackObject*>(trace); entry; entry = entry->tb_next) {
        const Owned code_of(reinterpret_cast<PyObject*>(PyFrame_GetCode(entry->tb_frame)));
        auto* source = reinterpret_cast<PyCodeObject*>(code_of.get());
        const int line = PyCode_Addr2Line(source, entry->tb_lasti);  // tb_lineno is -1 until Python code asks for it
        where = text_of(source->co_filename) + ":" + std::to_string(line) + " in " + text_of(source->co_name);
    }
    PyErr_Clear();
    return fail_text(kInner, std::string(name) + ": the emulator's kernel failed with " +
                                 reinterpret_cast<PyTypeObject*>(type)->tp_name + ": " + text_of(value) + " (" + where +
                                 ")");
}

namespace {

bool set_shape(aclTensor* tensor, PyObject* shape) {
    const Owned items(PySequence_Fast(shape, "the kernel of an operator with dynamic outputs must return their shapes"));
    if (!items) return false;
    tensor->rank = static_cast<int32_t>(PySequence_Fast_GET_SIZE(items.get()));
    int64_t dense = 1;
    for (int i = tensor->rank - 1; i >= 0; --i) {
        tensor->dims[i] = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(items.get(), i));
        tensor->strides[i] = dense;
        dense *= tensor->dims[i];
    }
    return !PyErr_Occurred();
}

// Writes the returned shape, or shapes, into the operator's dynamic outputs.
bool write_back(const Operator& op, const Slot* slots, PyObject* returned) {
    std::vector<aclTensor*> outputs;
    for (int arg = 0; op.kinds[arg]; ++arg) {
        if (op.dynamic_outputs[arg] == '1') outputs.push_back(object<aclTensor>(slots[arg]));
    }
    if (outputs.empty()) return true;
    if (outputs.size() == 1) return set_shape(outputs[0], returned);
    const Owned shapes(PySequence_Fast(returned, "the kernel must return one shape for each dynamic output"));
    if (!shapes) return false;
    if (static_cast<size_t>(PySequence_Fast_GET_SIZE(shapes.get())) != outputs.size()) {
        PyErr_Format(PyExc_ValueError, "the kernel returned %zd shapes for %zu dynamic outputs",
                     PySequence_Fast_GET_SIZE(shapes.get()), outputs.size());
        return false;
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
        PyObject* shape = PySequence_Fast_GET_ITEM(shapes.get(), static_cast<Py_ssize_t>(i));
        if (outputs[i] && shape != Py_None && !set_shape(outputs[i], shape)) return false;
    }
    return true;
}

int run_function(const Operator& op, PyObject* function, const Slot* slots) {
    const BeforeTheEnd python;
    if (!python) return fail_text(kInner, op.name + std::string(kTooLate));
    const Gil gil;
    const PlainTorch plain;
    const auto count = static_cast<Py_ssize_t>(std::strlen(op.kinds));
    const Owned arguments(PyTuple_New(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
        PyObject* value = argument_object(static_cast<ArgKind>(op.kinds[i]), slots[i]);
        if (!value) return report_exception(op.name);
        PyTuple_SET_ITEM(arguments.get(), i, value);
    }
    const Owned returned(PyObject_CallObject(function, arguments.get()));
    if (!returned || !write_back(op, slots, returned.get())) return report_exception(op.name);
    return 0;
}

bool implements(int op) { return g_functions[static_cast<size_t>(op)] || has_row(op); }

int run(int op, const Slot* slots) {
    const Operator& facts = operator_at(op);
    try {
        if (PyObject* function = g_functions[static_cast<size_t>(op)]) return run_function(facts, function, slots);
        const PlainTorch plain;
        run_row(op, slots);
        return 0;
    } catch (const BadArguments& error) {
        return fail_text(kParamInvalid, std::string("EZ1001: ") + facts.name + ": " + error.what() + kFromRow);
    } catch (const c10::Error& error) {
        return fail_text(kInner, std::string(facts.name) + ": " + error.what_without_backtrace());
    } catch (const std::exception& error) {
        return fail_text(kInner, std::string(facts.name) + ": " + error.what());
    }
}

// ---- loading --------------------------------------------------------------------------------------------------

// A Python value of a row's literal: None, bool, int, float, str, or a list of int.
at::IValue literal(PyObject* value) {
    if (value == Py_None) return {};
    if (PyBool_Check(value)) return value == Py_True;
    if (PyLong_Check(value)) return static_cast<int64_t>(PyLong_AsLongLong(value));
    if (PyFloat_Check(value)) return PyFloat_AsDouble(value);
    if (PyUnicode_Check(value)) return std::string(PyUnicode_AsUTF8(value));
    TORCH_CHECK(PyList_Check(value), "a row's literal must be none, a bool, a number, a text or a list of integers");
    c10::List<int64_t> list;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(value); ++i) list.push_back(PyLong_AsLongLong(PyList_GET_ITEM(value, i)));
    return list;
}

Owned attribute(PyObject* object, const char* name) {
    Owned value(PyObject_GetAttrString(object, name));
    TORCH_CHECK(value, "registry: missing ", name);
    return value;
}

void load_row(PyObject* row) {
    const std::string name = text_of(attribute(row, "name").get());
    std::vector<RowArgument> arguments;
    const Owned given = attribute(row, "arguments");
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given.get()); ++i) {
        PyObject* argument = PyTuple_GET_ITEM(given.get(), i);
        const Owned keyword = attribute(argument, "keyword");
        arguments.push_back({keyword.get() == Py_None ? "" : text_of(keyword.get()),
                             static_cast<int>(PyLong_AsLong(attribute(argument, "source").get())),
                             literal(attribute(argument, "literal").get())});
    }
    std::vector<int> outputs;
    const Owned named = attribute(row, "outputs");
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(named.get()); ++i) {
        outputs.push_back(static_cast<int>(PyLong_AsLong(PyTuple_GET_ITEM(named.get(), i))));
    }
    const Owned flags = attribute(row, "flags");
    bool cube = false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(flags.get()); ++i) {
        cube |= PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(flags.get(), i), "cube") == 0;
    }
    try {
        add_row(operator_index(name.c_str()), text_of(attribute(row, "op").get()),
                text_of(attribute(row, "overload").get()), arguments, outputs,
                PyTuple_GET_SIZE(flags.get()) > 0, cube);
    } catch (const c10::Error& error) {
        TORCH_CHECK(false, text_of(attribute(row, "file").get()), ": ", name, ": ", error.what_without_backtrace());
    }
}

Owned call(PyObject* module, const char* name) {
    Owned result(PyObject_CallMethod(module, name, nullptr));
    TORCH_CHECK(result || PyErr_Occurred(), "registry: ", name, " failed");
    return result;
}

bool load(PyObject* registry) {
    g_functions.assign(static_cast<size_t>(operator_count()), nullptr);
    const Owned rows = call(registry, "rows");
    if (!rows) return false;
    PyObject *key = nullptr, *value = nullptr;
    for (Py_ssize_t position = 0; PyDict_Next(rows.get(), &position, &key, &value);) load_row(value);
    const Owned functions = call(registry, "functions");
    if (!functions) return false;
    for (Py_ssize_t position = 0; PyDict_Next(functions.get(), &position, &key, &value);) {
        const int op = operator_index(PyUnicode_AsUTF8(key));
        TORCH_CHECK(op >= 0, "a kernel is registered as ", PyUnicode_AsUTF8(key), ", which is not in signatures/aclnn.json");
        TORCH_CHECK(!has_row(op), PyUnicode_AsUTF8(key), " has a row and a kernel function; delete one of them");
        Py_INCREF(value);
        g_functions[static_cast<size_t>(op)] = value;
    }
    const Owned limits(PySequence_List(call(registry, "dtype_limits").get()));
    if (!limits) return false;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(limits.get()); ++i) {
        const char* name = nullptr;
        int arg = 0;
        unsigned long long mask = 0;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(limits.get(), i), "siK", &name, &arg, &mask)) return false;
        set_dtype_limit(operator_index(name), arg, mask);
    }
    return true;
}

}  // namespace
}  // namespace emu

// Called by libopapi, GIL held, once. Returns null, or why there are no kernels.
extern "C" EMU_API const char* emu_bridge_load() {
    static std::string problem;
    try {
        const emu::PlainTorch plain;
        const emu::Owned registry(PyImport_ImportModule("cann_emulator.kernels.registry"));
        if (!registry || !emu::load(registry.get()) || !emu::watch_for_the_end()) {
            emu::report_exception("cann_emulator");
            PyErr_Clear();
            problem = "the CANN emulator's kernels cannot be loaded";
        } else {
            emu::set_backend({emu::implements, emu::run});
            emu::set_models();
            std::thread(emu::watch_for_starvation).detach();
            return nullptr;
        }
    } catch (const c10::Error& error) {
        problem = std::string("the CANN emulator's kernels cannot be loaded: ") + error.what_without_backtrace();
    }
    return problem.c_str();
}
