// Executables: a program, and a program that is loaded on devices.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "program.h"

namespace npu {

// The layout that all arrays of a rank have: dense and row-major. Lives as long as the process.
PJRT_Layouts_MemoryLayout* dense_layout(size_t rank);

// One model on one device, with the lists of buffers that it is run with.
class Model {
public:
    Model(PJRT_Device& device, std::shared_ptr<const Program> program, std::string_view bytes);
    ~Model();
    Model(const Model&) = delete;
    Model& operator=(const Model&) = delete;

    struct Span {
        void* data;
        size_t bytes;
    };
    // Puts the model on the device's compute stream.
    void launch(const std::vector<Span>& inputs, const std::vector<Span>& outputs);
    size_t work_bytes() const { return work_bytes_; }

private:
    struct List {
        void* dataset = nullptr;
        std::vector<void*> buffers;
        void set(const std::vector<Span>& spans);
        ~List();
    };
    PJRT_Device& device_;
    std::shared_ptr<const Program> program_;  // CANN may read the bytes until the model is unloaded
    BlockPtr work_, weights_;
    size_t work_bytes_ = 0;
    uint32_t id_ = 0;
    List inputs_, outputs_;
};

// All models of a program on one device.
struct Loaded {
    PJRT_Device* device;
    int logical_id;
    BlockPtr id;  // the same on the device, where the program reads it
    std::vector<std::unique_ptr<Model>> models;
};

}  // namespace npu

struct PJRT_Executable {
    PJRT_Executable(std::shared_ptr<const npu::Program> program, const PJRT_TopologyDescription& topology,
                    npu::Workers& workers, size_t work_bytes = 0);
    // The program's text before it became models, made when it is asked for the first time.
    const std::string& text();

    const std::shared_ptr<const npu::Program> program;
    const std::string soc;
    const int device_count;
    const size_t work_bytes;  // of the model that needs most, where the program was loaded
    npu::Workers& workers;
    std::mutex mutex;
    std::string text_;
    // Lists in the form that callers read.
    std::vector<PJRT_Buffer_Type> output_types;
    std::vector<int64_t> output_dims;
    std::vector<size_t> output_ranks;
    std::vector<const char*> input_kinds, output_kinds, input_shardings, output_shardings;
    std::vector<size_t> input_kind_sizes, output_kind_sizes, input_sharding_sizes, output_sharding_sizes;
    std::vector<PJRT_Layouts_MemoryLayout*> input_layouts, output_layouts;  // shared by all executables
    bool shardings = false;                                                 // known for all inputs and outputs
};

struct PJRT_LoadedExecutable {
    PJRT_LoadedExecutable(PJRT_Client& client, std::shared_ptr<const npu::Program> program);

    PJRT_Client& client;
    const std::shared_ptr<const npu::Program> program;
    std::vector<PJRT_Device*> devices;
    std::vector<PJRT_LogicalDeviceIds> logical_ids;
    std::mutex mutex;
    std::vector<std::shared_ptr<npu::Loaded>> loaded;  // empty once deleted
    size_t work_bytes = 0;
};
