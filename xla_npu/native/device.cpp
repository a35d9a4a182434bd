#include "device.h"

#include <cstdlib>
#include <cstring>
#include <fstream>

#include "api.h"
#include "cann.h"
#include "collectives.h"
#include "worker.h"

namespace npu {
namespace {
constexpr const char* names_of_kinds[memory_kinds] = {"device", "pinned_host", "unpinned_host"};

void* get_user_data(PJRT_Memory* memory, const void* key) {
    auto& self = *static_cast<Memory*>(memory);
    std::lock_guard<std::mutex> lock(self.mutex);
    const auto found = self.user_data.find(key);
    return found == self.user_data.end() ? nullptr : found->second.first;
}

void set_user_data(PJRT_Memory* memory, const void* key, void* data, void (*destructor)(void*)) {
    auto& self = *static_cast<Memory*>(memory);
    std::pair<void*, void (*)(void*)> old{};
    {
        std::lock_guard<std::mutex> lock(self.mutex);
        old = std::exchange(self.user_data[key], {data, destructor});
    }
    if (old.second) old.second(old.first);
}

constexpr PJRT_Memory_FunctionTable memory_functions = {
    sizeof(PJRT_Memory_FunctionTable), nullptr, sizeof(Memory), get_user_data, set_user_data,
};

// CANN's own version, from the file that every CANN home has.
std::string cann_version() {
    const char* home = std::getenv("ASCEND_HOME_PATH");
    std::ifstream file(std::string(home ? home : "") + "/compiler/version.info");
    for (std::string line; std::getline(file, line);) {
        if (line.rfind("Version=", 0) == 0) return line.substr(8);
    }
    return "unknown";
}

struct Settings {
    double memory_fraction = 0.95;
};

Settings settings_of(const PJRT_NamedValue* options, size_t count) {
    Settings settings;
    if (const char* fraction = std::getenv("XLA_NPU_MEMORY_FRACTION")) {
        char* end = nullptr;
        settings.memory_fraction = std::strtod(fraction, &end);
        if (end == fraction || *end || !(settings.memory_fraction > 0 && settings.memory_fraction <= 1)) {
            fail(PJRT_INVALID_ARGUMENT, "XLA_NPU_MEMORY_FRACTION is '%s': a number above 0 and up to 1 is wanted",
                 fraction);
        }
    }
    for (size_t i = 0; i < count; ++i) {
        const std::string name(options[i].name, options[i].name_size);
        if (name == "memory_fraction" && options[i].type == PJRT_VALUE_FLOAT) {
            settings.memory_fraction = options[i].float_value;
        }
    }
    return settings;
}

void give(const std::string& text, const char*& data, size_t& size) {
    data = text.c_str();
    size = text.size();
}

void give(const Attributes& attributes, const PJRT_NamedValue*& values, size_t& count) {
    values = attributes.values.data();
    count = attributes.values.size();
}
}  // namespace

// ---- attributes

PJRT_NamedValue& Attributes::append(std::string&& name) {
    texts_.push_back(std::make_unique<std::string>(std::move(name)));
    PJRT_NamedValue value{};
    value.struct_size = sizeof value;
    value.name = texts_.back()->c_str();
    value.name_size = texts_.back()->size();
    value.value_size = 1;
    values.push_back(value);
    return values.back();
}

void Attributes::add(std::string name, int64_t number) {
    PJRT_NamedValue& value = append(std::move(name));
    value.type = PJRT_VALUE_INT64;
    value.int64_value = number;
}

void Attributes::add(std::string name, double number) {
    PJRT_NamedValue& value = append(std::move(name));
    value.type = PJRT_VALUE_FLOAT;
    value.float_value = static_cast<float>(number);
}

void Attributes::add(std::string name, std::vector<int64_t> numbers) {
    PJRT_NamedValue& value = append(std::move(name));
    lists_.push_back(std::make_unique<std::vector<int64_t>>(std::move(numbers)));
    value.type = PJRT_VALUE_INT64_LIST;
    value.int64_array_value = lists_.back()->data();
    value.value_size = lists_.back()->size();
}

void Attributes::add(std::string name, std::string text) {
    append(std::move(name));
    texts_.push_back(std::make_unique<std::string>(std::move(text)));
    PJRT_NamedValue& value = values.back();
    value.type = PJRT_VALUE_STRING;
    value.string_value = texts_.back()->c_str();
    value.value_size = texts_.back()->size();
}

// ---- memories

const char* kind_name(MemoryKind kind) { return names_of_kinds[static_cast<int>(kind)]; }

MemoryKind kind_named(const std::string& name) {
    for (int i = 0; i < memory_kinds; ++i) {
        if (name == names_of_kinds[i]) return static_cast<MemoryKind>(i);
    }
    fail(PJRT_INVALID_ARGUMENT, "'%s' is no kind of memory here: device, pinned_host and unpinned_host are",
         name.c_str());
}

Memory::Memory(PJRT_Device& device, MemoryKind kind, int id)
    : PJRT_Memory{&memory_functions},
      device(device),
      devices{&device},
      kind(kind),
      id(id),
      text(std::string("NpuMemory(kind=") + kind_name(kind) + ", device=" + std::to_string(device.description.id) +
           ")") {}

Memory::~Memory() {
    for (auto& [key, value] : user_data) {
        if (value.second) value.second(value.first);
    }
}

// ---- topology

std::unique_ptr<PJRT_TopologyDescription> make_topology(const std::string& soc, int devices) {
    auto topology = std::make_unique<PJRT_TopologyDescription>();
    topology->soc = soc;
    topology->version = "xla_npu; CANN " + cann_version() + "; " + soc;
    topology->attributes.add("soc", soc);
    topology->attributes.add("num_devices", int64_t{devices});
    for (int id = 0; id < devices; ++id) {
        auto description = std::make_unique<PJRT_DeviceDescription>();
        description->id = id;
        description->kind = soc;
        description->text = std::string(platform_name) + ":" + std::to_string(id);
        description->attributes.add("coords", std::vector<int64_t>{id});
        description->attributes.add("slice_index", int64_t{0});
        topology->pointers.push_back(description.get());
        topology->descriptions.push_back(std::move(description));
    }
    return topology;
}

}  // namespace npu

using namespace npu;

// ---- device and client

PJRT_Device::PJRT_Device(PJRT_Client& client, PJRT_DeviceDescription& description, int ordinal, double memory_fraction)
    : client(client), description(description), ordinal(ordinal), name(description.text) {
    for (int kind = 0; kind < memory_kinds; ++kind) {
        memories.push_back(
            std::make_unique<Memory>(*this, static_cast<MemoryKind>(kind), ordinal * memory_kinds + kind));
        memory_pointers.push_back(memories.back().get());
    }
    activate();
    constexpr int device_memory = 1;
    size_t free = 0, total = 0;
    NPU_CALL(aclrtGetMemInfo, device_memory, &free, &total);
    allocator = std::make_unique<Allocator>(*this, static_cast<size_t>(static_cast<double>(total) * memory_fraction));
    compute = std::make_unique<Stream>(*this);
    uploads = std::make_unique<Stream>(*this);
    downloads = std::make_unique<Stream>(*this);
}

void PJRT_Device::activate() const { NPU_CALL(aclrtSetDevice, ordinal); }

BlockPtr PJRT_Device::allocate(MemoryKind kind, size_t bytes) {
    if (kind == MemoryKind::device) return allocator->allocate(bytes);
    void* data = nullptr;
    constexpr size_t cache_line = 64;
    const size_t size = (std::max<size_t>(bytes, 1) + cache_line - 1) / cache_line * cache_line;
    if (kind == MemoryKind::pinned_host) {
        activate();
        NPU_CALL(aclrtMallocHost, &data, size);
    } else if (!(data = std::aligned_alloc(cache_line, size))) {
        fail(PJRT_RESOURCE_EXHAUSTED, "Out of host memory: %zu bytes are wanted", size);
    }
    auto block = std::make_shared<Block>(nullptr, data, bytes);
    block->release = [kind, data] {
        kind == MemoryKind::pinned_host ? void(cann().aclrtFreeHost(data)) : std::free(data);
    };
    return block;
}

BlockPtr PJRT_Device::work_area(size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    BlockPtr area = work_area_.lock();
    if (!area || area->size < bytes) work_area_ = area = allocator->allocate(bytes);
    return area;
}

PJRT_Client::PJRT_Client(const PJRT_NamedValue* options, size_t count) {
    const Settings settings = settings_of(options, count);
    load_cann();
    uint32_t found = 0;
    NPU_CALL(aclrtGetDeviceCount, &found);
    if (found == 0) {
        fail(PJRT_NOT_FOUND,
             "CANN finds no Ascend device: look at `npu-smi info`, at the permissions of /dev/davinci* and at "
             "ASCEND_RT_VISIBLE_DEVICES, or run under the emulator: cann-emulator run -- python ...");
    }
    const char* soc = cann().aclrtGetSocName();
    topology = make_topology(soc ? soc : "unknown", static_cast<int>(found));
    topology->client = this;
    platform_version = topology->version;
    for (int i = 0; i < static_cast<int>(found); ++i) {
        devices.push_back(
            std::make_unique<PJRT_Device>(*this, *topology->descriptions[i], i, settings.memory_fraction));
        device_pointers.push_back(devices.back().get());
        for (PJRT_Memory* memory : devices.back()->memory_pointers) memory_pointers.push_back(memory);
    }
    // Devices that can read each other's memory copy without the host.
    for (const auto& device : devices) {
        device->activate();
        for (const auto& peer : devices) {
            int32_t can = 0;
            if (peer != device && cann().aclrtDeviceCanAccessPeer(&can, device->ordinal, peer->ordinal) == 0 && can) {
                cann().aclrtDeviceEnablePeerAccess(peer->ordinal, 0);
            }
        }
    }
    devices.front()->activate();
    workers = std::make_unique<Workers>();
    communicators = std::make_unique<Communicators>();
}

// Runs only where the constructor failed after all members were made; see Client_Destroy.
PJRT_Client::~PJRT_Client() = default;

namespace npu::api {

void Plugin_Initialize(PJRT_Plugin_Initialize_Args&) {}

void Plugin_Attributes(PJRT_Plugin_Attributes_Args& args) {
    // jaxlib serialises programs for the version that the plugin names; the compiler reads them with the same jaxlib.
    static const Attributes& attributes = [] {
        auto* made = new Attributes;
        made->add("xla_version", int64_t{2});
        made->add("stablehlo_current_version", std::vector<int64_t>{1, 17, 0});
        made->add("stablehlo_minimum_version", std::vector<int64_t>{0, 9, 0});
        return std::ref(*made);
    }();
    give(attributes, args.attributes, args.num_attributes);
}

void Client_Create(PJRT_Client_Create_Args& args) {
    args.client = new PJRT_Client(args.create_options, args.num_options);
}
// Buffers and events may outlive their client, and need its devices: what is left of a client is a few hundred bytes,
// its streams, and the memory of such buffers.
void Client_Destroy(PJRT_Client_Destroy_Args& args) {
    if (!args.client) return;
    PJRT_Client& client = *args.client;
    for (const auto& device : client.devices) {
        device->activate();
        NPU_CALL(aclrtSynchronizeStream, device->compute->handle);
        device->allocator->trim();
    }
    client.workers->stop();
    client.communicators->release();
}
void Client_PlatformName(PJRT_Client_PlatformName_Args& args) {
    args.platform_name = platform_name;
    args.platform_name_size = std::strlen(platform_name);
}
void Client_PlatformVersion(PJRT_Client_PlatformVersion_Args& args) {
    give(args.client->platform_version, args.platform_version, args.platform_version_size);
}
void Client_ProcessIndex(PJRT_Client_ProcessIndex_Args& args) { args.process_index = 0; }
void Client_Devices(PJRT_Client_Devices_Args& args) {
    args.devices = args.client->device_pointers.data();
    args.num_devices = args.client->device_pointers.size();
}
void Client_AddressableDevices(PJRT_Client_AddressableDevices_Args& args) {
    args.addressable_devices = args.client->device_pointers.data();
    args.num_addressable_devices = args.client->device_pointers.size();
}

static PJRT_Device* find_device(PJRT_Client& client, int id) {
    if (id < 0 || id >= static_cast<int>(client.devices.size())) {
        fail(PJRT_INVALID_ARGUMENT, "There is no device %d: this process has %zu", id, client.devices.size());
    }
    return client.device_pointers[static_cast<size_t>(id)];
}
void Client_LookupDevice(PJRT_Client_LookupDevice_Args& args) { args.device = find_device(*args.client, args.id); }
void Client_LookupAddressableDevice(PJRT_Client_LookupAddressableDevice_Args& args) {
    args.addressable_device = find_device(*args.client, args.local_hardware_id);
}
void Client_AddressableMemories(PJRT_Client_AddressableMemories_Args& args) {
    args.addressable_memories = args.client->memory_pointers.data();
    args.num_addressable_memories = args.client->memory_pointers.size();
}
void Client_TopologyDescription(PJRT_Client_TopologyDescription_Args& args) {
    args.topology = args.client->topology.get();
}
void Client_UpdateGlobalProcessInfo(PJRT_Client_UpdateGlobalProcessInfo_Args&) {}  // one process

void Client_DefaultDeviceAssignment(PJRT_Client_DefaultDeviceAssignment_Args& args) {
    const size_t wanted = static_cast<size_t>(args.num_replicas) * static_cast<size_t>(args.num_partitions);
    const size_t have = args.client->devices.size();
    if (wanted > have) {
        fail(PJRT_INVALID_ARGUMENT, "%d replicas of %d partitions need %zu devices; there are %zu", args.num_replicas,
             args.num_partitions, wanted, have);
    }
    if (args.default_assignment_size < wanted) {
        fail(PJRT_INVALID_ARGUMENT, "The device assignment has %zu entries; %zu are needed",
             args.default_assignment_size, wanted);
    }
    for (size_t i = 0; i < wanted; ++i) args.default_assignment[i] = static_cast<int>(i);
}

void DeviceDescription_Id(PJRT_DeviceDescription_Id_Args& args) { args.id = args.device_description->id; }
void DeviceDescription_ProcessIndex(PJRT_DeviceDescription_ProcessIndex_Args& args) {
    args.process_index = args.device_description->process_index;
}
void DeviceDescription_Attributes(PJRT_DeviceDescription_Attributes_Args& args) {
    give(args.device_description->attributes, args.attributes, args.num_attributes);
}
void DeviceDescription_Kind(PJRT_DeviceDescription_Kind_Args& args) {
    give(args.device_description->kind, args.device_kind, args.device_kind_size);
}
void DeviceDescription_DebugString(PJRT_DeviceDescription_DebugString_Args& args) {
    give(args.device_description->text, args.debug_string, args.debug_string_size);
}
void DeviceDescription_ToString(PJRT_DeviceDescription_ToString_Args& args) {
    give(args.device_description->text, args.to_string, args.to_string_size);
}

void Device_GetDescription(PJRT_Device_GetDescription_Args& args) {
    args.device_description = &args.device->description;
}
void Device_IsAddressable(PJRT_Device_IsAddressable_Args& args) { args.is_addressable = true; }
void Device_LocalHardwareId(PJRT_Device_LocalHardwareId_Args& args) { args.local_hardware_id = args.device->ordinal; }
void Device_AddressableMemories(PJRT_Device_AddressableMemories_Args& args) {
    args.memories = args.device->memory_pointers.data();
    args.num_memories = args.device->memory_pointers.size();
}
void Device_DefaultMemory(PJRT_Device_DefaultMemory_Args& args) {
    args.memory = &args.device->memory(MemoryKind::device);
}
void Device_GetAttributes(PJRT_Device_GetAttributes_Args& args) {
    give(args.device->description.attributes, args.attributes, args.num_attributes);
    args.device_attributes = nullptr;
    args.attributes_deleter = [](void*) {};
}

void Device_MemoryStats(PJRT_Device_MemoryStats_Args& args) {
    const MemoryStats stats = args.device->allocator->stats();
    args.bytes_in_use = stats.in_use;
    const auto set = [](int64_t& field, bool& is_set, int64_t value) {
        field = value;
        is_set = true;
    };
    set(args.peak_bytes_in_use, args.peak_bytes_in_use_is_set, stats.peak);
    set(args.num_allocs, args.num_allocs_is_set, stats.allocations);
    set(args.largest_alloc_size, args.largest_alloc_size_is_set, stats.largest);
    set(args.bytes_limit, args.bytes_limit_is_set, stats.limit);
    set(args.bytes_reserved, args.bytes_reserved_is_set, stats.reserved);
    set(args.peak_bytes_reserved, args.peak_bytes_reserved_is_set, stats.peak_reserved);
    set(args.largest_free_block_bytes, args.largest_free_block_bytes_is_set, stats.largest_free);
    set(args.bytes_reservable_limit, args.bytes_reservable_limit_is_set, stats.limit);
    args.pool_bytes_is_set = args.peak_pool_bytes_is_set = false;
}
void Device_ClearMemoryStats(PJRT_Device_ClearMemoryStats_Args& args) { args.device->allocator->clear_peaks(); }

static Memory& memory_of(PJRT_Memory* memory) { return *static_cast<Memory*>(memory); }
void Memory_Id(PJRT_Memory_Id_Args& args) { args.id = memory_of(args.memory).id; }
void Memory_Kind(PJRT_Memory_Kind_Args& args) {
    args.kind = kind_name(memory_of(args.memory).kind);
    args.kind_size = std::strlen(args.kind);
}
void Memory_Kind_Id(PJRT_Memory_Kind_Id_Args& args) { args.kind_id = static_cast<int>(memory_of(args.memory).kind); }
void Memory_DebugString(PJRT_Memory_DebugString_Args& args) {
    give(memory_of(args.memory).text, args.debug_string, args.debug_string_size);
}
void Memory_ToString(PJRT_Memory_ToString_Args& args) {
    give(memory_of(args.memory).text, args.to_string, args.to_string_size);
}
void Memory_AddressableByDevices(PJRT_Memory_AddressableByDevices_Args& args) {
    args.devices = memory_of(args.memory).devices;
    args.num_devices = 1;
}

}  // namespace npu::api
