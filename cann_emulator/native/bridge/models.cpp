// Prepares and executes models. Preparation is Python (cann_emulator/kernels/ge): it turns every node of the program
// into steps by calling the functions below. Execution is native: the steps' tensors exist, and where an input or
// output lies is set in its storage.
#include "python.h"

#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>

#include <ATen/ScalarOps.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>

#include <unordered_map>

#include "../opapi/backend.h"
#include "elementwise.h"
#include "ending.h"
#include "models.h"
#include "state.h"
#include "values.h"

namespace emu {
namespace {

using at::IValue;

constexpr int kInner = 545000;      // ACL_ERROR_GE_INTERNAL_ERROR
constexpr int kLoadFailed = 545001;  // ACL_ERROR_GE_LOAD_MODEL

enum Base : int { kWeights = 0, kInput = 1, kOutput = 2, kWork = 3 };

// Tensors that do not need gradients, in any program: dispatch goes to the CPU kernels at once.
class PlainKernels {
public:
    PlainKernels() {
        c10::impl::PODLocalDispatchKeySet plain{};
        plain.set_included(c10::default_included_set);
        plain.set_excluded(c10::default_excluded_set | c10::python_ks | c10::functorch_transforms_ks |
                           c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset |
                           c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView) |
                           c10::DispatchKeySet(c10::DispatchKey::Functionalize) |
                           c10::DispatchKeySet(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) |
                           c10::DispatchKeySet(c10::DispatchKey::FuncTorchDynamicLayerBackMode));
        c10::impl::_force_tls_local_dispatch_key_set(plain);
    }

private:
    c10::impl::ForceDispatchKeyGuard keys_;  // restores the keys that it found
};

struct Prepared {
    std::string name;
    char* weights = nullptr;
    char* work = nullptr;
    std::vector<c10::Storage> inputs, outputs;
    std::vector<const void*> input_at, output_at;  // where the storages point
    std::vector<std::unique_ptr<Steps>> blocks;    // 0 is what an execution runs
};

void run_steps(const Steps& steps) {
    for (const auto& step : steps) {
        try {
            step->run();
        } catch (const c10::Error& error) {
            throw ModelError{fail_text(kInner, step->name + ": " + error.what_without_backtrace())};
        } catch (const std::exception& error) {
            throw ModelError{fail_text(kInner, step->name + ": " + error.what())};
        }
    }
}

// ---- kinds of step --------------------------------------------------------------------------------------------

// One ATen operator with its arguments.
struct AtenStep final : Step {
    AtenStep(c10::OperatorHandle handle) : op(std::move(handle)) {}
    void run() override {
        thread_local torch::jit::Stack stack;
        stack.assign(arguments.begin(), arguments.end());
        op.callBoxed(stack);
        for (size_t i = 0; i < results.size(); ++i) {
            const at::Tensor result = stack[i].toTensor();
            results[i].copy_(result.sizes() == results[i].sizes() ? result : result.reshape(results[i].sizes()));
        }
        stack.clear();
    }
    c10::OperatorHandle op;
    std::vector<IValue> arguments;
    std::vector<at::Tensor> results;  // what the operator returns is copied here
};

// A Python function of tensors.
struct PythonStep final : Step {
    ~PythonStep() override {
        const Gil gil;
        arguments.reset();
        function.reset();
    }
    void run() override {
        const BeforeTheEnd python;
        if (!python) throw ModelError{fail_text(kInner, name + kTooLate)};
        const Gil gil;
        const PlainTorch plain;
        const Owned returned(PyObject_CallObject(function.get(), arguments.get()));
        if (!returned) throw ModelError{report_exception(name.c_str())};
    }
    Owned function, arguments;
};

// Whether a scalar tensor of any dtype is not zero.
bool truth(const at::Tensor& value) {
    if (value.scalar_type() == at::kBool) return *static_cast<const bool*>(value.const_data_ptr());
    return value.is_nonzero();
}

struct LoopStep final : Step {
    void run() override {
        for (;;) {
            run_steps(*condition);
            if (!truth(predicate)) return;
            run_steps(*body);
        }
    }
    const Steps* condition = nullptr;
    const Steps* body = nullptr;
    at::Tensor predicate;
};

// Runs one block of several: an index out of range takes the last one.
struct SwitchStep final : Step {
    void run() override {
        const auto last = static_cast<int64_t>(branches.size()) - 1;
        int64_t branch;
        if (boolean) {
            branch = truth(index) ? 0 : 1;  // then, else
        } else {
            branch = index.item().toLong();
            if (branch < 0 || branch > last) branch = last;
        }
        run_steps(*branches[static_cast<size_t>(branch)]);
    }
    at::Tensor index;
    bool boolean = false;
    std::vector<const Steps*> branches;
};

struct ElementwiseStep final : Step {
    void run() override { program.run(); }
    ElementwiseProgram program;
};

// ---- from Python ----------------------------------------------------------------------------------------------

IValue number(PyObject* value) {
    if (PyBool_Check(value)) return value == Py_True;
    if (PyLong_Check(value)) return static_cast<int64_t>(PyLong_AsLongLong(value));
    if (PyComplex_Check(value)) return c10::complex<double>(PyComplex_RealAsDouble(value), PyComplex_ImagAsDouble(value));
    return PyFloat_AsDouble(value);
}

at::Scalar scalar(PyObject* value) {
    if (PyBool_Check(value)) return at::Scalar(value == Py_True);
    if (PyLong_Check(value)) return at::Scalar(static_cast<int64_t>(PyLong_AsLongLong(value)));
    if (PyComplex_Check(value)) {
        return at::Scalar(c10::complex<double>(PyComplex_RealAsDouble(value), PyComplex_ImagAsDouble(value)));
    }
    return at::Scalar(PyFloat_AsDouble(value));
}

at::Tensor tensor_of(PyObject* value) {
    if (THPVariable_Check(value)) return THPVariable_Unpack(value);
    return at::native::wrapped_scalar_tensor(scalar(value));
}

template <typename T, typename Convert>
IValue list_of(PyObject* value, Convert convert) {
    c10::List<T> list;
    const Owned items(PySequence_Fast(value, "a list is wanted"));
    TORCH_CHECK(items, "a list is wanted");
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.get()); ++i) {
        list.push_back(convert(PySequence_Fast_GET_ITEM(items.get(), i)));
    }
    return list;
}

// A Python value as ATen's argument wants it.
IValue value_for(const c10::Argument& wanted, PyObject* value) {
    c10::TypePtr type = wanted.real_type();
    if (type->kind() == c10::TypeKind::OptionalType) {
        if (value == Py_None) return {};
        type = type->expectRef<c10::OptionalType>().getElementType();
    }
    switch (type->kind()) {
        case c10::TypeKind::TensorType: return value == Py_None ? at::Tensor() : tensor_of(value);
        case c10::TypeKind::NumberType: return number(value);
        case c10::TypeKind::IntType:
        case c10::TypeKind::SymIntType:
        case c10::TypeKind::LayoutType:
        case c10::TypeKind::MemoryFormatType: return static_cast<int64_t>(PyLong_AsLongLong(value));
        case c10::TypeKind::ScalarTypeType:
            return static_cast<int64_t>(reinterpret_cast<THPDtype*>(value)->scalar_type);
        case c10::TypeKind::FloatType: return PyFloat_AsDouble(value);
        case c10::TypeKind::BoolType: return PyObject_IsTrue(value) != 0;
        case c10::TypeKind::StringType: return std::string(PyUnicode_AsUTF8(value));
        case c10::TypeKind::ListType: break;
        default: TORCH_CHECK(false, "arguments of type ", type->str(), " cannot be given");
    }
    c10::TypePtr element = type->expectRef<c10::ListType>().getElementType();
    switch (element->kind()) {
        case c10::TypeKind::TensorType: return list_of<at::Tensor>(value, tensor_of);
        case c10::TypeKind::OptionalType:
            return list_of<std::optional<at::Tensor>>(value, [](PyObject* item) -> std::optional<at::Tensor> {
                return item == Py_None ? std::nullopt : std::optional(tensor_of(item));
            });
        case c10::TypeKind::FloatType: return list_of<double>(value, PyFloat_AsDouble);
        case c10::TypeKind::BoolType: return list_of<bool>(value, [](PyObject* item) { return PyObject_IsTrue(item) != 0; });
        default:
            if (PyLong_Check(value)) return c10::List<int64_t>({static_cast<int64_t>(PyLong_AsLongLong(value))});
            return list_of<int64_t>(value, [](PyObject* item) { return static_cast<int64_t>(PyLong_AsLongLong(item)); });
    }
}

const c10::OperatorHandle& operator_named(const std::string& name) {
    static std::unordered_map<std::string, c10::OperatorHandle> known;  // guarded by the GIL
    auto found = known.find(name);
    if (found == known.end()) {
        const size_t dot = name.find('.');
        const std::string plain = name.substr(0, dot);
        const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
        const std::string qualified = plain.find("::") == std::string::npos ? "aten::" + plain : plain;
        found = known
                    .emplace(name, c10::Dispatcher::singleton().findSchemaOrThrow(qualified.c_str(), overload.c_str()))
                    .first;
    }
    return found->second;
}

std::unique_ptr<Step> aten_step(const std::string& op, PyObject* args, PyObject* kwargs, PyObject* results) {
    const c10::OperatorHandle& handle = operator_named(op);
    auto step = std::make_unique<AtenStep>(handle);
    const auto& wanted = handle.schema().arguments();
    const Py_ssize_t given = PyTuple_GET_SIZE(args);
    Py_ssize_t used = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
        if (static_cast<Py_ssize_t>(i) < given && !wanted[i].kwarg_only()) {
            step->arguments.push_back(value_for(wanted[i], PyTuple_GET_ITEM(args, static_cast<Py_ssize_t>(i))));
            ++used;
        } else if (PyObject* value = kwargs ? PyDict_GetItemString(kwargs, wanted[i].name().c_str()) : nullptr) {
            step->arguments.push_back(value_for(wanted[i], value));
            ++used;
        } else {
            TORCH_CHECK(wanted[i].default_value(), "ATen's ", op, " lacks its argument ", wanted[i].name());
            step->arguments.push_back(*wanted[i].default_value());
        }
        TORCH_CHECK(!PyErr_Occurred(), "ATen's ", op, ": argument ", wanted[i].name(), " has the wrong type");
    }
    const Py_ssize_t all = given + (kwargs ? PyDict_Size(kwargs) : 0);
    TORCH_CHECK(used == all, "ATen's ", op, " is given ", all, " arguments and takes ", used, " of them");
    if (results != Py_None) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(results); ++i) {
            step->results.push_back(THPVariable_Unpack(PyTuple_GET_ITEM(results, i)));
        }
    }
    return step;
}

// ---- what the loader calls ------------------------------------------------------------------------------------

Prepared& prepared_of(PyObject* self) { return *static_cast<Prepared*>(PyCapsule_GetPointer(self, nullptr)); }

template <typename Work>
PyObject* guarded(const Work& work) {
    try {
        return work();
    } catch (const c10::Error& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what_without_backtrace());
    } catch (const ModelError&) {
        PyErr_SetString(PyExc_RuntimeError, "a step failed while the model was being loaded");
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
}

PyObject* nothing() { Py_RETURN_NONE; }

std::vector<int64_t> integers(PyObject* sequence) {
    std::vector<int64_t> values;
    const Owned items(PySequence_Fast(sequence, "a list of integers is wanted"));
    if (!items) return values;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.get()); ++i) {
        values.push_back(PyLong_AsLongLong(PySequence_Fast_GET_ITEM(items.get(), i)));
    }
    return values;
}

// tensor(dtype, dims, strides or None, base, index, offset in bytes): a tensor of the model's memory.
PyObject* make_tensor(PyObject* self, PyObject* args) {
    int acl_dtype = 0, base = 0, index = 0;
    long long offset = 0;
    PyObject *dims = nullptr, *strides = nullptr;
    if (!PyArg_ParseTuple(args, "iOOiiL", &acl_dtype, &dims, &strides, &base, &index, &offset)) return nullptr;
    return guarded([&] {
        Prepared& model = prepared_of(self);
        const auto sizes = integers(dims);
        std::vector<int64_t> steps;
        if (strides == Py_None) {
            steps.resize(sizes.size());
            int64_t dense = 1;
            for (size_t i = sizes.size(); i-- > 0; dense *= std::max<int64_t>(sizes[i], 1)) steps[i] = dense;
        } else {
            steps = integers(strides);
        }
        const auto known = to_dtype(acl_dtype);
        TORCH_CHECK(known, "tensors of ", dtype_facts(acl_dtype).name, " cannot be computed with");
        const auto options = at::TensorOptions(*known);
        if (base == kInput || base == kOutput) {
            auto& storages = base == kInput ? model.inputs : model.outputs;
            const auto size = static_cast<int64_t>(c10::elementSize(*known));
            return THPVariable_Wrap(
                at::empty({0}, options).set_(storages.at(static_cast<size_t>(index)), offset / size, sizes, steps));
        }
        static char none[64];
        char* area = base == kWeights ? model.weights : model.work;
        void* begin = area ? area + offset : none;
        return THPVariable_Wrap(at::for_blob(begin, sizes).strides(steps).options(options).target_device(at::kCPU).make_tensor());
    });
}

PyObject* new_block(PyObject* self, PyObject*) {
    Prepared& model = prepared_of(self);
    model.blocks.push_back(std::make_unique<Steps>());
    return PyLong_FromSize_t(model.blocks.size() - 1);
}

PyObject* add(PyObject* self, int block, const char* name, std::unique_ptr<Step> step) {
    step->name = name;
    prepared_of(self).blocks.at(static_cast<size_t>(block))->push_back(std::move(step));
    return nothing();
}

// call(block, name, operator, args, kwargs or None, results or None)
PyObject* add_call(PyObject* self, PyObject* args) {
    int block = 0;
    const char *name = nullptr, *op = nullptr;
    PyObject *values = nullptr, *keywords = nullptr, *results = nullptr;
    if (!PyArg_ParseTuple(args, "issO!OO", &block, &name, &op, &PyTuple_Type, &values, &keywords, &results)) {
        return nullptr;
    }
    return guarded([&] {
        return add(self, block, name, aten_step(op, values, keywords == Py_None ? nullptr : keywords, results));
    });
}

// function(block, name, callable, args)
PyObject* add_function(PyObject* self, PyObject* args) {
    int block = 0;
    const char* name = nullptr;
    PyObject *callable = nullptr, *values = nullptr;
    if (!PyArg_ParseTuple(args, "isOO!", &block, &name, &callable, &PyTuple_Type, &values)) return nullptr;
    return guarded([&] {
        auto step = std::make_unique<PythonStep>();
        Py_INCREF(callable);
        Py_INCREF(values);
        step->function.reset(callable);
        step->arguments.reset(values);
        return add(self, block, name, std::move(step));
    });
}

// loop(block, name, condition block, predicate, body block)
PyObject* add_loop(PyObject* self, PyObject* args) {
    int block = 0, condition = 0, body = 0;
    const char* name = nullptr;
    PyObject* predicate = nullptr;
    if (!PyArg_ParseTuple(args, "isiOi", &block, &name, &condition, &predicate, &body)) return nullptr;
    return guarded([&] {
        auto step = std::make_unique<LoopStep>();
        Prepared& model = prepared_of(self);
        step->condition = model.blocks.at(static_cast<size_t>(condition)).get();
        step->body = model.blocks.at(static_cast<size_t>(body)).get();
        step->predicate = THPVariable_Unpack(predicate);
        return add(self, block, name, std::move(step));
    });
}

// switch(block, name, index, whether it is a condition, list of blocks)
PyObject* add_switch(PyObject* self, PyObject* args) {
    int block = 0, boolean = 0;
    const char* name = nullptr;
    PyObject *index = nullptr, *branches = nullptr;
    if (!PyArg_ParseTuple(args, "isOpO", &block, &name, &index, &boolean, &branches)) return nullptr;
    return guarded([&] {
        auto step = std::make_unique<SwitchStep>();
        step->index = THPVariable_Unpack(index);
        step->boolean = boolean != 0;
        for (const int64_t branch : integers(branches)) {
            step->branches.push_back(prepared_of(self).blocks.at(static_cast<size_t>(branch)).get());
        }
        return add(self, block, name, std::move(step));
    });
}

// elementwise(block, name, elements, [tensor...], [(operation, dtype, result, operands...)...], [(register, tensor)...])
PyObject* add_elementwise(PyObject* self, PyObject* args) {
    int block = 0;
    const char* name = nullptr;
    long long count = 0;
    PyObject *inputs = nullptr, *code = nullptr, *outputs = nullptr;
    if (!PyArg_ParseTuple(args, "isLO!O!O!", &block, &name, &count, &PyList_Type, &inputs, &PyList_Type, &code, &PyList_Type,
                          &outputs)) {
        return nullptr;
    }
    return guarded([&] {
        auto step = std::make_unique<ElementwiseStep>();
        std::vector<at::Tensor> read;
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(inputs); ++i) read.push_back(THPVariable_Unpack(PyList_GET_ITEM(inputs, i)));
        std::vector<ElementwiseCode> operations;
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(code); ++i) {
            PyObject* entry = PyList_GET_ITEM(code, i);
            ElementwiseCode operation{PyUnicode_AsUTF8(PyTuple_GET_ITEM(entry, 0)), {}};
            for (Py_ssize_t k = 1; k < PyTuple_GET_SIZE(entry); ++k) {
                operation.values.push_back(static_cast<int>(PyLong_AsLong(PyTuple_GET_ITEM(entry, k))));
            }
            operations.push_back(std::move(operation));
        }
        std::vector<std::pair<int, at::Tensor>> written;
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(outputs); ++i) {
            PyObject* entry = PyList_GET_ITEM(outputs, i);
            written.emplace_back(static_cast<int>(PyLong_AsLong(PyTuple_GET_ITEM(entry, 0))),
                                 THPVariable_Unpack(PyTuple_GET_ITEM(entry, 1)));
        }
        step->program.compile(count, read, operations, written);
        return add(self, block, name, std::move(step));
    });
}

// run(block): now, while the model is being loaded.
PyObject* run_now(PyObject* self, PyObject* args) {
    int block = 0;
    if (!PyArg_ParseTuple(args, "i", &block)) return nullptr;
    return guarded([&] {
        const PlainKernels plain;
        run_steps(*prepared_of(self).blocks.at(static_cast<size_t>(block)));
        return nothing();
    });
}

PyMethodDef kFunctions[] = {
    {"tensor", make_tensor, METH_VARARGS, nullptr},
    {"block", new_block, METH_NOARGS, nullptr},
    {"call", add_call, METH_VARARGS, nullptr},
    {"function", add_function, METH_VARARGS, nullptr},
    {"loop", add_loop, METH_VARARGS, nullptr},
    {"switch", add_switch, METH_VARARGS, nullptr},
    {"elementwise", add_elementwise, METH_VARARGS, nullptr},
    {"run", run_now, METH_VARARGS, nullptr},
};

// ---- the backend ----------------------------------------------------------------------------------------------

c10::Storage unplaced(size_t bytes) {
    static char nothing[64];
    return c10::Storage(c10::Storage::use_byte_size_t(), bytes, at::DataPtr(nothing, at::kCPU), nullptr, false);
}

bool prepare_in_python(const ModelImage& image, Prepared& model) {
    const Owned loader(PyImport_ImportModule("cann_emulator.kernels.ge.loader"));
    if (!loader) return false;
    const Owned self(PyCapsule_New(&model, nullptr, nullptr));
    const Owned functions(PyDict_New());
    for (PyMethodDef& function : kFunctions) {
        const Owned bound(PyCFunction_New(&function, self.get()));
        PyDict_SetItemString(functions.get(), function.ml_name, bound.get());
    }
    const Owned done(PyObject_CallMethod(loader.get(), "prepare", "y#O", image.program.data(),
                                         static_cast<Py_ssize_t>(image.program.size()), functions.get()));
    return done != nullptr;
}

void* prepare(const ModelImage& image, void* weights, void* work) {
    auto model = std::make_unique<Prepared>();
    model->name = image.name;
    model->weights = static_cast<char*>(weights);
    model->work = static_cast<char*>(work);
    for (const ModelPort& port : image.inputs) model->inputs.push_back(unplaced(port.bytes));
    for (const ModelPort& port : image.outputs) model->outputs.push_back(unplaced(port.bytes));
    model->input_at.resize(image.inputs.size());
    model->output_at.resize(image.outputs.size());
    const BeforeTheEnd python;
    if (!python) {
        fail_text(kLoadFailed, "model " + image.name + kTooLate);
        return nullptr;
    }
    const Gil gil;
    const PlainTorch plain;
    try {
        if (prepare_in_python(image, *model)) return model.release();
        report_exception(("model " + image.name).c_str());
    } catch (const std::exception& error) {
        fail_text(kLoadFailed, "model " + image.name + ": " + error.what());
    }
    return nullptr;
}

void place(std::vector<c10::Storage>& storages, std::vector<const void*>& places, void* const* addresses) {
    for (size_t i = 0; i < storages.size(); ++i) {
        if (places[i] == addresses[i] || storages[i].nbytes() == 0) continue;
        storages[i].set_data_ptr_noswap(at::DataPtr(addresses[i], at::kCPU));
        places[i] = addresses[i];
    }
}

int execute(void* prepared, void* const* inputs, void* const* outputs) {
    Prepared& model = *static_cast<Prepared*>(prepared);
    const PlainKernels plain;
    place(model.inputs, model.input_at, inputs);
    place(model.outputs, model.output_at, outputs);
    try {
        run_steps(*model.blocks[0]);
        return 0;
    } catch (const ModelError& error) {
        return error.code;
    }
}

void release(void* prepared) {
    if (const BeforeTheEnd python; python && !ended()) delete static_cast<Prepared*>(prepared);
}

}  // namespace

void set_models() { set_model_backend({prepare, execute, release}); }

}  // namespace emu
