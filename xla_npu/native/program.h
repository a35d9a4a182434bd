// A compiled program, as the compiler answers it: models, the values they pass on, and the steps that run them.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "buffer.h"
#include "json.h"

namespace npu {

struct Argument {
    Shape shape;
    MemoryKind memory = MemoryKind::device;
    std::string sharding;  // a serialised xla.OpSharding, or empty
    size_t value = 0;      // which of the program's values it is
};

struct Step {
    enum class Kind { model, collective, callback, device_id, loop, choice };
    Kind kind = Kind::model;
    size_t model = 0;
    std::vector<size_t> inputs, outputs;
    // collective: what is done to `count` elements of `type`, among which logical devices
    std::string operation, reduction;
    std::vector<std::vector<int64_t>> groups;  // of logical ids; of pairs where the operation is a permutation
    PJRT_Buffer_Type type = PJRT_INVALID;
    size_t count = 0;
    // callback: the function's name, and what it is told of this call
    std::string target, call;
    bool once = false;  // on the first device, for all
    // loop: condition, then body; choice: branches
    std::vector<std::vector<Step>> parts;
    size_t decides = 0;  // the value that ends the loop or chooses the branch
    std::vector<std::pair<size_t, size_t>> carried;
};

// What the compiler was given.
struct Source {
    std::string format, code, options;
};

struct Program {
    // Takes the compiler's answer apart. Throws INTERNAL where it contradicts itself.
    static std::shared_ptr<const Program> make(std::string header, std::string payload, Source source);

    std::string name, fingerprint;
    int replicas = 1, partitions = 1;
    std::vector<int> assignment;  // devices by logical id (replica * partitions + partition)
    std::vector<Argument> inputs, outputs;
    std::vector<int64_t> donated_to;  // for every input the output that takes its memory, or -1
    std::vector<bool> consumed;  // inputs that are given up without an output taking their memory
    std::vector<size_t> value_bytes;
    std::vector<Step> steps;
    std::vector<std::string_view> models;  // in payload
    bool meets = false;                    // devices wait for each other inside the program
    bool names_devices = false;            // devices read their logical ids
    bool interactive = false;              // the host takes part while it runs
    std::vector<std::pair<std::string, std::string>> inspections;  // a key of JAX's, a serialised xla.OpSharding
    Attributes cost;
    std::string header, payload;
    Source source;
};

}  // namespace npu
