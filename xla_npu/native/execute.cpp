#include "execute.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>

#include "api.h"
#include "cann.h"
#include "collectives.h"
#include "profile.h"
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
    NPU_CALL(aclrtMemcpyAsync, to.data, to.bytes, from.data, from.bytes, device_to_device, device->compute->handle);
}

template <typename Value>
Value Run::read(size_t value) {
    Value made{};
    NPU_CALL(aclrtSynchronizeStream, device->compute->handle);
    NPU_CALL(aclrtMemcpy, &made, sizeof made, values[value].data, sizeof made, device_to_host);
    return made;
}

// All values move at once: one that is overwritten before it is read is put aside first.
void Run::carry(const Step& step) {
    std::vector<size_t> written, aside;
    for (const auto& [from, to] : step.carried) {
        if (std::find(written.begin(), written.end(), from) != written.end()) aside.push_back(from);
        written.push_back(to);
    }
    for (const size_t value : aside) {
        BlockPtr& block = aside_[value];
        if (!block) {
            block = device->allocate(MemoryKind::device, values[value].bytes);
            block->make_wait(*device->compute);
            blocks.push_back(block);  // in use until the program is done
        }
        copy({block->data, values[value].bytes}, values[value]);
    }
    for (const auto& [from, to] : step.carried) {
        const auto kept =
            std::find(aside.begin(), aside.end(), from) == aside.end() ? values[from].data : aside_[from]->data;
        copy(values[to], {kept, values[from].bytes});
    }
}

void Run::run(const std::vector<Step>& steps) {
    for (const Step& step : steps) run(step);
}

void Run::run(const Step& step) {
    switch (step.kind) {
        case Step::Kind::model:
            loaded->models[step.model]->launch(spans(step.inputs), spans(step.outputs));
            break;
        case Step::Kind::collective:
            communicators->run(step, *program, *loaded, values[step.inputs.at(0)], values[step.outputs.at(0)]);
            break;
        case Step::Kind::callback:
            run_callback(step, *loaded, *meeting, turn_++, spans(step.inputs), spans(step.outputs));
            break;
        case Step::Kind::device_id:
            copy(values[step.outputs.at(0)], {loaded->id->data, sizeof(int32_t)});
            break;
        case Step::Kind::loop:
            for (;;) {
                run(step.parts[0]);
                if (!read<uint8_t>(step.decides)) break;
                run(step.parts[1]);
                carry(step);
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
    Call(std::shared_ptr<Loaded> loaded, PJRT_LoadedExecutable& executable)
        : program(executable.program), loaded(std::move(loaded)), communicators(*executable.client.communicators) {}

    PJRT_Device& device() const { return *loaded->device; }
    Stream& stream() const { return *loaded->device->compute; }

    const std::shared_ptr<const Program> program;
    const std::shared_ptr<Loaded> loaded;
    Communicators& communicators;
    std::vector<Held> inputs;
    std::vector<MemoryKind> memories;  // of the inputs
    std::vector<bool> donated;
    Run run;
    std::vector<BlockPtr> results;        // of device memory, by output
    std::vector<Completion::Ptr> before;  // earlier work with memory that this will write
    std::vector<Held> outputs;
    Completion::Ptr done;

    void used_by(const Completion::Ptr& completion) const {
        for (const auto& block : run.blocks) block->used_by(completion);
        for (const auto& block : results) block->used_by(completion);
        for (const Held& held : inputs) held.block->used_by(completion);
    }
};
using CallPtr = std::shared_ptr<Call>;

// Checks the arguments of a device and what of them may be given away.
void hold(Call& call, PJRT_Buffer* const* arguments, size_t count, const std::vector<bool>& kept) {
    const Program& program = *call.program;
    if (count != program.inputs.size()) {
        fail(PJRT_INVALID_ARGUMENT, "The program %s takes %zu arguments, %zu were given", program.name.c_str(),
             program.inputs.size(), count);
    }
    for (size_t i = 0; i < count; ++i) {
        const PJRT_Buffer& buffer = *arguments[i];
        if (buffer.shape.bytes() != program.inputs[i].shape.bytes()) {
            fail(PJRT_INVALID_ARGUMENT, "Argument %zu of %s has %zu bytes, %zu are wanted", i, program.name.c_str(),
                 buffer.shape.bytes(), program.inputs[i].shape.bytes());
        }
        if (&buffer.device() != &call.device()) {
            fail(PJRT_INVALID_ARGUMENT, "Argument %zu of %s is on %s; the program runs on %s", i, program.name.c_str(),
                 buffer.device().name.c_str(), call.device().name.c_str());
        }
        call.inputs.push_back(buffer.hold());
        call.memories.push_back(buffer.memory.kind);
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
            if (other != i && arguments[other] == arguments[i]) {
                fail(PJRT_INVALID_ARGUMENT, "Argument %zu of %s is donated and given as argument %zu as well", i,
                     program.name.c_str(), other);
            }
        }
    }
}

// Gives every value its memory.
void allocate(Call& call) {
    const Program& program = *call.program;
    Run& run = call.run;
    run.values.resize(program.value_bytes.size());
    run.blocks.resize(program.value_bytes.size());
    const auto place = [&](size_t value, const BlockPtr& block) {
        run.values[value] = {block->data, program.value_bytes[value]};
        run.blocks[value] = block;
    };
    const auto wait_for = [&](Block& block) {
        const auto open = block.open_uses();
        call.before.insert(call.before.end(), open.begin(), open.end());
    };
    const auto make = [&](size_t bytes) {
        auto block = call.device().allocate(MemoryKind::device, bytes);
        wait_for(*block);
        return block;
    };
    for (size_t i = 0; i < call.inputs.size(); ++i) {
        const int64_t donated_to = program.donated_to[i];
        // The program may write an input that it was promised: where that has to stay, it gets a copy.
        const bool copied = call.memories[i] != MemoryKind::device || (donated_to >= 0 && !call.donated[i]);
        place(i, copied ? make(program.value_bytes[i]) : call.inputs[i].block);
        if (call.donated[i]) wait_for(*call.inputs[i].block);
        if (donated_to >= 0) place(program.outputs[static_cast<size_t>(donated_to)].value, run.blocks[i]);
    }
    for (size_t value = program.inputs.size(); value < program.value_bytes.size(); ++value) {
        if (!run.blocks[value]) place(value, make(program.value_bytes[value]));
    }
    for (const Argument& output : program.outputs) {
        const BlockPtr& block = run.blocks[output.value];
        // An argument that is handed through, or a value that is two outputs: each buffer has its own memory.
        const bool own = output.value >= program.inputs.size() || block != call.inputs[output.value].block ||
                         call.donated[output.value];
        const bool taken = std::find(call.results.begin(), call.results.end(), block) != call.results.end();
        call.results.push_back(own && !taken ? block : make(program.value_bytes[output.value]));
    }
}

// Puts the program on the device's stream.
Completion::Ptr launch(Call& call) {
    const Program& program = *call.program;
    PJRT_Device& device = call.device();
    Stream& stream = call.stream();
    Run& run = call.run;
    const int64_t start_ns = tracing() ? wall_clock_ns() : 0;
    device.activate();
    for (const Held& held : call.inputs) {
        held.defined->make_wait(stream);
        if (held.defined->known_done() && held.defined->outcome()) throw *held.defined->outcome();
    }
    for (const auto& earlier : call.before) earlier->make_wait(stream);
    try {
        for (size_t i = 0; i < call.inputs.size(); ++i) {
            const BlockPtr& from = call.inputs[i].block;
            if (from == run.blocks[i] || from->size == 0) continue;
            const bool on_device = call.memories[i] == MemoryKind::device;
            if (call.memories[i] == MemoryKind::unpinned_host) {
                NPU_CALL(aclrtSynchronizeStream, stream.handle);
                NPU_CALL(aclrtMemcpy, run.values[i].data, from->size, from->data, from->size, host_to_device);
            } else {
                NPU_CALL(aclrtMemcpyAsync, run.values[i].data, from->size, from->data, from->size,
                         on_device ? device_to_device : host_to_device, stream.handle);
            }
        }
        run.program = &program;
        run.device = &device;
        run.loaded = call.loaded.get();
        run.communicators = &call.communicators;
        run.run(program.steps);
        for (size_t i = 0; i < program.outputs.size(); ++i) {
            const Model::Span& value = run.values[program.outputs[i].value];
            run.copy({call.results[i]->data, value.bytes}, value);
        }
    } catch (...) {
        call.used_by(Completion::recorded(stream, {call.loaded}));  // what was launched may still be running
        throw;
    }
    auto done = Completion::recorded(stream, {call.loaded});
    call.used_by(done);
    if (start_ns) trace(device, "Programs", program.name, start_ns, done);
    return done;
}

std::atomic<int> open_launches{0};

// On the devices' launching threads, since devices wait for each other (in collectives, and in setting up their links)
// or for the host. All threads get the programs in the same order.
void launch_on_threads(PJRT_Client& client, const std::vector<CallPtr>& calls,
                       const std::function<void(Call&)>& launch_one) {
    std::lock_guard<std::mutex> lock(client.launch_order);
    for (const CallPtr& call : calls) {
        ++open_launches;
        call->device().launcher.add([call, launch_one] {
            launch_one(*call);
            --open_launches;
        });
    }
}

// Returns when everything is on the streams.
void launch_together(PJRT_Client& client, const std::vector<CallPtr>& calls) {
    struct Wait {
        std::mutex mutex;
        std::condition_variable changed;
        size_t open;
        std::optional<Failure> failure;
    } wait;
    wait.open = calls.size();
    launch_on_threads(client, calls, [&wait](Call& call) {
        std::optional<Failure> met;
        try {
            call.done = launch(call);
        } catch (const Failure& thrown) {
            met = thrown;
        }
        std::lock_guard<std::mutex> lock(wait.mutex);
        if (met && !wait.failure) wait.failure = met;
        if (--wait.open == 0) wait.changed.notify_all();
    });
    std::unique_lock<std::mutex> lock(wait.mutex);
    wait.changed.wait(lock, [&] { return wait.open == 0; });
    if (wait.failure) throw *wait.failure;
}

// Returns at once; failures are met by those who wait for the outputs.
void launch_later(PJRT_Client& client, const std::vector<CallPtr>& calls) {
    for (const CallPtr& call : calls) {
        call->done = Completion::pending();
        call->used_by(call->done);
    }
    launch_on_threads(client, calls, [](Call& call) {
        try {
            launch(call)->then(
                [announced = call.done](const Completion::Outcome& outcome) { announced->finish(outcome); });
        } catch (const Failure& failure) {
            call.run.meeting->abandon(failure);
            call.done->finish(failure);
        }
    });
}

bool waits_for_host(const Call& call) {
    return call.program->interactive || std::any_of(call.inputs.begin(), call.inputs.end(), [](const Held& held) {
               return !held.defined->known_done() && !held.defined->stream();
           });
}
}  // namespace

namespace api {

void LoadedExecutable_Execute(PJRT_LoadedExecutable_Execute_Args& args) {
    PJRT_LoadedExecutable& executable = *args.executable;
    const Program& program = *executable.program;
    std::vector<CallPtr> calls;
    {
        std::lock_guard<std::mutex> lock(executable.mutex);
        if (executable.loaded.empty())
            fail(PJRT_INVALID_ARGUMENT, "The executable %s was deleted", program.name.c_str());
        for (const auto& loaded : executable.loaded) {
            if (!args.execute_device || loaded->device == args.execute_device) {
                calls.push_back(std::make_shared<Call>(loaded, executable));
            }
        }
    }
    if (calls.size() != args.num_devices) {
        fail(PJRT_INVALID_ARGUMENT, "%s runs on %zu devices; arguments for %zu were given", program.name.c_str(),
             calls.size(), args.num_devices);
    }
    std::vector<bool> kept(program.inputs.size());
    for (size_t i = 0; i < args.options->num_non_donatable_input_indices; ++i) {
        const auto index = static_cast<size_t>(args.options->non_donatable_input_indices[i]);
        if (index < kept.size()) kept[index] = true;
    }
    for (size_t i = 0; i < calls.size(); ++i) hold(*calls[i], args.argument_lists[i], args.num_args, kept);
    const auto meeting = std::make_shared<Meeting>();
    for (const CallPtr& call : calls) {
        allocate(*call);
        call->run.meeting = meeting;
    }
    if (std::any_of(calls.begin(), calls.end(), [](const CallPtr& call) { return waits_for_host(*call); })) {
        launch_later(executable.client, calls);
    } else if (program.meets && calls.size() > 1) {
        launch_together(executable.client, calls);
    } else {
        for (const CallPtr& call : calls) call->done = launch(*call);
    }
    for (const CallPtr& call : calls) {
        for (size_t i = 0; i < program.outputs.size(); ++i) {
            const Argument& output = program.outputs[i];
            Held made{call->results[i], call->done};
            if (output.memory != MemoryKind::device) {
                PJRT_Device& device = call->device();
                made = copy_to_memory(device.memory(MemoryKind::device), made, device.memory(output.memory),
                                      output.shape.bytes());
            }
            call->outputs.push_back(std::move(made));
        }
    }
    // Nothing fails from here on.
    for (size_t device = 0; device < calls.size(); ++device) {
        Call& call = *calls[device];
        for (size_t input = 0; input < call.inputs.size(); ++input) {
            const bool given_up = call.donated[input] || (program.consumed[input] && !kept[input]);
            if (given_up) args.argument_lists[device][input]->release();
        }
        for (size_t i = 0; i < program.outputs.size(); ++i) {
            const Argument& output = program.outputs[i];
            args.output_lists[device][i] = new PJRT_Buffer(call.device().memory(output.memory), output.shape,
                                                           call.outputs[i].block, call.outputs[i].defined);
        }
        if (args.device_complete_events) args.device_complete_events[device] = new PJRT_Event{call.done};
    }
}

}  // namespace api
}  // namespace npu

// For the Python package: whether programs are still being launched in the background.
extern "C" __attribute__((visibility("default"))) int npu_is_launching() { return npu::open_launches != 0; }
