#include "executable.h"

#include <cstring>
#include <numeric>

#include "api.h"
#include "callback.h"
#include "cann.h"
#include "proto.h"
#include "worker.h"

using namespace npu;

namespace npu {

Model::List::~List() {
    if (dataset) cann().aclmdlDestroyDataset(dataset);
    for (void* buffer : buffers) cann().aclDestroyDataBuffer(buffer);
}

void Model::List::set(const std::vector<Span>& spans) {
    if (!dataset) {
        dataset = cann().aclmdlCreateDataset();
        for (const Span& span : spans) {
            buffers.push_back(cann().aclCreateDataBuffer(span.data, span.bytes));
            NPU_CALL(aclmdlAddDatasetBuffer, dataset, buffers.back());
        }
        return;
    }
    for (size_t i = 0; i < spans.size(); ++i) NPU_CALL(aclUpdateDataBuffer, buffers[i], spans[i].data, spans[i].bytes);
}

Model::Model(PJRT_Device& device, std::shared_ptr<const Program> program, std::string_view bytes)
    : device_(device), program_(std::move(program)) {
    device.activate();
    size_t weight_bytes = 0;
    NPU_CALL(aclmdlQuerySizeFromMem, bytes.data(), bytes.size(), &work_bytes_, &weight_bytes);
    if (work_bytes_) work_ = device.work_area(work_bytes_);
    if (weight_bytes) weights_ = device.allocate(MemoryKind::device, weight_bytes);
    NPU_CALL(aclmdlLoadFromMemWithMem, bytes.data(), bytes.size(), &id_, work_ ? work_->data : nullptr, work_bytes_,
             weights_ ? weights_->data : nullptr, weight_bytes);
}

Model::~Model() {
    if (cann().aclrtSetDevice(device_.ordinal) == 0) cann().aclmdlUnload(id_);
}

// One launch at a time: CANN wants the lists not to change meanwhile, and models share memory for their work.
void Model::launch(const std::vector<Span>& inputs, const std::vector<Span>& outputs) {
    std::lock_guard<std::mutex> lock(device_.launching);
    inputs_.set(inputs);
    outputs_.set(outputs);
    NPU_CALL(aclmdlExecuteAsync, id_, inputs_.dataset, outputs_.dataset, device_.compute->handle);
}

namespace {
// ---- the serialised form: what the compiler answered, with a version and a checksum
constexpr char magic[9] = "XLANPU03";
constexpr int parts = 6;
struct Frame {
    char magic[8];
    uint64_t sizes[parts], checksum;
};

uint64_t checksum(std::string_view data, uint64_t sum = 0xcbf29ce484222325) {
    for (const char c : data) sum = (sum ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    return sum;
}

std::string serialize(const PJRT_Executable& executable) {
    const Program& program = *executable.program;
    const std::string* const contents[parts] = {&executable.soc,        &program.header,      &program.payload,
                                                &program.source.format, &program.source.code, &program.source.options};
    Frame frame{};
    std::memcpy(frame.magic, magic, sizeof frame.magic);
    std::string made(sizeof frame, '\0');
    for (int i = 0; i < parts; ++i) {
        frame.sizes[i] = contents[i]->size();
        made += *contents[i];
    }
    frame.checksum = checksum(std::string_view(made).substr(sizeof frame));
    std::memcpy(made.data(), &frame, sizeof frame);
    return made;
}

std::shared_ptr<const Program> deserialize(std::string_view data, const std::string& soc) {
    Frame frame{};
    if (data.size() < sizeof frame || std::memcmp(data.data(), magic, sizeof frame.magic) != 0) {
        fail(PJRT_INVALID_ARGUMENT,
             "This is no serialised executable of this plugin's version: compile the program again");
    }
    std::memcpy(&frame, data.data(), sizeof frame);
    data.remove_prefix(sizeof frame);
    const uint64_t sum = checksum(data);
    std::string contents[parts];
    for (int i = 0; i < parts; ++i) {
        if (frame.sizes[i] > data.size())
            fail(PJRT_DATA_LOSS, "The serialised executable is cut off: compile the program again");
        contents[i] = data.substr(0, frame.sizes[i]);
        data.remove_prefix(frame.sizes[i]);
    }
    if (sum != frame.checksum || !data.empty()) {
        fail(PJRT_DATA_LOSS, "The serialised executable is damaged: compile the program again");
    }
    if (contents[0] != soc) {
        fail(PJRT_FAILED_PRECONDITION, "The executable was compiled for %s; this machine has %s: compile it again",
             contents[0].c_str(), soc.c_str());
    }
    return Program::make(std::move(contents[1]), std::move(contents[2]),
                         {std::move(contents[3]), std::move(contents[4]), std::move(contents[5])});
}

// What JAX puts into the key of an `InspectSharding` call, and hands to the function in it.
struct InspectionAnswer {
    const char* sharding;
    size_t size;
    const char* error;
    void* scratch;
    void (*free_error)(InspectionAnswer*);
};
struct InspectionKey {
    void (*call)(void* data, InspectionAnswer* answer);
    void* data;
};

// Tells JAX how the compiler spread the values that the program asks about.
void answer_inspections(const Program& program) {
    for (const auto& [bytes, sharding] : program.inspections) {
        InspectionKey key;
        if (bytes.size() != sizeof key) fail(PJRT_INTERNAL, "InspectSharding has a key of %zu bytes", bytes.size());
        std::memcpy(&key, bytes.data(), sizeof key);
        InspectionAnswer answer{sharding.data(), sharding.size(), nullptr, nullptr, nullptr};
        key.call(key.data, &answer);
        if (!answer.error) continue;
        const std::string message = answer.error;
        if (answer.free_error) answer.free_error(&answer);
        fail(PJRT_INTERNAL, "%s", message.c_str());
    }
}

std::shared_ptr<const Program> compile(const PJRT_Program& code, std::string_view options, Workers& workers,
                                       const PJRT_TopologyDescription& topology) {
    Source source{{code.format, code.format_size}, {code.code, code.code_size}, std::string(options)};
    Answer answer = workers.ask("compile", source, topology.soc, static_cast<int>(topology.descriptions.size()));
    auto program = Program::make(std::move(answer.text), std::move(answer.payload), std::move(source));
    answer_inspections(*program);
    return program;
}

// A string that a caller reads through a handle and frees.
template <typename Handle>
void hand_out(std::string text, const char*& data, size_t& size, Handle*& handle, void (*&deleter)(Handle*)) {
    auto* owned = new std::string(std::move(text));
    data = owned->data();
    size = owned->size();
    handle = reinterpret_cast<Handle*>(owned);
    deleter = [](Handle* given) { delete reinterpret_cast<std::string*>(given); };
}

// xla.DeviceAssignmentProto: for every partition the devices of its replicas.
std::string assignment_proto(const Program& program) {
    std::string made;
    proto::put(made, 1, static_cast<uint64_t>(program.replicas));
    proto::put(made, 2, static_cast<uint64_t>(program.partitions));
    for (int partition = 0; partition < program.partitions; ++partition) {
        std::string ids;
        for (int replica = 0; replica < program.replicas; ++replica) {
            proto::put_varint(ids, static_cast<uint64_t>(program.assignment[replica * program.partitions + partition]));
        }
        std::string computation;
        proto::put(computation, 1, ids);
        proto::put(made, 3, computation);
    }
    return made;
}

int64_t bytes_of(const std::vector<Argument>& arguments) {
    return std::accumulate(arguments.begin(), arguments.end(), int64_t{0}, [](int64_t sum, const Argument& each) {
        return sum + static_cast<int64_t>(each.shape.bytes());
    });
}
}  // namespace
}  // namespace npu

PJRT_Executable::PJRT_Executable(std::shared_ptr<const Program> given, const PJRT_TopologyDescription& topology,
                                 Workers& workers, size_t work_bytes)
    : program(std::move(given)),
      soc(topology.soc),
      device_count(static_cast<int>(topology.descriptions.size())),
      work_bytes(work_bytes),
      workers(workers) {
    shardings = true;
    for (const Argument& input : program->inputs) {
        input_layouts.push_back(dense_layout(input.shape.dims.size()));
        input_kinds.push_back(kind_name(input.memory));
        input_kind_sizes.push_back(std::strlen(input_kinds.back()));
        input_shardings.push_back(input.sharding.data());
        input_sharding_sizes.push_back(input.sharding.size());
        shardings = shardings && !input.sharding.empty();
    }
    for (const Argument& output : program->outputs) {
        output_types.push_back(output.shape.type);
        output_dims.insert(output_dims.end(), output.shape.dims.begin(), output.shape.dims.end());
        output_ranks.push_back(output.shape.dims.size());
        output_layouts.push_back(dense_layout(output.shape.dims.size()));
        output_kinds.push_back(kind_name(output.memory));
        output_kind_sizes.push_back(std::strlen(output_kinds.back()));
        output_shardings.push_back(output.sharding.data());
        output_sharding_sizes.push_back(output.sharding.size());
        shardings = shardings && !output.sharding.empty();
    }
}

const std::string& PJRT_Executable::text() {
    std::lock_guard<std::mutex> lock(mutex);
    if (text_.empty()) text_ = workers.ask("optimized", program->source, soc, device_count).payload;
    return text_;
}

PJRT_LoadedExecutable::PJRT_LoadedExecutable(PJRT_Client& client, std::shared_ptr<const Program> given)
    : client(client), program(std::move(given)) {
    check_host_targets(program->steps);
    const auto& assignment = program->assignment;
    if (assignment.size() != static_cast<size_t>(program->replicas) * static_cast<size_t>(program->partitions)) {
        fail(PJRT_INTERNAL, "The compiler assigned %zu devices to %d replicas of %d partitions", assignment.size(),
             program->replicas, program->partitions);
    }
    for (size_t i = 0; i < assignment.size(); ++i) {
        if (assignment[i] < 0 || static_cast<size_t>(assignment[i]) >= client.devices.size()) {
            fail(PJRT_INVALID_ARGUMENT, "The program is for device %d; this process has %zu devices", assignment[i],
                 client.devices.size());
        }
        PJRT_Device& device = *client.devices[static_cast<size_t>(assignment[i])];
        devices.push_back(&device);
        const int logical = static_cast<int>(i);
        logical_ids.push_back({logical / program->partitions, logical % program->partitions});
        auto made = std::make_shared<Loaded>();
        made->device = &device;
        made->logical_id = logical;
        if (program->names_devices) {
            made->id = device.allocate(MemoryKind::device, sizeof(int32_t));
            device.activate();
            NPU_CALL(aclrtMemcpy, made->id->data, sizeof(int32_t), &made->logical_id, sizeof(int32_t), host_to_device);
        }
        for (const auto bytes : program->models) {
            made->models.push_back(std::make_unique<Model>(device, program, bytes));
            work_bytes = std::max(work_bytes, made->models.back()->work_bytes());
        }
        loaded.push_back(std::move(made));
    }
}

namespace npu::api {

void Client_Compile(PJRT_Client_Compile_Args& args) {
    PJRT_Client& client = *args.client;
    const auto program =
        compile(*args.program, {args.compile_options, args.compile_options_size}, *client.workers, *client.topology);
    args.executable = new PJRT_LoadedExecutable(client, program);
}

void Compile(PJRT_Compile_Args& args) {
    const PJRT_Client* client = args.client ? args.client : args.topology->client;
    static Workers& alone = *new Workers;  // of topologies that no client describes
    Workers& workers = client ? *client->workers : alone;
    const auto program =
        compile(*args.program, {args.compile_options, args.compile_options_size}, workers, *args.topology);
    args.executable = new PJRT_Executable(program, *args.topology, workers);
}

void Client_Load(PJRT_Client_Load_Args& args) {
    args.loaded_executable = new PJRT_LoadedExecutable(*args.client, args.executable->program);
}

void Executable_Destroy(PJRT_Executable_Destroy_Args& args) { delete args.executable; }
void Executable_Name(PJRT_Executable_Name_Args& args) {
    args.executable_name = args.executable->program->name.data();
    args.executable_name_size = args.executable->program->name.size();
}
void Executable_NumReplicas(PJRT_Executable_NumReplicas_Args& args) {
    args.num_replicas = static_cast<size_t>(args.executable->program->replicas);
}
void Executable_NumPartitions(PJRT_Executable_NumPartitions_Args& args) {
    args.num_partitions = static_cast<size_t>(args.executable->program->partitions);
}
void Executable_NumOutputs(PJRT_Executable_NumOutputs_Args& args) {
    args.num_outputs = args.executable->program->outputs.size();
}
void Executable_SizeOfGeneratedCodeInBytes(PJRT_Executable_SizeOfGeneratedCodeInBytes_Args& args) {
    args.size_in_bytes = static_cast<int64_t>(args.executable->program->payload.size());
}
void Executable_GetCostAnalysis(PJRT_Executable_GetCostAnalysis_Args& args) {
    args.properties = args.executable->program->cost.values.data();
    args.num_properties = args.executable->program->cost.values.size();
}
void Executable_OutputMemoryKinds(PJRT_Executable_OutputMemoryKinds_Args& args) {
    args.num_outputs = args.executable->output_kinds.size();
    args.memory_kinds = args.executable->output_kinds.data();
    args.memory_kind_sizes = args.executable->output_kind_sizes.data();
}
void Executable_ParameterMemoryKinds(PJRT_Executable_ParameterMemoryKinds_Args& args) {
    args.num_parameters = args.executable->input_kinds.size();
    args.memory_kinds = args.executable->input_kinds.data();
    args.memory_kind_sizes = args.executable->input_kind_sizes.data();
}
void Executable_OutputElementTypes(PJRT_Executable_OutputElementTypes_Args& args) {
    args.output_types = args.executable->output_types.data();
    args.num_output_types = args.executable->output_types.size();
}
void Executable_OutputDimensions(PJRT_Executable_OutputDimensions_Args& args) {
    args.num_outputs = args.executable->output_ranks.size();
    args.dims = args.executable->output_dims.data();
    args.dim_sizes = args.executable->output_ranks.data();
}
void Executable_Fingerprint(PJRT_Executable_Fingerprint_Args& args) {
    args.executable_fingerprint = args.executable->program->fingerprint.data();
    args.executable_fingerprint_size = args.executable->program->fingerprint.size();
}
void Executable_GetCompiledMemoryStats(PJRT_Executable_GetCompiledMemoryStats_Args& args) {
    const Program& program = *args.executable->program;
    int64_t alias = 0;
    for (size_t i = 0; i < program.inputs.size(); ++i) {
        if (program.donated_to[i] >= 0) alias += static_cast<int64_t>(program.inputs[i].shape.bytes());
    }
    const int64_t inputs = bytes_of(program.inputs), outputs = bytes_of(program.outputs);
    const int64_t values = std::accumulate(program.value_bytes.begin(), program.value_bytes.end(), int64_t{0});
    args.generated_code_size_in_bytes = static_cast<int64_t>(program.payload.size());
    args.argument_size_in_bytes = inputs;
    args.output_size_in_bytes = outputs;
    args.alias_size_in_bytes = alias;
    args.temp_size_in_bytes =
        static_cast<int64_t>(args.executable->work_bytes) + std::max<int64_t>(0, values - inputs - outputs);
    args.host_generated_code_size_in_bytes = args.host_argument_size_in_bytes = args.host_output_size_in_bytes = 0;
    args.host_alias_size_in_bytes = args.host_temp_size_in_bytes = 0;
    if (args.struct_size >= offsetof(PJRT_Executable_GetCompiledMemoryStats_Args, total_size_in_bytes)) {
        args.peak_memory_in_bytes = inputs + outputs - alias + args.temp_size_in_bytes;
    }
}
void Executable_OptimizedProgram(PJRT_Executable_OptimizedProgram_Args& args) {
    const std::string& text = args.executable->text();
    static const std::string format = "mlir";
    args.program->format = format.data();
    args.program->format_size = format.size();
    if (args.program->code) std::memcpy(args.program->code, text.data(), text.size());
    args.program->code_size = text.size();
}
void Executable_GetCompileOptions(PJRT_Executable_GetCompileOptions_Args& args) {
    hand_out(args.executable->program->source.options, args.serialized_bytes, args.serialized_bytes_size,
             args.serialized_compile_options, args.serialized_compile_options_deleter);
}
void Executable_Serialize(PJRT_Executable_Serialize_Args& args) {
    hand_out(serialize(*args.executable), args.serialized_bytes, args.serialized_bytes_size, args.serialized_executable,
             args.serialized_executable_deleter);
}
void Executable_DeserializeAndLoad(PJRT_Executable_DeserializeAndLoad_Args& args) {
    const auto program =
        deserialize({args.serialized_executable, args.serialized_executable_size}, args.client->topology->soc);
    args.loaded_executable = new PJRT_LoadedExecutable(*args.client, program);
}

void LoadedExecutable_Destroy(PJRT_LoadedExecutable_Destroy_Args& args) { delete args.executable; }
void LoadedExecutable_GetExecutable(PJRT_LoadedExecutable_GetExecutable_Args& args) {
    args.executable = new PJRT_Executable(args.loaded_executable->program, *args.loaded_executable->client.topology,
                                          *args.loaded_executable->client.workers, args.loaded_executable->work_bytes);
}
void LoadedExecutable_AddressableDevices(PJRT_LoadedExecutable_AddressableDevices_Args& args) {
    args.addressable_devices = args.executable->devices.data();
    args.num_addressable_devices = args.executable->devices.size();
}
void LoadedExecutable_AddressableDeviceLogicalIds(PJRT_LoadedExecutable_AddressableDeviceLogicalIds_Args& args) {
    args.addressable_device_logical_ids = args.executable->logical_ids.data();
    args.num_addressable_device_logical_ids = args.executable->logical_ids.size();
}
void LoadedExecutable_Delete(PJRT_LoadedExecutable_Delete_Args& args) {
    std::vector<std::shared_ptr<Loaded>> dropped;  // unloaded without the lock
    std::lock_guard<std::mutex> lock(args.executable->mutex);
    dropped.swap(args.executable->loaded);
}
void LoadedExecutable_IsDeleted(PJRT_LoadedExecutable_IsDeleted_Args& args) {
    std::lock_guard<std::mutex> lock(args.executable->mutex);
    args.is_deleted = args.executable->loaded.empty();
}
void LoadedExecutable_Fingerprint(PJRT_LoadedExecutable_Fingerprint_Args& args) {
    args.executable_fingerprint = args.executable->program->fingerprint.data();
    args.executable_fingerprint_size = args.executable->program->fingerprint.size();
}
void LoadedExecutable_GetDeviceAssignment(PJRT_LoadedExecutable_GetDeviceAssignment_Args& args) {
    hand_out(assignment_proto(*args.executable->program), args.serialized_bytes, args.serialized_bytes_size,
             args.serialized_device_assignment, args.serialized_device_assignment_deleter);
}

// ---- the Shardings extension
// None for a program that is not partitioned.
void Shardings_PJRT_Executable_ParameterShardings(PJRT_Shardings_PJRT_Executable_ParameterShardings_Args& args) {
    const PJRT_Executable& executable = *args.executable;
    args.num_parameters = executable.input_shardings.size();
    args.shardings = executable.shardings ? executable.input_shardings.data() : nullptr;
    args.sharding_sizes = executable.shardings ? executable.input_sharding_sizes.data() : nullptr;
}
void Shardings_PJRT_Executable_OutputShardings(PJRT_Shardings_PJRT_Executable_OutputShardings_Args& args) {
    const PJRT_Executable& executable = *args.executable;
    args.num_outputs = executable.output_shardings.size();
    args.shardings = executable.shardings ? executable.output_shardings.data() : nullptr;
    args.sharding_sizes = executable.shardings ? executable.output_sharding_sizes.data() : nullptr;
}

}  // namespace npu::api
