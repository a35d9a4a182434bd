// How an aclnn call becomes a launch: the generated trampolines fill an executor in the first phase and run it in the
// second. What an operator computes is the backend's affair (libcann_bridge.so), which is loaded on first use.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "core.h"
#include "objects.h"

namespace emu {

// Kinds of argument, one letter each; `Operator::kinds` spells a signature with them.
enum class ArgKind : char {
    tensor = 'T', tensor_list = 'L', scalar = 'S', scalar_list = 'C', int_array = 'A', bool_array = 'B',
    float_array = 'F', integer = 'i', boolean = 'b', real = 'd', string = 's', pointer = 'p',
};

struct Operator {
    const char* name;
    const char* kinds;              // one letter an argument
    const char* const* arg_names;   // one name an argument
    const char* dynamic_outputs;    // '1' for each argument whose real shape the kernel writes back
};

// The generated table, sorted by name.
extern const Operator kOperators[];
extern const int kOperatorCount;

// An argument as 64 bits: a pointer, a sign-extended integer, or a double's bits. Read it by its ArgKind.
using Slot = uint64_t;

template <typename T>
Slot slot(T value) {
    if constexpr (std::is_pointer_v<T>) {
        return reinterpret_cast<Slot>(value);
    } else if constexpr (std::is_floating_point_v<T>) {
        const double wide = value;
        Slot bits;
        std::memcpy(&bits, &wide, sizeof bits);
        return bits;
    } else {
        return static_cast<Slot>(static_cast<int64_t>(value));
    }
}

inline double real(Slot bits) {
    double value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
template <typename T>
T* object(Slot bits) {
    return reinterpret_cast<T*>(bits);
}

// What runs the operators. All functions are called without the GIL being required of the caller.
struct Backend {
    // Whether there is a kernel for the operator (index into kOperators).
    bool (*implements)(int op);
    // Computes. Returns 0 or an error code set with emu::fail.
    int (*run)(int op, const Slot* slots);
};
// Called once by the bridge while it is being loaded.
EMU_API void set_backend(const Backend& backend);
EMU_API const Operator& operator_at(int op);
EMU_API int operator_count();
EMU_API int operator_index(const char* name);  // -1 where there is none
// Restricts the dtypes of an argument: bit n of `allowed` is aclDataType n. Checked in the first phase.
EMU_API void set_dtype_limit(int op, int arg, uint64_t allowed);

int prepare(int op, const Slot* slots, uint64_t* workspace_size, struct Executor** executor);
int launch(struct Executor* executor, void* stream);

template <typename... Args>
int first_phase(int op, uint64_t* workspace_size, Executor** executor, Args... args) {
    const Slot slots[] = {slot(args)..., 0};
    return prepare(op, slots, workspace_size, executor);
}

}  // namespace emu
