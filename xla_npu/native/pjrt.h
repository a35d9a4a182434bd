// The PJRT C API, 0.112: names, field order and sizes as the published ABI has them, declared anew for this plugin.
// Structures may have grown by the time a caller is newer: every argument starts with the caller's own size, and a
// field added after 0.112 may be written only when it lies inside that size. tests/xla_npu/test_pjrt_abi.py compares
// all of this with an independent binding.
#pragma once
// clang-format off: structures are written as tables

#include <cstddef>
#include <cstdint>

extern "C" {

#define PJRT_OPAQUE(X) \
    X(PJRT_Client) X(PJRT_Device) X(PJRT_DeviceDescription) X(PJRT_TopologyDescription) X(PJRT_Event) \
    X(PJRT_Executable) X(PJRT_LoadedExecutable) X(PJRT_Buffer) X(PJRT_CopyToDeviceStream) X(PJRT_ExecuteContext) \
    X(PJRT_AsyncHostToDeviceTransferManager) X(PJRT_AsyncTrackingEvent) X(PJRT_FulfillAliasBufferCallback) \
    X(PJRT_SerializedExecutable) X(PJRT_SerializedTopology) X(PJRT_Layouts_MemoryLayout) \
    X(XLA_FFI_Error) X(XLA_FFI_CallFrame)
#define PJRT_DECLARE(name) struct name;
PJRT_OPAQUE(PJRT_DECLARE)
#undef PJRT_DECLARE
#undef PJRT_OPAQUE

typedef XLA_FFI_Error* XLA_FFI_Handler(XLA_FFI_CallFrame*);

constexpr int PJRT_API_MAJOR = 0;
constexpr int PJRT_API_MINOR = 112;

enum PJRT_Error_Code : uint32_t {
    PJRT_OK, PJRT_CANCELLED, PJRT_UNKNOWN, PJRT_INVALID_ARGUMENT, PJRT_DEADLINE_EXCEEDED, PJRT_NOT_FOUND,
    PJRT_ALREADY_EXISTS, PJRT_PERMISSION_DENIED, PJRT_RESOURCE_EXHAUSTED, PJRT_FAILED_PRECONDITION, PJRT_ABORTED,
    PJRT_OUT_OF_RANGE, PJRT_UNIMPLEMENTED, PJRT_INTERNAL, PJRT_UNAVAILABLE, PJRT_DATA_LOSS, PJRT_UNAUTHENTICATED
};

enum PJRT_Buffer_Type : uint32_t {
    PJRT_INVALID, PJRT_PRED, PJRT_S8, PJRT_S16, PJRT_S32, PJRT_S64, PJRT_U8, PJRT_U16, PJRT_U32, PJRT_U64, PJRT_F16,
    PJRT_F32, PJRT_F64, PJRT_BF16, PJRT_C64, PJRT_C128, PJRT_F8E5M2, PJRT_F8E4M3FN, PJRT_F8E4M3B11FNUZ,
    PJRT_F8E5M2FNUZ, PJRT_F8E4M3FNUZ, PJRT_S4, PJRT_U4, PJRT_TOKEN, PJRT_S2, PJRT_U2, PJRT_F8E4M3, PJRT_F8E3M4,
    PJRT_F8E8M0FNU, PJRT_F4E2M1FN, PJRT_S1, PJRT_U1, PJRT_TYPES
};

enum PJRT_HostBufferSemantics : uint32_t {
    PJRT_ONLY_DURING_CALL, PJRT_UNTIL_TRANSFER_COMPLETES, PJRT_ZERO_COPY, PJRT_MUTABLE_ZERO_COPY
};

enum PJRT_NamedValue_Type : uint32_t {
    PJRT_VALUE_STRING, PJRT_VALUE_INT64, PJRT_VALUE_INT64_LIST, PJRT_VALUE_FLOAT, PJRT_VALUE_BOOL
};

enum PJRT_Buffer_MemoryLayout_Type : uint32_t { PJRT_LAYOUT_TILED, PJRT_LAYOUT_STRIDES };

enum PJRT_Extension_Type : uint32_t {
    PJRT_EXTENSION_PROFILER = 1, PJRT_EXTENSION_STREAM = 3, PJRT_EXTENSION_LAYOUTS = 4, PJRT_EXTENSION_FFI = 5,
    PJRT_EXTENSION_MEMORY_DESCRIPTIONS = 6, PJRT_EXTENSION_SHARDINGS = 19, PJRT_EXTENSION_ABI_VERSION = 20
};

struct PJRT_Extension_Base {
    size_t struct_size;
    PJRT_Extension_Type type;
    PJRT_Extension_Base* next;
};

struct PJRT_Api_Version {
    size_t struct_size;
    PJRT_Extension_Base* extension_start;
    int major_version, minor_version;
};

// Almost every structure begins with its size and a chain of extensions; a few have no chain.
#define PJRT_ARGS(name, ...) struct name { size_t struct_size; PJRT_Extension_Base* extension_start; __VA_ARGS__ };
#define PJRT_SIZED(name, ...) struct name { size_t struct_size; __VA_ARGS__ };

typedef void (*PJRT_Error_PayloadVisitor)(const char* key, size_t key_size, const char* value, size_t value_size,
                                          void* user_arg);

// Errors and memories are not opaque: callers may go through a function table that each begins with.
struct PJRT_Error;
struct PJRT_Error_FunctionTable {
    size_t struct_size, instance_size;
    PJRT_Extension_Base* extension_start;
    void (*destroy)(PJRT_Error*);
    void (*message)(const PJRT_Error*, const char** message, size_t* message_size);
    PJRT_Error_Code (*get_code)(const PJRT_Error*);
    void (*for_each_payload)(const PJRT_Error*, PJRT_Error_PayloadVisitor, void* user_arg);
};
struct PJRT_Error {
    const PJRT_Error_FunctionTable* vtable;
};
struct PJRT_Memory;
PJRT_ARGS(PJRT_Memory_FunctionTable,
    size_t instance_struct_size; void* (*get_user_data)(PJRT_Memory*, const void* key);
    void (*set_user_data)(PJRT_Memory*, const void* key, void* data, void (*destructor)(void*));)
struct PJRT_Memory {
    const PJRT_Memory_FunctionTable* vtable;
};

PJRT_ARGS(PJRT_NamedValue,
    const char* name; size_t name_size; PJRT_NamedValue_Type type;
    union { const char* string_value; int64_t int64_value; const int64_t* int64_array_value; float float_value;
            bool bool_value; };
    size_t value_size;)
PJRT_ARGS(PJRT_Buffer_MemoryLayout_Tiled,
    const int64_t* minor_to_major; size_t minor_to_major_size; const int64_t* tile_dims; const size_t* tile_dim_sizes;
    size_t num_tiles;)
PJRT_ARGS(PJRT_Buffer_MemoryLayout_Strides, const int64_t* byte_strides; size_t num_byte_strides;)
PJRT_ARGS(PJRT_Buffer_MemoryLayout,
    union { PJRT_Buffer_MemoryLayout_Tiled tiled; PJRT_Buffer_MemoryLayout_Strides strides; };
    PJRT_Buffer_MemoryLayout_Type type;)
struct PJRT_LogicalDeviceIds {
    int replica, partition;
};

// ---- Error
PJRT_ARGS(PJRT_Error_Destroy_Args, PJRT_Error* error;)
PJRT_ARGS(PJRT_Error_Message_Args, PJRT_Error* error; const char* message; size_t message_size;)
PJRT_ARGS(PJRT_Error_GetCode_Args, PJRT_Error* error; PJRT_Error_Code code;)
PJRT_ARGS(PJRT_Error_ForEachPayload_Args, PJRT_Error* error; PJRT_Error_PayloadVisitor visitor; void* user_arg;)

// ---- Plugin
PJRT_ARGS(PJRT_Plugin_Initialize_Args, )
PJRT_ARGS(PJRT_Plugin_Attributes_Args, const PJRT_NamedValue* attributes; size_t num_attributes;)

// ---- Event
PJRT_ARGS(PJRT_Event_Destroy_Args, PJRT_Event* event;)
PJRT_ARGS(PJRT_Event_IsReady_Args, PJRT_Event* event; bool is_ready;)
PJRT_ARGS(PJRT_Event_Error_Args, PJRT_Event* event;)
PJRT_ARGS(PJRT_Event_Await_Args, PJRT_Event* event;)
PJRT_ARGS(PJRT_Event_OnReady_Args,
    PJRT_Event* event; void (*callback)(PJRT_Error* error, void* user_arg); void* user_arg;)
PJRT_ARGS(PJRT_Event_Create_Args, PJRT_Event* event;)
PJRT_ARGS(PJRT_Event_Set_Args,
    PJRT_Event* event; PJRT_Error_Code error_code; const char* error_message; size_t error_message_size;)

// ---- Client
PJRT_ARGS(PJRT_Program, char* code; size_t code_size; const char* format; size_t format_size;)
PJRT_ARGS(PJRT_ShapeSpec, const int64_t* dims; size_t num_dims; PJRT_Buffer_Type element_type;)
PJRT_ARGS(PJRT_Client_Create_Args,
    const PJRT_NamedValue* create_options; size_t num_options; void* kv_get_callback; void* kv_get_user_arg;
    void* kv_put_callback; void* kv_put_user_arg; PJRT_Client* client; void* kv_try_get_callback;
    void* kv_try_get_user_arg;)
PJRT_ARGS(PJRT_Client_Destroy_Args, PJRT_Client* client;)
PJRT_ARGS(PJRT_Client_PlatformName_Args, PJRT_Client* client; const char* platform_name; size_t platform_name_size;)
PJRT_ARGS(PJRT_Client_ProcessIndex_Args, PJRT_Client* client; int process_index;)
PJRT_ARGS(PJRT_Client_PlatformVersion_Args,
    PJRT_Client* client; const char* platform_version; size_t platform_version_size;)
PJRT_ARGS(PJRT_Client_Devices_Args, PJRT_Client* client; PJRT_Device* const* devices; size_t num_devices;)
PJRT_ARGS(PJRT_Client_AddressableDevices_Args,
    PJRT_Client* client; PJRT_Device* const* addressable_devices; size_t num_addressable_devices;)
PJRT_ARGS(PJRT_Client_LookupDevice_Args, PJRT_Client* client; int id; PJRT_Device* device;)
PJRT_ARGS(PJRT_Client_LookupAddressableDevice_Args,
    PJRT_Client* client; int local_hardware_id; PJRT_Device* addressable_device;)
PJRT_ARGS(PJRT_Client_AddressableMemories_Args,
    PJRT_Client* client; PJRT_Memory* const* addressable_memories; size_t num_addressable_memories;)
PJRT_ARGS(PJRT_Client_Compile_Args,
    PJRT_Client* client; const PJRT_Program* program; const char* compile_options; size_t compile_options_size;
    PJRT_LoadedExecutable* executable;)
PJRT_ARGS(PJRT_Client_DefaultDeviceAssignment_Args,
    PJRT_Client* client; int num_replicas; int num_partitions; size_t default_assignment_size;
    int* default_assignment;)
PJRT_ARGS(PJRT_Client_BufferFromHostBuffer_Args,
    PJRT_Client* client; const void* data; PJRT_Buffer_Type type; const int64_t* dims; size_t num_dims;
    const int64_t* byte_strides; size_t num_byte_strides; PJRT_HostBufferSemantics host_buffer_semantics;
    PJRT_Device* device; PJRT_Memory* memory; PJRT_Buffer_MemoryLayout* device_layout;
    PJRT_Event* done_with_host_buffer; PJRT_Buffer* buffer;)
PJRT_ARGS(PJRT_Client_CreateViewOfDeviceBuffer_Args,
    PJRT_Client* client; void* device_buffer_ptr; const int64_t* dims; size_t num_dims;
    PJRT_Buffer_Type element_type; PJRT_Buffer_MemoryLayout* layout; PJRT_Device* device;
    void (*on_delete_callback)(void* device_buffer_ptr, void* user_arg); void* on_delete_callback_arg;
    int64_t stream; PJRT_Buffer* buffer; PJRT_Memory* memory;)
PJRT_ARGS(PJRT_Client_TopologyDescription_Args, PJRT_Client* client; PJRT_TopologyDescription* topology;)
PJRT_ARGS(PJRT_Client_CreateBuffersForAsyncHostToDevice_Args,
    PJRT_Client* client; const PJRT_ShapeSpec* shape_specs; size_t num_shape_specs;
    PJRT_Buffer_MemoryLayout* const* device_layouts; size_t num_device_layouts; PJRT_Memory* memory;
    PJRT_AsyncHostToDeviceTransferManager* transfer_manager;)
PJRT_ARGS(PJRT_Client_DmaMap_Args, PJRT_Client* client; void* data; size_t size;)
PJRT_ARGS(PJRT_Client_DmaUnmap_Args, PJRT_Client* client; void* data;)
PJRT_ARGS(PJRT_Client_CreateUninitializedBuffer_Args,
    PJRT_Client* client; const int64_t* shape_dims; size_t shape_num_dims; PJRT_Buffer_Type shape_element_type;
    PJRT_Buffer_MemoryLayout* shape_layout; PJRT_Device* device; PJRT_Memory* memory; PJRT_Buffer* buffer;)
PJRT_ARGS(PJRT_Client_UpdateGlobalProcessInfo_Args, PJRT_Client* client; void* process_infos; size_t num_process_infos;)
PJRT_ARGS(PJRT_Client_CreateAliasBuffer_Args,
    PJRT_Client* client; PJRT_Memory* memory; const int64_t* shape_dims; size_t shape_num_dims;
    PJRT_Buffer_Type shape_element_type; PJRT_Buffer_MemoryLayout* shape_layout; PJRT_Buffer* alias_buffer;
    PJRT_FulfillAliasBufferCallback* fulfill_alias_buffer_cb;)
PJRT_ARGS(PJRT_Client_FulfillAliasBuffer_Args,
    PJRT_Client* client; PJRT_Buffer* buffer; PJRT_Error_Code status_code; const char* error_message;
    size_t error_message_size; PJRT_FulfillAliasBufferCallback* fulfill_alias_buffer_cb;)
PJRT_ARGS(PJRT_Client_CreateErrorBuffer_Args,
    PJRT_Client* client; PJRT_Error_Code error_code; const char* error_message; size_t error_message_size;
    const int64_t* shape_dims; size_t shape_num_dims; PJRT_Buffer_Type shape_element_type;
    PJRT_Buffer_MemoryLayout* shape_layout; PJRT_Memory* memory; PJRT_Buffer* buffer;
    const PJRT_NamedValue* payload; size_t num_payload;)
PJRT_ARGS(PJRT_Client_Load_Args,
    PJRT_Client* client; PJRT_Executable* executable; const char* compile_options; size_t compile_options_size;
    PJRT_LoadedExecutable* loaded_executable;)

// ---- DeviceDescription
PJRT_ARGS(PJRT_DeviceDescription_Id_Args, PJRT_DeviceDescription* device_description; int id;)
PJRT_ARGS(PJRT_DeviceDescription_ProcessIndex_Args, PJRT_DeviceDescription* device_description; int process_index;)
PJRT_ARGS(PJRT_DeviceDescription_Attributes_Args,
    PJRT_DeviceDescription* device_description; size_t num_attributes; const PJRT_NamedValue* attributes;)
PJRT_ARGS(PJRT_DeviceDescription_Kind_Args,
    PJRT_DeviceDescription* device_description; const char* device_kind; size_t device_kind_size;)
PJRT_ARGS(PJRT_DeviceDescription_DebugString_Args,
    PJRT_DeviceDescription* device_description; const char* debug_string; size_t debug_string_size;)
PJRT_ARGS(PJRT_DeviceDescription_ToString_Args,
    PJRT_DeviceDescription* device_description; const char* to_string; size_t to_string_size;)

// ---- Device
PJRT_ARGS(PJRT_Device_GetDescription_Args, PJRT_Device* device; PJRT_DeviceDescription* device_description;)
PJRT_ARGS(PJRT_Device_IsAddressable_Args, PJRT_Device* device; bool is_addressable;)
PJRT_ARGS(PJRT_Device_LocalHardwareId_Args, PJRT_Device* device; int local_hardware_id;)
PJRT_ARGS(PJRT_Device_AddressableMemories_Args, PJRT_Device* device; PJRT_Memory* const* memories; size_t num_memories;)
PJRT_ARGS(PJRT_Device_DefaultMemory_Args, PJRT_Device* device; PJRT_Memory* memory;)
PJRT_ARGS(PJRT_Device_MemoryStats_Args,
    PJRT_Device* device; int64_t bytes_in_use; int64_t peak_bytes_in_use; bool peak_bytes_in_use_is_set;
    int64_t num_allocs; bool num_allocs_is_set; int64_t largest_alloc_size; bool largest_alloc_size_is_set;
    int64_t bytes_limit; bool bytes_limit_is_set; int64_t bytes_reserved; bool bytes_reserved_is_set;
    int64_t peak_bytes_reserved; bool peak_bytes_reserved_is_set; int64_t bytes_reservable_limit;
    bool bytes_reservable_limit_is_set; int64_t largest_free_block_bytes; bool largest_free_block_bytes_is_set;
    int64_t pool_bytes; bool pool_bytes_is_set; int64_t peak_pool_bytes; bool peak_pool_bytes_is_set;
    int64_t peak_allocated_bytes; bool peak_allocated_bytes_is_set;)
PJRT_ARGS(PJRT_Device_PoisonExecution_Args,
    PJRT_Device* device; int launch_id; PJRT_Error_Code error_code; const char* error_message;
    size_t error_message_size; bool poisoned; const PJRT_NamedValue* payload; size_t num_payload;)
PJRT_ARGS(PJRT_Device_CreateAsyncTrackingEvent_Args,
    PJRT_Device* device; const char* description; size_t description_size; PJRT_AsyncTrackingEvent* event;)
PJRT_ARGS(PJRT_Device_GetAttributes_Args,
    PJRT_Device* device; const PJRT_NamedValue* attributes; size_t num_attributes; void* device_attributes;
    void (*attributes_deleter)(void*);)
PJRT_ARGS(PJRT_Device_ClearMemoryStats_Args, PJRT_Device* device;)

// ---- Memory
PJRT_ARGS(PJRT_Memory_Id_Args, PJRT_Memory* memory; int id;)
PJRT_ARGS(PJRT_Memory_Kind_Args, PJRT_Memory* memory; const char* kind; size_t kind_size;)
PJRT_ARGS(PJRT_Memory_DebugString_Args, PJRT_Memory* memory; const char* debug_string; size_t debug_string_size;)
PJRT_ARGS(PJRT_Memory_ToString_Args, PJRT_Memory* memory; const char* to_string; size_t to_string_size;)
PJRT_ARGS(PJRT_Memory_AddressableByDevices_Args, PJRT_Memory* memory; PJRT_Device* const* devices; size_t num_devices;)
PJRT_ARGS(PJRT_Memory_Kind_Id_Args, PJRT_Memory* memory; int kind_id;)

// ---- Executable
PJRT_SIZED(PJRT_LoadOptions, const char* computation_origin; size_t computation_origin_size; void* multi_slice_config;)
PJRT_ARGS(PJRT_Executable_Destroy_Args, PJRT_Executable* executable;)
PJRT_ARGS(PJRT_Executable_Name_Args,
    PJRT_Executable* executable; const char* executable_name; size_t executable_name_size;)
PJRT_ARGS(PJRT_Executable_NumReplicas_Args, PJRT_Executable* executable; size_t num_replicas;)
PJRT_ARGS(PJRT_Executable_NumPartitions_Args, PJRT_Executable* executable; size_t num_partitions;)
PJRT_ARGS(PJRT_Executable_NumOutputs_Args, PJRT_Executable* executable; size_t num_outputs;)
PJRT_ARGS(PJRT_Executable_SizeOfGeneratedCodeInBytes_Args, PJRT_Executable* executable; int64_t size_in_bytes;)
PJRT_ARGS(PJRT_Executable_GetCostAnalysis_Args,
    PJRT_Executable* executable; size_t num_properties; const PJRT_NamedValue* properties;)
PJRT_ARGS(PJRT_Executable_OutputMemoryKinds_Args,
    PJRT_Executable* executable; size_t num_outputs; const char* const* memory_kinds;
    const size_t* memory_kind_sizes;)
PJRT_ARGS(PJRT_Executable_OptimizedProgram_Args, PJRT_Executable* executable; PJRT_Program* program;)
PJRT_ARGS(PJRT_Executable_Serialize_Args,
    PJRT_Executable* executable; const char* serialized_bytes; size_t serialized_bytes_size;
    PJRT_SerializedExecutable* serialized_executable;
    void (*serialized_executable_deleter)(PJRT_SerializedExecutable*);)
PJRT_ARGS(PJRT_Executable_DeserializeAndLoad_Args,
    PJRT_Client* client; const char* serialized_executable; size_t serialized_executable_size;
    PJRT_LoadedExecutable* loaded_executable; const char* overridden_serialized_compile_options;
    size_t overridden_serialized_compile_options_size; PJRT_LoadOptions* load_options;)
PJRT_ARGS(PJRT_Compile_Args,
    PJRT_TopologyDescription* topology; const PJRT_Program* program; const char* compile_options;
    size_t compile_options_size; PJRT_Client* client; PJRT_Executable* executable;)
PJRT_ARGS(PJRT_Executable_OutputElementTypes_Args,
    PJRT_Executable* executable; const PJRT_Buffer_Type* output_types; size_t num_output_types;)
PJRT_ARGS(PJRT_Executable_OutputDimensions_Args,
    PJRT_Executable* executable; size_t num_outputs; const int64_t* dims; const size_t* dim_sizes;)
PJRT_ARGS(PJRT_Executable_Fingerprint_Args,
    PJRT_Executable* executable; const char* executable_fingerprint; size_t executable_fingerprint_size;)
PJRT_ARGS(PJRT_Executable_GetCompiledMemoryStats_Args,
    PJRT_Executable* executable; int64_t generated_code_size_in_bytes; int64_t argument_size_in_bytes;
    int64_t output_size_in_bytes; int64_t alias_size_in_bytes; int64_t temp_size_in_bytes;
    int64_t host_generated_code_size_in_bytes; int64_t host_argument_size_in_bytes;
    int64_t host_output_size_in_bytes; int64_t host_alias_size_in_bytes; int64_t host_temp_size_in_bytes;
    int64_t peak_memory_in_bytes; int64_t total_size_in_bytes; int64_t total_allocation_bytes;
    int64_t indefinite_allocations; int64_t peak_unpadded_heap_bytes;)
PJRT_ARGS(PJRT_Executable_GetCompileOptions_Args,
    PJRT_Executable* executable; const char* serialized_bytes; size_t serialized_bytes_size;
    void* serialized_compile_options; void (*serialized_compile_options_deleter)(void*);)
PJRT_ARGS(PJRT_Executable_ParameterMemoryKinds_Args,
    PJRT_Executable* executable; size_t num_parameters; const char* const* memory_kinds;
    const size_t* memory_kind_sizes;)

// ---- LoadedExecutable
PJRT_ARGS(PJRT_ExecuteOptions,
    void* send_callbacks; void* recv_callbacks; size_t num_send_ops; size_t num_recv_ops; int launch_id;
    const int64_t* non_donatable_input_indices; size_t num_non_donatable_input_indices;
    PJRT_ExecuteContext* context; const char* call_location; size_t num_tasks; const int* task_ids;
    const int64_t* incarnation_ids; void* multi_slice_config; bool use_major_to_minor_data_layout_for_callbacks;
    void* hlo_output_callbacks; size_t num_hlo_output_callbacks;)
PJRT_ARGS(PJRT_LoadedExecutable_Destroy_Args, PJRT_LoadedExecutable* executable;)
PJRT_ARGS(PJRT_LoadedExecutable_GetExecutable_Args,
    PJRT_LoadedExecutable* loaded_executable; PJRT_Executable* executable;)
PJRT_ARGS(PJRT_LoadedExecutable_AddressableDevices_Args,
    PJRT_LoadedExecutable* executable; PJRT_Device* const* addressable_devices; size_t num_addressable_devices;)
PJRT_ARGS(PJRT_LoadedExecutable_Delete_Args, PJRT_LoadedExecutable* executable;)
PJRT_ARGS(PJRT_LoadedExecutable_IsDeleted_Args, PJRT_LoadedExecutable* executable; bool is_deleted;)
PJRT_ARGS(PJRT_LoadedExecutable_Execute_Args,
    PJRT_LoadedExecutable* executable; PJRT_ExecuteOptions* options; PJRT_Buffer* const* const* argument_lists;
    size_t num_devices; size_t num_args; PJRT_Buffer** const* output_lists; PJRT_Event** device_complete_events;
    PJRT_Device* execute_device;)
PJRT_ARGS(PJRT_LoadedExecutable_Fingerprint_Args,
    PJRT_LoadedExecutable* executable; const char* executable_fingerprint; size_t executable_fingerprint_size;)
PJRT_ARGS(PJRT_LoadedExecutable_GetDeviceAssignment_Args,
    PJRT_LoadedExecutable* executable; const char* serialized_bytes; size_t serialized_bytes_size;
    void* serialized_device_assignment; void (*serialized_device_assignment_deleter)(void*);)
PJRT_ARGS(PJRT_LoadedExecutable_AddressableDeviceLogicalIds_Args,
    PJRT_LoadedExecutable* executable; const PJRT_LogicalDeviceIds* addressable_device_logical_ids;
    size_t num_addressable_device_logical_ids;)

// ---- Buffer
PJRT_ARGS(PJRT_Buffer_Destroy_Args, PJRT_Buffer* buffer;)
PJRT_ARGS(PJRT_Buffer_ElementType_Args, PJRT_Buffer* buffer; PJRT_Buffer_Type type;)
PJRT_ARGS(PJRT_Buffer_Dimensions_Args, PJRT_Buffer* buffer; const int64_t* dims; size_t num_dims;)
PJRT_ARGS(PJRT_Buffer_UnpaddedDimensions_Args, PJRT_Buffer* buffer; const int64_t* unpadded_dims; size_t num_dims;)
PJRT_ARGS(PJRT_Buffer_DynamicDimensionIndices_Args,
    PJRT_Buffer* buffer; const size_t* dynamic_dim_indices; size_t num_dynamic_dims;)
PJRT_ARGS(PJRT_Buffer_GetMemoryLayout_Args, PJRT_Buffer* buffer; PJRT_Buffer_MemoryLayout layout;)
PJRT_ARGS(PJRT_Buffer_OnDeviceSizeInBytes_Args, PJRT_Buffer* buffer; size_t on_device_size_in_bytes;)
PJRT_ARGS(PJRT_Buffer_Device_Args, PJRT_Buffer* buffer; PJRT_Device* device;)
PJRT_ARGS(PJRT_Buffer_Memory_Args, PJRT_Buffer* buffer; PJRT_Memory* memory;)
PJRT_ARGS(PJRT_Buffer_Delete_Args, PJRT_Buffer* buffer;)
PJRT_ARGS(PJRT_Buffer_IsDeleted_Args, PJRT_Buffer* buffer; bool is_deleted;)
PJRT_ARGS(PJRT_Buffer_CopyToDevice_Args, PJRT_Buffer* buffer; PJRT_Device* dst_device; PJRT_Buffer* dst_buffer;)
PJRT_ARGS(PJRT_Buffer_ToHostBuffer_Args,
    PJRT_Buffer* src; PJRT_Buffer_MemoryLayout* host_layout; void* dst; size_t dst_size; PJRT_Event* event;)
PJRT_ARGS(PJRT_Buffer_IsOnCpu_Args, PJRT_Buffer* buffer; bool is_on_cpu;)
PJRT_ARGS(PJRT_Buffer_ReadyEvent_Args, PJRT_Buffer* buffer; PJRT_Event* event;)
PJRT_ARGS(PJRT_Buffer_UnsafePointer_Args, PJRT_Buffer* buffer; size_t buffer_pointer;)
PJRT_ARGS(PJRT_Buffer_IncreaseExternalReferenceCount_Args, PJRT_Buffer* buffer;)
PJRT_ARGS(PJRT_Buffer_DecreaseExternalReferenceCount_Args, PJRT_Buffer* buffer;)
PJRT_ARGS(PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args, PJRT_Buffer* buffer; void* device_memory_ptr;)
PJRT_ARGS(PJRT_Buffer_CopyToMemory_Args, PJRT_Buffer* buffer; PJRT_Memory* dst_memory; PJRT_Buffer* dst_buffer;)
PJRT_ARGS(PJRT_Buffer_CopyRawToHost_Args,
    PJRT_Buffer* buffer; void* dst; int64_t offset; int64_t transfer_size; PJRT_Event* event;)
PJRT_SIZED(PJRT_Buffer_CopyRawToHostFuture_Callback_Args,
    void* callback_data; PJRT_Error_Code error_code; const char* error_message; size_t error_message_size; void* dst;)
PJRT_ARGS(PJRT_Buffer_CopyRawToHostFuture_Args,
    PJRT_Buffer* buffer; int64_t offset; int64_t transfer_size; PJRT_Event* event; void* callback_data;
    void (*future_ready_callback)(PJRT_Buffer_CopyRawToHostFuture_Callback_Args*);)
PJRT_SIZED(PJRT_Buffer_DonateWithControlDependency_Callback_Args,
    void* callback_data; PJRT_Error_Code error_code; const char* error_message; size_t error_message_size;)
PJRT_ARGS(PJRT_Buffer_DonateWithControlDependency_Args,
    PJRT_Buffer* buffer; void* callback_data;
    void (*dependency_ready_callback)(PJRT_Buffer_DonateWithControlDependency_Callback_Args*);
    PJRT_Buffer* out_buffer;)
PJRT_ARGS(PJRT_Buffer_Bitcast_Args,
    PJRT_Buffer* buffer; PJRT_Buffer_Type element_type; const int64_t* dims; size_t num_dims;
    PJRT_Buffer_MemoryLayout* device_layout; PJRT_Buffer* out_buffer;)

// ---- CopyToDeviceStream
struct PJRT_Chunk {
    void* data;
    size_t size;
    void (*deleter)(void*, void*);
    void* deleter_arg;
};
PJRT_ARGS(PJRT_CopyToDeviceStream_Destroy_Args, PJRT_CopyToDeviceStream* stream;)
PJRT_ARGS(PJRT_CopyToDeviceStream_AddChunk_Args,
    PJRT_CopyToDeviceStream* stream; PJRT_Chunk* chunk; PJRT_Event* transfer_complete;)
PJRT_ARGS(PJRT_CopyToDeviceStream_TotalBytes_Args, PJRT_CopyToDeviceStream* stream; int64_t total_bytes;)
PJRT_ARGS(PJRT_CopyToDeviceStream_GranuleSize_Args, PJRT_CopyToDeviceStream* stream; int64_t granule_size_in_bytes;)
PJRT_ARGS(PJRT_CopyToDeviceStream_CurrentBytes_Args, PJRT_CopyToDeviceStream* stream; int64_t current_bytes;)

// ---- TopologyDescription
PJRT_ARGS(PJRT_TopologyDescription_Create_Args,
    const char* topology_name; size_t topology_name_size; const PJRT_NamedValue* create_options; size_t num_options;
    PJRT_TopologyDescription* topology;)
PJRT_ARGS(PJRT_TopologyDescription_Destroy_Args, PJRT_TopologyDescription* topology;)
PJRT_ARGS(PJRT_TopologyDescription_PlatformName_Args,
    PJRT_TopologyDescription* topology; const char* platform_name; size_t platform_name_size;)
PJRT_ARGS(PJRT_TopologyDescription_PlatformVersion_Args,
    PJRT_TopologyDescription* topology; const char* platform_version; size_t platform_version_size;)
PJRT_ARGS(PJRT_TopologyDescription_GetDeviceDescriptions_Args,
    PJRT_TopologyDescription* topology; PJRT_DeviceDescription* const* descriptions; size_t num_descriptions;)
PJRT_ARGS(PJRT_TopologyDescription_Serialize_Args,
    PJRT_TopologyDescription* topology; const char* serialized_bytes; size_t serialized_bytes_size;
    PJRT_SerializedTopology* serialized_topology; void (*serialized_topology_deleter)(PJRT_SerializedTopology*);)
PJRT_ARGS(PJRT_TopologyDescription_Attributes_Args,
    PJRT_TopologyDescription* topology; const PJRT_NamedValue* attributes; size_t num_attributes;)
PJRT_ARGS(PJRT_TopologyDescription_Deserialize_Args,
    const char* serialized_topology; size_t serialized_topology_size; PJRT_TopologyDescription* topology;)
PJRT_ARGS(PJRT_TopologyDescription_Fingerprint_Args, PJRT_TopologyDescription* topology; size_t fingerprint;)
PJRT_ARGS(PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace_Args,
    PJRT_TopologyDescription* topology; int memory_space_kind_id; const int64_t* dims; size_t num_dims;
    PJRT_Buffer_Type element_type; PJRT_Buffer_MemoryLayout* layout; const char* serialized_shape;
    size_t serialized_shape_size; void (*serialized_shape_deleter)(const char*);)
PJRT_ARGS(PJRT_TopologyDescription_GetMemorySpaceKindIds_Args,
    PJRT_TopologyDescription* topology; const int* memory_space_kind_ids; size_t num_memory_space_kind_ids;)

// ---- ExecuteContext
PJRT_ARGS(PJRT_ExecuteContext_Create_Args, PJRT_ExecuteContext* context;)
PJRT_ARGS(PJRT_ExecuteContext_Destroy_Args, PJRT_ExecuteContext* context;)

// ---- AsyncHostToDeviceTransferManager
PJRT_ARGS(PJRT_AsyncHostToDeviceTransferManager_Destroy_Args, PJRT_AsyncHostToDeviceTransferManager* transfer_manager;)
PJRT_ARGS(PJRT_AsyncHostToDeviceTransferManager_TransferData_Args,
    PJRT_AsyncHostToDeviceTransferManager* transfer_manager; int buffer_index; const void* data; int64_t offset;
    int64_t transfer_size; bool is_last_transfer; PJRT_Event* done_with_h2d_transfer;)
PJRT_ARGS(PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args,
    PJRT_AsyncHostToDeviceTransferManager* transfer_manager; int buffer_index; PJRT_Buffer* buffer_out;)
PJRT_ARGS(PJRT_AsyncHostToDeviceTransferManager_Device_Args,
    PJRT_AsyncHostToDeviceTransferManager* transfer_manager; PJRT_Device* device_out;)
PJRT_ARGS(PJRT_AsyncHostToDeviceTransferManager_BufferCount_Args,
    PJRT_AsyncHostToDeviceTransferManager* transfer_manager; size_t buffer_count;)
PJRT_ARGS(PJRT_AsyncHostToDeviceTransferManager_BufferSize_Args,
    PJRT_AsyncHostToDeviceTransferManager* transfer_manager; int buffer_index; size_t buffer_size;)
PJRT_ARGS(PJRT_AsyncHostToDeviceTransferManager_SetBufferError_Args,
    PJRT_AsyncHostToDeviceTransferManager* transfer_manager; int buffer_index; PJRT_Error_Code error_code;
    const char* error_message; size_t error_message_size;)
PJRT_ARGS(PJRT_AsyncHostToDeviceTransferManager_AddMetadata_Args,
    PJRT_AsyncHostToDeviceTransferManager* transfer_manager; const PJRT_NamedValue* transfer_metadata;
    size_t num_metadata;)
PJRT_ARGS(PJRT_AsyncHostToDeviceTransferManager_TransferLiteral_Args,
    PJRT_AsyncHostToDeviceTransferManager* transfer_manager; int buffer_index; const void* data;
    const int64_t* shape_dims; size_t shape_num_dims; PJRT_Buffer_Type shape_element_type;
    PJRT_Buffer_MemoryLayout* shape_layout; PJRT_Event* done_with_h2d_transfer;)

// ---- AsyncTrackingEvent
PJRT_ARGS(PJRT_AsyncTrackingEvent_Destroy_Args, PJRT_AsyncTrackingEvent* event;)

// ---- extension Layouts
PJRT_ARGS(PJRT_Layouts_MemoryLayout_Destroy_Args, PJRT_Layouts_MemoryLayout* layout;)
PJRT_ARGS(PJRT_Layouts_MemoryLayout_Serialize_Args,
    PJRT_Layouts_MemoryLayout* layout; const char* serialized_bytes; size_t serialized_bytes_size;
    void* serialized_layout; void (*serialized_layout_deleter)(void*);)
PJRT_ARGS(PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args,
    PJRT_Client* client; PJRT_Buffer_Type type; const int64_t* dims; size_t num_dims;
    PJRT_Layouts_MemoryLayout* layout;)
PJRT_ARGS(PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args, PJRT_Buffer* buffer; PJRT_Layouts_MemoryLayout* layout;)
PJRT_ARGS(PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args,
    PJRT_TopologyDescription* topology_description; PJRT_Buffer_Type type; const int64_t* dims; size_t num_dims;
    PJRT_Layouts_MemoryLayout* layout;)
PJRT_ARGS(PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args,
    PJRT_Executable* executable; size_t num_outputs; PJRT_Layouts_MemoryLayout** layouts;)
PJRT_ARGS(PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args,
    PJRT_Executable* executable; size_t num_parameters; PJRT_Layouts_MemoryLayout** layouts;)

// ---- extension Shardings
PJRT_ARGS(PJRT_Shardings_PJRT_Executable_ParameterShardings_Args,
    PJRT_Executable* executable; size_t num_parameters; const char* const* shardings; const size_t* sharding_sizes;)
PJRT_ARGS(PJRT_Shardings_PJRT_Executable_OutputShardings_Args,
    PJRT_Executable* executable; size_t num_outputs; const char* const* shardings; const size_t* sharding_sizes;)

// ---- extension FFI
PJRT_ARGS(PJRT_FFI_Type_Register_Args, const char* type_name; size_t type_name_size; int64_t type_id; void* type_info;)
struct PJRT_FFI_UserData {
    int64_t type_id;
    void* data;
};
PJRT_ARGS(PJRT_FFI_UserData_Add_Args, PJRT_ExecuteContext* context; PJRT_FFI_UserData user_data;)
PJRT_SIZED(PJRT_FFI_Register_Handler_Args,
    const char* target_name; size_t target_name_size; XLA_FFI_Handler* handler; const char* platform_name;
    size_t platform_name_size; uint32_t traits;)

// ---- extension MemoryDescriptions
PJRT_ARGS(PJRT_DeviceDescription_MemoryDescriptions_Args,
    PJRT_DeviceDescription* device_description; void* memory_descriptions; size_t num_memory_descriptions;
    size_t default_memory_index;)
PJRT_ARGS(PJRT_MemoryDescription_Kind_Args,
    const char* memory_description; const char* kind; size_t kind_size; int kind_id;)

// ---- extension Stream
PJRT_SIZED(PJRT_Get_Stream_For_External_Ready_Events_Args, PJRT_Device* device; int64_t stream;)
PJRT_SIZED(PJRT_Wait_Until_Buffer_Ready_On_Stream_Args, int64_t stream; PJRT_Buffer* buffer;)

#undef PJRT_ARGS
#undef PJRT_SIZED

// The function table, in order.
#define PJRT_SLOTS(X) \
    X(Error_Destroy) X(Error_Message) X(Error_GetCode) X(Plugin_Initialize) X(Plugin_Attributes) X(Event_Destroy) \
    X(Event_IsReady) X(Event_Error) X(Event_Await) X(Event_OnReady) X(Client_Create) X(Client_Destroy) \
    X(Client_PlatformName) X(Client_ProcessIndex) X(Client_PlatformVersion) X(Client_Devices) \
    X(Client_AddressableDevices) X(Client_LookupDevice) X(Client_LookupAddressableDevice) \
    X(Client_AddressableMemories) X(Client_Compile) X(Client_DefaultDeviceAssignment) \
    X(Client_BufferFromHostBuffer) X(DeviceDescription_Id) X(DeviceDescription_ProcessIndex) \
    X(DeviceDescription_Attributes) X(DeviceDescription_Kind) X(DeviceDescription_DebugString) \
    X(DeviceDescription_ToString) X(Device_GetDescription) X(Device_IsAddressable) X(Device_LocalHardwareId) \
    X(Device_AddressableMemories) X(Device_DefaultMemory) X(Device_MemoryStats) X(Memory_Id) X(Memory_Kind) \
    X(Memory_DebugString) X(Memory_ToString) X(Memory_AddressableByDevices) X(Executable_Destroy) \
    X(Executable_Name) X(Executable_NumReplicas) X(Executable_NumPartitions) X(Executable_NumOutputs) \
    X(Executable_SizeOfGeneratedCodeInBytes) X(Executable_GetCostAnalysis) X(Executable_OutputMemoryKinds) \
    X(Executable_OptimizedProgram) X(Executable_Serialize) X(LoadedExecutable_Destroy) \
    X(LoadedExecutable_GetExecutable) X(LoadedExecutable_AddressableDevices) X(LoadedExecutable_Delete) \
    X(LoadedExecutable_IsDeleted) X(LoadedExecutable_Execute) X(Executable_DeserializeAndLoad) \
    X(LoadedExecutable_Fingerprint) X(Buffer_Destroy) X(Buffer_ElementType) X(Buffer_Dimensions) \
    X(Buffer_UnpaddedDimensions) X(Buffer_DynamicDimensionIndices) X(Buffer_GetMemoryLayout) \
    X(Buffer_OnDeviceSizeInBytes) X(Buffer_Device) X(Buffer_Memory) X(Buffer_Delete) X(Buffer_IsDeleted) \
    X(Buffer_CopyToDevice) X(Buffer_ToHostBuffer) X(Buffer_IsOnCpu) X(Buffer_ReadyEvent) X(Buffer_UnsafePointer) \
    X(Buffer_IncreaseExternalReferenceCount) X(Buffer_DecreaseExternalReferenceCount) \
    X(Buffer_OpaqueDeviceMemoryDataPointer) X(CopyToDeviceStream_Destroy) X(CopyToDeviceStream_AddChunk) \
    X(CopyToDeviceStream_TotalBytes) X(CopyToDeviceStream_GranuleSize) X(CopyToDeviceStream_CurrentBytes) \
    X(TopologyDescription_Create) X(TopologyDescription_Destroy) X(TopologyDescription_PlatformName) \
    X(TopologyDescription_PlatformVersion) X(TopologyDescription_GetDeviceDescriptions) \
    X(TopologyDescription_Serialize) X(TopologyDescription_Attributes) X(Compile) X(Executable_OutputElementTypes) \
    X(Executable_OutputDimensions) X(Buffer_CopyToMemory) X(Client_CreateViewOfDeviceBuffer) \
    X(Executable_Fingerprint) X(Client_TopologyDescription) X(Executable_GetCompiledMemoryStats) X(Memory_Kind_Id) \
    X(ExecuteContext_Create) X(ExecuteContext_Destroy) X(Buffer_CopyRawToHost) \
    X(AsyncHostToDeviceTransferManager_Destroy) X(AsyncHostToDeviceTransferManager_TransferData) \
    X(Client_CreateBuffersForAsyncHostToDevice) X(AsyncHostToDeviceTransferManager_RetrieveBuffer) \
    X(AsyncHostToDeviceTransferManager_Device) X(AsyncHostToDeviceTransferManager_BufferCount) \
    X(AsyncHostToDeviceTransferManager_BufferSize) X(AsyncHostToDeviceTransferManager_SetBufferError) \
    X(AsyncHostToDeviceTransferManager_AddMetadata) X(Client_DmaMap) X(Client_DmaUnmap) \
    X(Client_CreateUninitializedBuffer) X(Client_UpdateGlobalProcessInfo) X(TopologyDescription_Deserialize) \
    X(Client_CreateAliasBuffer) X(Client_FulfillAliasBuffer) X(LoadedExecutable_GetDeviceAssignment) \
    X(Client_CreateErrorBuffer) X(AsyncHostToDeviceTransferManager_TransferLiteral) X(Buffer_CopyRawToHostFuture) \
    X(Device_PoisonExecution) X(Device_CreateAsyncTrackingEvent) X(AsyncTrackingEvent_Destroy) \
    X(Executable_GetCompileOptions) X(Buffer_DonateWithControlDependency) X(Event_Create) X(Event_Set) \
    X(Device_GetAttributes) X(Client_Load) X(LoadedExecutable_AddressableDeviceLogicalIds) X(Buffer_Bitcast) \
    X(Error_ForEachPayload) X(TopologyDescription_Fingerprint) X(Executable_ParameterMemoryKinds) \
    X(Device_ClearMemoryStats) X(TopologyDescription_MakeCanonicalShapeForMemorySpace) \
    X(TopologyDescription_GetMemorySpaceKindIds)

#define PJRT_SLOT(name) PJRT_Error* (*name)(PJRT_##name##_Args*);
struct PJRT_Api {
    size_t struct_size;
    PJRT_Extension_Base* extension_start;
    PJRT_Api_Version pjrt_api_version;
    PJRT_SLOTS(PJRT_SLOT)
};
#undef PJRT_SLOT

// The function tables of extensions.
#define PJRT_EXTENSION_SLOT(name) PJRT_Error* (*name)(PJRT_##name##_Args*);
#define PJRT_LAYOUTS_SLOTS(X) \
    X(Layouts_MemoryLayout_Destroy) X(Layouts_MemoryLayout_Serialize) X(Layouts_PJRT_Client_GetDefaultLayout) \
    X(Layouts_PJRT_Buffer_MemoryLayout) X(Layouts_PJRT_Topology_GetDefaultLayout) \
    X(Layouts_PJRT_Executable_GetOutputLayouts) X(Layouts_PJRT_Executable_GetParameterLayouts)
#define PJRT_SHARDINGS_SLOTS(X) \
    X(Shardings_PJRT_Executable_ParameterShardings) X(Shardings_PJRT_Executable_OutputShardings)
#define PJRT_FFI_SLOTS(X) X(FFI_Type_Register) X(FFI_UserData_Add) X(FFI_Register_Handler)
struct PJRT_Layouts_Extension {
    PJRT_Extension_Base base;
    PJRT_LAYOUTS_SLOTS(PJRT_EXTENSION_SLOT)
};
struct PJRT_Shardings_Extension {
    PJRT_Extension_Base base;
    PJRT_SHARDINGS_SLOTS(PJRT_EXTENSION_SLOT)
};
struct PJRT_FFI_Extension {
    PJRT_Extension_Base base;
    PJRT_FFI_SLOTS(PJRT_EXTENSION_SLOT)
};
#define PJRT_STREAM_SLOTS(X) X(Get_Stream_For_External_Ready_Events) X(Wait_Until_Buffer_Ready_On_Stream)
struct PJRT_Stream_Extension {
    PJRT_Extension_Base base;
    PJRT_Error* (*get_stream)(PJRT_Get_Stream_For_External_Ready_Events_Args*);
    PJRT_Error* (*wait_stream)(PJRT_Wait_Until_Buffer_Ready_On_Stream_Args*);
};
#undef PJRT_EXTENSION_SLOT

// ---- the profiler, an interface of its own
struct PLUGIN_Profiler;
struct PLUGIN_Profiler_Error;
#define PLUGIN_ARGS(name, ...) struct PLUGIN_Profiler_##name { size_t struct_size; __VA_ARGS__ };
PLUGIN_ARGS(Error_Destroy_Args, void* priv; PLUGIN_Profiler_Error* error;)
PLUGIN_ARGS(Error_Message_Args, void* priv; PLUGIN_Profiler_Error* error; const char* message; size_t message_size;)
PLUGIN_ARGS(Error_GetCode_Args, void* priv; PLUGIN_Profiler_Error* error; int code;)
PLUGIN_ARGS(Create_Args, const char* options; size_t options_size; PLUGIN_Profiler* profiler;)
PLUGIN_ARGS(Destroy_Args, PLUGIN_Profiler* profiler;)
PLUGIN_ARGS(Start_Args, PLUGIN_Profiler* profiler;)
PLUGIN_ARGS(Stop_Args, PLUGIN_Profiler* profiler;)
PLUGIN_ARGS(CollectData_Args, PLUGIN_Profiler* profiler; uint8_t* buffer; size_t buffer_size_in_bytes;)
PLUGIN_ARGS(Api,
    void* priv; void (*error_destroy)(PLUGIN_Profiler_Error_Destroy_Args*);
    void (*error_message)(PLUGIN_Profiler_Error_Message_Args*);
    PLUGIN_Profiler_Error* (*error_get_code)(PLUGIN_Profiler_Error_GetCode_Args*);
    PLUGIN_Profiler_Error* (*create)(PLUGIN_Profiler_Create_Args*);
    PLUGIN_Profiler_Error* (*destroy)(PLUGIN_Profiler_Destroy_Args*);
    PLUGIN_Profiler_Error* (*start)(PLUGIN_Profiler_Start_Args*);
    PLUGIN_Profiler_Error* (*stop)(PLUGIN_Profiler_Stop_Args*);
    PLUGIN_Profiler_Error* (*collect_data)(PLUGIN_Profiler_CollectData_Args*);)
#undef PLUGIN_ARGS
struct PJRT_Profiler_Extension {
    PJRT_Extension_Base base;
    PLUGIN_Profiler_Api* profiler_api;
    int64_t traceme_context_id;
};

}  // extern "C"
