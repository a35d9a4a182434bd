// The client, its devices and their memories.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "allocator.h"
#include "pjrt.h"
#include "stream.h"

namespace npu {
class Workers;
class Communicators;

// PJRT's attributes own nothing: the values live here.
struct Attributes {
    void add(std::string name, int64_t value);
    void add(std::string name, std::vector<int64_t> values);
    void add(std::string name, std::string value);
    void add(std::string name, double value);
    std::vector<PJRT_NamedValue> values;

private:
    PJRT_NamedValue& append(std::string&& name);
    std::vector<std::unique_ptr<std::string>> texts_;
    std::vector<std::unique_ptr<std::vector<int64_t>>> lists_;
};

// What the three memories of a device are, in the order of their kinds' numbers.
enum class MemoryKind { device, pinned_host, unpinned_host };
constexpr int memory_kinds = 3;
const char* kind_name(MemoryKind kind);
// Throws INVALID_ARGUMENT for a name that is no kind.
MemoryKind kind_named(const std::string& name);

struct Memory : PJRT_Memory {
    Memory(PJRT_Device& device, MemoryKind kind, int id);
    ~Memory();
    PJRT_Device& device;
    PJRT_Device* const devices[1];
    const MemoryKind kind;
    const int id;
    const std::string text;
    std::mutex mutex;  // guards what the framework keeps with the memory
    std::map<const void*, std::pair<void*, void (*)(void*)>> user_data;
};
}  // namespace npu

struct PJRT_DeviceDescription {
    int id = 0, process_index = 0;
    std::string kind, text;
    npu::Attributes attributes;
};

struct PJRT_TopologyDescription {
    std::string soc;
    std::vector<std::unique_ptr<PJRT_DeviceDescription>> descriptions;
    std::vector<PJRT_DeviceDescription*> pointers;
    npu::Attributes attributes;
    std::string version;
    PJRT_Client* client = nullptr;  // of the topology that a client describes
};

struct PJRT_Device {
    PJRT_Device(PJRT_Client& client, PJRT_DeviceDescription& description, int ordinal, double memory_fraction);
    // Makes this the calling thread's device, as CANN wants before almost every call.
    void activate() const;
    npu::Memory& memory(npu::MemoryKind kind) { return *memories[static_cast<int>(kind)]; }
    // Memory of the wanted kind. Throws RESOURCE_EXHAUSTED.
    npu::BlockPtr allocate(npu::MemoryKind kind, size_t bytes);
    // Memory for what models compute in between. All models of the compute stream share it, since they run one after
    // the other; who needs more gets a larger one, which those that come next share.
    npu::BlockPtr work_area(size_t bytes);

    PJRT_Client& client;
    PJRT_DeviceDescription& description;
    const int ordinal;
    const std::string name;
    std::vector<std::unique_ptr<npu::Memory>> memories;
    std::vector<PJRT_Memory*> memory_pointers;
    std::unique_ptr<npu::Allocator> allocator;
    std::unique_ptr<npu::Stream> compute, uploads, downloads;
    npu::TaskThread upload_thread, download_thread;  // copies from and to memory that is not pinned
    npu::TaskThread launcher;                        // launches programs that meet other devices in collectives
    std::mutex launching;                            // held while a model is put on the compute stream

private:
    std::mutex mutex_;
    std::weak_ptr<npu::Block> work_area_;  // of the models that are loaded
};

struct PJRT_Client {
    PJRT_Client(const PJRT_NamedValue* options, size_t count);
    ~PJRT_Client();

    std::string platform_version;
    std::unique_ptr<PJRT_TopologyDescription> topology;
    std::vector<std::unique_ptr<PJRT_Device>> devices;
    std::vector<PJRT_Device*> device_pointers;
    std::vector<PJRT_Memory*> memory_pointers;
    std::mutex launch_order;  // of programs that devices must meet in the same order
    std::unique_ptr<npu::Workers> workers;
    std::unique_ptr<npu::Communicators> communicators;
};

namespace npu {
constexpr char platform_name[] = "npu";
std::unique_ptr<PJRT_TopologyDescription> make_topology(const std::string& soc, int devices);
}  // namespace npu
