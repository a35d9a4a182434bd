// Topologies: the devices of a machine, with or without the machine. What a program can be compiled for ahead of time.
#include <cstdlib>
#include <cstring>
#include <functional>

#include "api.h"
#include "cann.h"
#include "device.h"
#include "executable.h"

namespace npu {
namespace {
constexpr char magic[] = "npu-topology ";

// From "SOC:COUNT", as a user writes it and as it is serialised.
std::unique_ptr<PJRT_TopologyDescription> parse(const std::string& text) {
    const size_t colon = text.rfind(':');
    const int devices = colon == std::string::npos ? 0 : std::atoi(text.c_str() + colon + 1);
    if (colon == 0 || devices < 1) {
        fail(PJRT_INVALID_ARGUMENT, "'%s' is no topology: SOC:DEVICES is wanted, for example Ascend910_9391:8",
             text.c_str());
    }
    return make_topology(text.substr(0, colon), devices);
}

std::string text_of(const PJRT_TopologyDescription& topology) {
    return topology.soc + ":" + std::to_string(topology.descriptions.size());
}
}  // namespace

namespace api {

// Without a name: this machine's.
void TopologyDescription_Create(PJRT_TopologyDescription_Create_Args& args) {
    if (args.topology_name_size) {
        args.topology = parse({args.topology_name, args.topology_name_size}).release();
        return;
    }
    load_cann();
    uint32_t devices = 0;
    NPU_CALL(aclrtGetDeviceCount, &devices);
    args.topology = make_topology(cann().aclrtGetSocName(), static_cast<int>(devices)).release();
}
void TopologyDescription_Destroy(PJRT_TopologyDescription_Destroy_Args& args) {
    if (args.topology && !args.topology->client) delete args.topology;  // a client's lives with the client
}
void TopologyDescription_PlatformName(PJRT_TopologyDescription_PlatformName_Args& args) {
    args.platform_name = platform_name;
    args.platform_name_size = std::strlen(platform_name);
}
void TopologyDescription_PlatformVersion(PJRT_TopologyDescription_PlatformVersion_Args& args) {
    args.platform_version = args.topology->version.data();
    args.platform_version_size = args.topology->version.size();
}
void TopologyDescription_GetDeviceDescriptions(PJRT_TopologyDescription_GetDeviceDescriptions_Args& args) {
    args.descriptions = args.topology->pointers.data();
    args.num_descriptions = args.topology->pointers.size();
}
void TopologyDescription_Attributes(PJRT_TopologyDescription_Attributes_Args& args) {
    args.attributes = args.topology->attributes.values.data();
    args.num_attributes = args.topology->attributes.values.size();
}
void TopologyDescription_Fingerprint(PJRT_TopologyDescription_Fingerprint_Args& args) {
    args.fingerprint = std::hash<std::string>{}(text_of(*args.topology) + args.topology->version);
}
void TopologyDescription_Serialize(PJRT_TopologyDescription_Serialize_Args& args) {
    auto* text = new std::string(magic + text_of(*args.topology));
    args.serialized_bytes = text->data();
    args.serialized_bytes_size = text->size();
    args.serialized_topology = reinterpret_cast<PJRT_SerializedTopology*>(text);
    args.serialized_topology_deleter = [](PJRT_SerializedTopology* given) {
        delete reinterpret_cast<std::string*>(given);
    };
}
void TopologyDescription_Deserialize(PJRT_TopologyDescription_Deserialize_Args& args) {
    const std::string text(args.serialized_topology, args.serialized_topology_size);
    if (text.rfind(magic, 0) != 0) fail(PJRT_INVALID_ARGUMENT, "This is no serialised topology of this plugin");
    args.topology = parse(text.substr(std::strlen(magic))).release();
}
void TopologyDescription_GetMemorySpaceKindIds(PJRT_TopologyDescription_GetMemorySpaceKindIds_Args& args) {
    static constexpr int ids[memory_kinds] = {0, 1, 2};
    args.memory_space_kind_ids = ids;
    args.num_memory_space_kind_ids = memory_kinds;
}

}  // namespace api
}  // namespace npu

// What a caller attaches to executions through extensions; programs here take none of it.
struct PJRT_ExecuteContext {};

namespace npu::api {
void ExecuteContext_Create(PJRT_ExecuteContext_Create_Args& args) { args.context = new PJRT_ExecuteContext; }
void ExecuteContext_Destroy(PJRT_ExecuteContext_Destroy_Args& args) { delete args.context; }
}  // namespace npu::api
