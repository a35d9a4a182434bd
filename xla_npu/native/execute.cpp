#include "execute.h"

#include <algorithm>
#include <condition_variable>

#include "api.h"
#include "callback.h"
#include "cann.h"
#include "collectives.h"
#include "transfer.h"

namespace npu {

// ---- steps

std::vector<Model::Span> Run::spans(const std::vector<size_t>& indices) const {
    std::vector<Model::Span> made;
    made.reserve(indices.size());
    for (const size_t i : indices) made.push_back(values[i]);
    return made;
}

void Run::copy(const Model::Span& to, const Model::Span& from) {
    if (from.bytes == 0 || to.data == from.data) return;
    NPU_CALL(aclrtMemcpyAsync, to.data, to.bytes, from.data, from.bytes, device_to_device, device().compute->handle);
}

template <typename Value>
Value Run::read(size_t value) {
    Value made{};
    NPU_CALL(aclrtSynchronizeStream, device().compute->handle);
    NPU_CALL(aclrtMemcpy, &made, sizeof made, values[value].data, sizeof made, device_to_host);
    return made;
}

void Run::run(const std::vector<Step>& steps) {
    for (const Step& step : steps) run(step);
}

void Run::run(const Step& step) {
    switch (step.kind) {
        case Step::Kind::model:
            loaded.models[step.model]->launch(*device().compute, spans(step.inputs), spans(step.outputs));
            break;
        case Step::Kind::collective:
            executable.client.communicators->run(step, executable, loaded, spans(step.inputs), spans(step.outputs));
            break;
        case Step::Kind::callback:
            run_callback(step, device(), spans(step.inputs), spans(step.outputs));
            break;
        case Step::Kind::loop:
            for (;;) {
                run(step.parts[0]);
                if (!read<uint8_t>(step.decides)) break;
                run(step.parts[1]);
                for (const auto& [from, to] : step.carried) copy(values[to], values[from]);
            }
            break;
        case Step::Kind::choice: {
            const auto last = static_cast<int32_t>(step.parts.size()) - 1;
            const auto chosen = read<int32_t>(step.decides);
            run(step.parts[chosen < 0 || chosen > last ? last : chosen]);
            break;
        }
    }
}

namespace {
// What one device gets and gives in one execution.
struct Call {
    std::shared_ptr<Loaded> loaded;
    PJRT_Buffer* const* arguments;
    std::vector<Held> inputs;
    std::vector<bool> donated;
    std::vector<PJRT_Buffer*> outputs;
    Completion::Ptr done;
};

// Checks the arguments of a device and what of them may be given away.
void hold(Call& call, const Program& program, size_t count, const std::vector<bool>& kept) {
    if (count != program.inputs.size()) {
        fail(PJRT_INVALID_ARGUMENT, "The program %s takes %zu arguments, %zu were given", program.name.c_str(),
             program.inputs.size(), count);
    }
    for (size_t i = 0; i < count; ++i) {
        const PJRT_Buffer& buffer = *call.arguments[i];
        if (buffer.shape.bytes() != program.inputs[i].shape.bytes()) {
            fail(PJRT_INVALID_ARGUMENT, "Argument %zu of %s has %zu bytes, %zu are wanted", i, program.name.c_str(),
                 buffer.shape.bytes(), program.inputs[i].shape.bytes());
        }
        if (&buffer.device() != call.loaded->device) {
            fail(PJRT_INVALID_ARGUMENT, "Argument %zu of %s is on %s; the program runs on %s", i, program.name.c_str(),
                 buffer.device().name.c_str(), call.loaded->device->name.c_str());
        }
        call.inputs.push_back(buffer.hold());
        if (const auto& defined = call.inputs.back().defined; defined->known_done() && defined->outcome()) {
            throw *defined->outcome();
        }
        bool donate = program.donated_to[i] >= 0 && !kept[i] && buffer.memory.kind == MemoryKind::device;
        if (donate) {
            std::lock_guard<std::mutex> lock(buffer.mutex);
            donate = buffer.external.empty();
        }
        call.donated.push_back(donate);
    }
    for (size_t i = 0; i < count; ++i) {
        for (size_t other = 0; call.donated[i] && other < count; ++other) {
            if (other != i && call.arguments[other] == call.arguments[i]) {
                fail(PJRT_INVALID_ARGUMENT, "Argument %zu of %s is donated and given as argument %zu as well", i,
                     program.name.c_str(), other);
            }
        }
    }
}

// Gives every value its memory, launches the steps, and makes the outputs' buffers.
void launch(Call& call, PJRT_LoadedExecutable& executable) {
    const Program& program = *executable.program;
    PJRT_Device& device = *call.loaded->device;
    Stream& stream = *device.compute;
    device.activate();
    Run run{program, *call.loaded, executable, {}, {}};
    run.values.resize(program.value_bytes.size());
    run.blocks.resize(program.value_bytes.size());
    const auto place = [&](size_t value, BlockPtr block) {
        run.values[value] = {block->data, program.value_bytes[value]};
        run.blocks[value] = std::move(block);
    };
    const auto make = [&](size_t bytes) {
        auto block = device.allocate(MemoryKind::device, bytes);
        block->make_wait(stream);
        return block;
    };
    for (size_t i = 0; i < call.inputs.size(); ++i) {
        Held held = call.inputs[i];
        Memory& memory = call.arguments[i]->memory;
        if (memory.kind != MemoryKind::device) {
            held = copy_to_memory(memory, held, device.memory(MemoryKind::device), program.value_bytes[i]);
        }
        held.defined->make_wait(stream);
        if (const auto& defined = held.defined; defined->known_done() && defined->outcome()) throw *defined->outcome();
        if (call.donated[i]) held.block->make_wait(stream);  // it will be written
        place(i, std::move(held.block));
    }
    // An output takes its donor's memory. Where the donor must stay, the output starts as a copy of it: the program was
    // compiled for the two to be the same memory.
    for (size_t i = 0; i < call.inputs.size(); ++i) {
        if (program.donated_to[i] < 0) continue;
        const size_t value = program.outputs[static_cast<size_t>(program.donated_to[i])].value;
        if (!call.donated[i]) {
            auto copy = make(program.value_bytes[i]);
            if (program.value_bytes[i]) {
                NPU_CALL(aclrtMemcpyAsync, copy->data, program.value_bytes[i], run.values[i].data, program.value_bytes[i],
                         device_to_device, stream.handle);
            }
            call.inputs[i].block->used_by(Completion::recorded(stream));
            place(i, std::move(copy));
        }
        if (value != i) place(value, run.blocks[i]);
    }
    for (size_t value = program.inputs.size(); value < program.value_bytes.size(); ++value) {
        if (!run.blocks[value]) place(value, make(program.value_bytes[value]));
    }
    const auto finish = [&] {
        call.done = Completion::recorded(stream, {call.loaded});
        for (const auto& block : run.blocks) {
            if (block) block->used_by(call.done);
        }
    };
    std::vector<BlockPtr> results;
    try {
        run.run(program.steps);
        std::vector<const Block*> taken;
        for (size_t i = 0; i < program.outputs.size(); ++i) {
            const size_t value = program.outputs[i].value;
            BlockPtr block = run.blocks[value];
            // An argument that is handed through, or a value that is two outputs, is copied: each buffer has its own memory.
            const bool own = value >= program.inputs.size() || call.donated[value];
            if (!own || std::find(taken.begin(), taken.end(), block.get()) != taken.end()) {
                auto copy = make(program.value_bytes[value]);
                if (program.value_bytes[value]) {
                    NPU_CALL(aclrtMemcpyAsync, copy->data, program.value_bytes[value], block->data, program.value_bytes[value],
                             device_to_device, stream.handle);
                }
                block = std::move(copy);
                run.blocks.push_back(block);
            }
            taken.push_back(block.get());
            results.push_back(std::move(block));
        }
    } catch (const Failure&) {
        finish();  // what was launched may still be running
        throw;
    }
    finish();
    for (size_t i = 0; i < program.outputs.size(); ++i) {
        const Argument& output = program.outputs[i];
        Held made{results[i], call.done};
        if (output.memory != MemoryKind::device) {
            made = copy_to_memory(device.memory(MemoryKind::device), made, device.memory(output.memory), output.shape.bytes());
        }
        call.outputs.push_back(new PJRT_Buffer(device.memory(output.memory), output.shape, made.block, made.defined));
    }
}

// Every device on its own thread: in a collective, and in setting up its links, devices wait for each other.
void launch_together(std::vector<Call>& calls, PJRT_LoadedExecutable& executable) {
    std::mutex mutex;
    std::condition_variable changed;
    size_t open = calls.size();
    std::optional<Failure> failure;
    for (Call& call : calls) {
        call.loaded->device->launcher.add([&] {
            std::optional<Failure> met;
            try {
                launch(call, executable);
            } catch (const Failure& thrown) {
                met = thrown;
            }
            std::lock_guard<std::mutex> lock(mutex);
            if (met && !failure) failure = met;
            if (--open == 0) changed.notify_all();
        });
    }
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return open == 0; });
    if (failure) throw *failure;
}
}  // namespace

namespace api {

void LoadedExecutable_Execute(PJRT_LoadedExecutable_Execute_Args& args) {
    PJRT_LoadedExecutable& executable = *args.executable;
    const Program& program = *executable.program;
    std::vector<Call> calls;
    {
        std::lock_guard<std::mutex> lock(executable.mutex);
        if (executable.loaded.empty()) fail(PJRT_INVALID_ARGUMENT, "The executable %s was deleted", program.name.c_str());
        for (const auto& loaded : executable.loaded) {
            if (!args.execute_device || loaded->device == args.execute_device) calls.push_back({loaded, nullptr, {}, {}, {}, nullptr});
        }
    }
    if (calls.size() != args.num_devices) {
        fail(PJRT_INVALID_ARGUMENT, "%s runs on %zu devices; arguments for %zu were given", program.name.c_str(), calls.size(),
             args.num_devices);
    }
    std::vector<bool> kept(program.inputs.size());
    for (size_t i = 0; i < args.options->num_non_donatable_input_indices; ++i) {
        const auto index = static_cast<size_t>(args.options->non_donatable_input_indices[i]);
        if (index < kept.size()) kept[index] = true;
    }
    for (size_t i = 0; i < calls.size(); ++i) {
        calls[i].arguments = args.argument_lists[i];
        hold(calls[i], program, args.num_args, kept);
    }
    try {
        if (program.meets && calls.size() > 1) {
            launch_together(calls, executable);
        } else {
            for (Call& call : calls) launch(call, executable);
        }
    } catch (const Failure&) {
        for (Call& call : calls) {
            for (PJRT_Buffer* output : call.outputs) delete output;
        }
        throw;
    }
    for (size_t i = 0; i < calls.size(); ++i) {
        for (size_t input = 0; input < calls[i].inputs.size(); ++input) {
            if (calls[i].donated[input]) calls[i].arguments[input]->release();
        }
        std::copy(calls[i].outputs.begin(), calls[i].outputs.end(), args.output_lists[i]);
        if (args.device_complete_events) args.device_complete_events[i] = new PJRT_Event{calls[i].done};
    }
}

}  // namespace api
}  // namespace npu
