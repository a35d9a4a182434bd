#include "rows.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <memory>

#include "values.h"

namespace emu {
namespace {

using at::IValue;

struct Row;
// Makes the ATen value of an aclnn argument.
using Converter = IValue (*)(Slot);

struct Step {
    int source;         // aclnn argument, or -1 for `literal`
    Converter convert;
    IValue literal;
    bool tensor;        // one tensor: what f32 and copying back are about
    bool written;       // ATen writes into it (out= or in place)
    bool unread;        // it is only written (out=)
};

struct Row {
    c10::OperatorHandle op;
    std::vector<Step> steps;
    std::vector<int> outputs;
    bool compute_in_fp32;
    bool cube;  // a matrix product: bf16 stays bf16 where the CPU multiplies it into fp32 sums, which is faster
};

std::vector<std::unique_ptr<Row>>& rows() {
    static std::vector<std::unique_ptr<Row>> table(static_cast<size_t>(operator_count()));
    return table;
}

IValue tensor_value(Slot bits) { return to_tensor(object<aclTensor>(bits)); }
IValue optional_tensor(Slot bits) { return bits ? tensor_value(bits) : IValue(); }
IValue tensor_list(Slot bits) {
    c10::List<at::Tensor> list;
    if (bits) {
        for (const aclTensor* tensor : object<aclTensorList>(bits)->tensors) list.push_back(to_tensor(tensor));
    }
    return list;
}
IValue optional_tensor_list(Slot bits) {
    c10::List<std::optional<at::Tensor>> list;
    for (const aclTensor* tensor : object<aclTensorList>(bits)->tensors) {
        list.push_back(tensor ? std::optional(to_tensor(tensor)) : std::nullopt);
    }
    return list;
}

IValue scalar_value(Slot bits) { return bits ? IValue(to_scalar(*object<aclScalar>(bits))) : IValue(); }
// A number where ATen's general form takes a tensor: as in Python, it does not decide the result's dtype.
IValue scalar_as_tensor(Slot bits) { return at::native::wrapped_scalar_tensor(to_scalar(*object<aclScalar>(bits))); }
IValue scalar_list(Slot bits) {
    c10::impl::GenericList values(c10::NumberType::get());
    for (const aclScalar* scalar : object<aclScalarList>(bits)->scalars) values.push_back(IValue(to_scalar(*scalar)));
    return values;
}
IValue scalar_as_int(Slot bits) { return bits ? IValue(to_scalar(*object<aclScalar>(bits)).toLong()) : IValue(); }
IValue scalar_as_real(Slot bits) { return bits ? IValue(to_scalar(*object<aclScalar>(bits)).toDouble()) : IValue(); }
IValue integer_value(Slot bits) { return static_cast<int64_t>(bits); }
IValue integer_as_number(Slot bits) { return IValue(at::Scalar(static_cast<int64_t>(bits))); }
IValue integer_as_bool(Slot bits) { return IValue(bits != 0); }
IValue integer_as_real(Slot bits) { return static_cast<double>(static_cast<int64_t>(bits)); }
IValue integer_as_list(Slot bits) { return c10::List<int64_t>({static_cast<int64_t>(bits)}); }
IValue dtype_value(Slot bits) {
    const auto dtype = to_dtype(static_cast<int>(bits));
    return dtype ? IValue(static_cast<int64_t>(*dtype)) : IValue();
}
IValue bool_value(Slot bits) { return IValue((bits & 1) != 0); }
IValue bool_as_integer(Slot bits) { return static_cast<int64_t>(bits & 1); }
IValue real_value(Slot bits) { return real(bits); }
IValue real_as_number(Slot bits) { return IValue(at::Scalar(real(bits))); }
IValue int_list(Slot bits) {
    return bits ? IValue(c10::List<int64_t>(c10::ArrayRef<int64_t>(object<aclIntArray>(bits)->values))) : IValue();
}
IValue real_list(Slot bits) {
    c10::List<double> list;
    for (float value : object<aclFloatArray>(bits)->values) list.push_back(value);
    return list;
}
IValue bool_list(Slot bits) {
    c10::List<bool> list;
    for (uint8_t value : object<aclBoolArray>(bits)->values) list.push_back(value != 0);
    return list;
}
IValue string_value(Slot bits) { return bits ? IValue(std::string(object<const char>(bits))) : IValue(); }

struct Conversion {
    c10::TypeKind wanted;   // ATen's type, of a list's elements where `list`
    bool list;
    ArgKind given;
    Converter convert;
};

// Everything that an aclnn argument can be turned into.
constexpr Conversion kConversions[] = {
    {c10::TypeKind::TensorType, false, ArgKind::tensor, tensor_value},
    {c10::TypeKind::TensorType, false, ArgKind::scalar, scalar_as_tensor},
    {c10::TypeKind::TensorType, true, ArgKind::tensor_list, tensor_list},
    {c10::TypeKind::NumberType, false, ArgKind::scalar, scalar_value},
    {c10::TypeKind::NumberType, false, ArgKind::integer, integer_as_number},
    {c10::TypeKind::NumberType, false, ArgKind::real, real_as_number},
    {c10::TypeKind::NumberType, true, ArgKind::scalar_list, scalar_list},
    {c10::TypeKind::IntType, false, ArgKind::integer, integer_value},
    {c10::TypeKind::IntType, false, ArgKind::boolean, bool_as_integer},
    {c10::TypeKind::IntType, false, ArgKind::scalar, scalar_as_int},
    {c10::TypeKind::IntType, true, ArgKind::int_array, int_list},
    {c10::TypeKind::IntType, true, ArgKind::integer, integer_as_list},
    {c10::TypeKind::ScalarTypeType, false, ArgKind::integer, dtype_value},
    {c10::TypeKind::BoolType, false, ArgKind::boolean, bool_value},
    {c10::TypeKind::BoolType, false, ArgKind::integer, integer_as_bool},
    {c10::TypeKind::BoolType, true, ArgKind::bool_array, bool_list},
    {c10::TypeKind::FloatType, false, ArgKind::real, real_value},
    {c10::TypeKind::FloatType, false, ArgKind::scalar, scalar_as_real},
    {c10::TypeKind::FloatType, false, ArgKind::integer, integer_as_real},
    {c10::TypeKind::FloatType, true, ArgKind::float_array, real_list},
    {c10::TypeKind::StringType, false, ArgKind::string, string_value},
};

Converter converter(const c10::Argument& wanted, ArgKind given) {
    c10::TypePtr type = wanted.real_type();
    const bool optional = type->kind() == c10::TypeKind::OptionalType;
    if (optional) type = type->expectRef<c10::OptionalType>().getElementType();
    const bool list = type->kind() == c10::TypeKind::ListType;
    if (list) type = type->expectRef<c10::ListType>().getElementType();
    if (list && type->kind() == c10::TypeKind::OptionalType) return optional_tensor_list;
    if (optional && !list && type->kind() == c10::TypeKind::TensorType && given == ArgKind::tensor) return optional_tensor;
    auto kind = type->kind();
    if (kind == c10::TypeKind::SymIntType) kind = c10::TypeKind::IntType;
    if (kind == c10::TypeKind::LayoutType || kind == c10::TypeKind::MemoryFormatType) kind = c10::TypeKind::IntType;
    for (const Conversion& conversion : kConversions) {
        if (conversion.wanted == kind && conversion.list == list && conversion.given == given) {
            return conversion.convert;
        }
    }
    TORCH_CHECK(false, "ATen's ", wanted.name(), " is ", wanted.real_type()->str(), ", which an aclnn argument of kind '",
                static_cast<char>(given), "' cannot be");
}

// A literal in the form ATen's type wants: Python has one int for Scalar, int and float.
IValue literal_for(const c10::Argument& wanted, const IValue& literal) {
    c10::TypePtr type = wanted.real_type();
    if (type->kind() == c10::TypeKind::OptionalType) type = type->expectRef<c10::OptionalType>().getElementType();
    if (literal.isInt() && type->kind() == c10::TypeKind::FloatType) return static_cast<double>(literal.toInt());
    if (literal.isInt() && type->kind() == c10::TypeKind::BoolType) return literal.toInt() != 0;
    if (literal.isNone() && type->kind() == c10::TypeKind::TensorType) return at::Tensor();
    return literal;
}

bool is_half(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }
bool is_half(const at::Tensor& tensor) { return tensor.defined() && is_half(tensor.scalar_type()); }

// Puts a result where the operator's output lies, where the caller wants it and ATen made it (gradients behind a mask).
// The number of elements must agree; the dtype is converted.
void deliver(const at::Tensor& result, const at::Tensor& output, const Operator& op) {
    if (!output.defined() || !result.defined()) return;
    TORCH_CHECK(result.numel() == output.numel(), op.name, ": the result has shape ", result.sizes(),
                ", the output tensor has ", output.sizes());
    output.copy_(result.sizes() == output.sizes() ? result : result.reshape(output.sizes()));
}

// ATen lays an output out anew if its shape is not the result's; the caller would then look for the result elsewhere.
void check_layout(const at::Tensor& written, const aclTensor& output, const Operator& op) {
    const auto rank = static_cast<size_t>(output.rank);
    TORCH_CHECK(written.numel() == 0 || (written.sizes() == at::IntArrayRef(output.dims, rank) &&
                                         written.strides() == at::IntArrayRef(output.strides, rank)),
                op.name, ": the result has shape ", written.sizes(), ", the output tensor has ",
                at::IntArrayRef(output.dims, rank), " and strides ", at::IntArrayRef(output.strides, rank));
}

}  // namespace

bool has_row(int op) { return rows()[static_cast<size_t>(op)] != nullptr; }

void add_row(int op, const std::string& name, const std::string& overload, const std::vector<RowArgument>& arguments,
             const std::vector<int>& outputs, bool compute_in_fp32, bool cube) {
    auto row = std::make_unique<Row>(Row{
        c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + name).c_str(), overload.c_str()), {}, outputs,
        compute_in_fp32, cube});
    const auto& wanted = row->op.schema().arguments();
    const Operator& facts = operator_at(op);
    size_t used = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
        const c10::Argument& argument = wanted[i];
        const RowArgument* given = nullptr;
        for (size_t k = 0; k < arguments.size(); ++k) {
            if (arguments[k].keyword.empty() ? k == i : arguments[k].keyword == argument.name()) given = &arguments[k];
        }
        const auto* alias = argument.alias_info();
        const bool written = alias && alias->isWrite();
        Step step{-1, nullptr, {}, false, written, written && argument.kwarg_only()};
        if (given && given->source >= 0) {
            step.source = given->source;
            step.convert = converter(argument, static_cast<ArgKind>(facts.kinds[given->source]));
            step.tensor = step.convert == tensor_value || step.convert == optional_tensor;
        } else if (given) {
            step.literal = literal_for(argument, given->literal);
        } else {
            TORCH_CHECK(argument.default_value(), "ATen's ", argument.name(), " is not given and has no default");
            step.literal = *argument.default_value();
        }
        used += given != nullptr;
        row->steps.push_back(std::move(step));
    }
    TORCH_CHECK(used == arguments.size(), "the row gives ", arguments.size(), " arguments, ATen's ", name, ".", overload,
                " takes ", used, " of them");
    rows()[static_cast<size_t>(op)] = std::move(row);
}

// Whether every tensor is bf16 and the CPU has products of bf16, which sum in fp32 and round once.
bool multiplies_bf16(const Row& row, const torch::jit::Stack& stack) {
#ifdef __x86_64__
    static const bool able = __builtin_cpu_supports("avx512bf16");
#else
    constexpr bool able = false;
#endif
    if (!able) return false;
    for (size_t i = 0; i < stack.size(); ++i) {
        if (row.steps[i].tensor && stack[i].isTensor() && stack[i].toTensor().scalar_type() != at::kBFloat16) return false;
    }
    return true;
}

// Replaces halves by fp32 copies; `rounded` gets those that are written.
void widen(const Row& row, torch::jit::Stack& stack, std::vector<std::pair<at::Tensor, at::Tensor>>& rounded) {
    for (size_t i = 0; i < stack.size(); ++i) {
        const Step& step = row.steps[i];
        IValue& value = stack[i];
        if (step.tensor && value.isTensor() && is_half(value.toTensor())) {
            const at::Tensor half = value.toTensor();
            at::Tensor wide = step.unread ? at::empty_like(half, half.options().dtype(at::kFloat)) : half.to(at::kFloat);
            if (step.written) rounded.emplace_back(half, wide);
            value = std::move(wide);
        } else if (step.convert == tensor_list) {
            c10::List<at::Tensor> wide;
            for (const at::Tensor& tensor : value.toTensorVector()) {
                wide.push_back(is_half(tensor) ? tensor.to(at::kFloat) : tensor);
            }
            value = std::move(wide);
        } else if (step.convert == dtype_value && value.isInt() &&
                   is_half(static_cast<at::ScalarType>(value.toInt()))) {
            value = static_cast<int64_t>(at::kFloat);  // the result is rounded when it is delivered
        }
    }
}

void run_row(int op, const Slot* slots) {
    const Row& row = *rows()[static_cast<size_t>(op)];
    torch::jit::Stack stack;
    stack.reserve(row.steps.size());
    for (const Step& step : row.steps) {
        stack.push_back(step.source < 0 ? step.literal : step.convert(slots[step.source]));
    }
    std::vector<std::pair<at::Tensor, at::Tensor>> rounded;  // (output in half, its fp32 stand-in)
    if (row.compute_in_fp32 && !(row.cube && multiplies_bf16(row, stack))) widen(row, stack, rounded);
    try {
        row.op.callBoxed(stack);
    } catch (const c10::NotImplementedError&) {
        throw;
    } catch (const c10::IndexError&) {  // contents, which the first phase does not see
        throw;
    } catch (const c10::OutOfMemoryError&) {
        throw;
    } catch (const c10::Error& error) {
        throw BadArguments(error.what_without_backtrace());
    }
    for (const auto& [half, wide] : rounded) half.copy_(wide);
    const Operator& facts = operator_at(op);
    if (row.outputs.empty()) {
        size_t i = 0;
        for (const Step& step : row.steps) {
            if (!step.written || !step.tensor || i >= stack.size()) continue;
            const at::Tensor& written = stack[i++].toTensor();
            if (rounded.empty()) check_layout(written, *object<aclTensor>(slots[step.source]), facts);
        }
        return;
    }
    if (stack.size() == 1 && stack[0].isTensorList()) {  // a list of results for a list of outputs
        const auto results = stack[0].toTensorVector();
        const auto& outputs = object<aclTensorList>(slots[row.outputs[0]])->tensors;
        TORCH_CHECK(results.size() == outputs.size(), facts.name, ": ", results.size(), " results for ", outputs.size(),
                    " output tensors");
        for (size_t i = 0; i < results.size(); ++i) deliver(results[i], to_tensor(outputs[i]), facts);
        return;
    }
    TORCH_CHECK(stack.size() >= row.outputs.size(), facts.name, ": ATen returned ", stack.size(), " results, the row names ",
                row.outputs.size());
    for (size_t i = 0; i < row.outputs.size(); ++i) {
        deliver(stack[i].toTensor(), to_tensor(object<aclTensor>(slots[row.outputs[i]])), facts);
    }
}

}  // namespace emu
