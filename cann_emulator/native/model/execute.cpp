// Datasets, and running a model on them.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "../ascendcl/runtime.h"
#include "data_buffer.h"
#include "model.h"

struct aclTensorDesc;

struct aclmdlDataset {
    std::vector<aclDataBuffer*> buffers;
};

struct aclmdlExecConfigHandle {};

namespace emu {
namespace {

constexpr size_t kFew = 64;  // ports whose addresses fit on the stack

// The addresses of a dataset's buffers; refuses what hardware could not read or write.
int addresses(const Model& model, const std::vector<ModelPort>& ports, const aclmdlDataset& dataset, bool output,
              void** found) {
    const char* side = output ? "output" : "input";
    const int mismatch = output ? ACL_ERROR_MODEL_OUTPUT_NOT_MATCH : ACL_ERROR_MODEL_INPUT_NOT_MATCH;
    if (dataset.buffers.size() != ports.size()) {
        return fail(mismatch, "model %s has %zu %ss, the dataset has %zu buffers.", model.image.name.c_str(),
                    ports.size(), side, dataset.buffers.size());
    }
    for (size_t i = 0; i < ports.size(); ++i) {
        const aclDataBuffer& buffer = *dataset.buffers[i];
        const size_t wanted = ports[i].bytes;
        found[i] = buffer.data;
        if (wanted == 0) continue;
        if (buffer.size < wanted) {
            return fail(mismatch, "model %s: %s %zu (%s) has %zu bytes, its buffer only %zu.", model.image.name.c_str(),
                        side, i, ports[i].name.c_str(), wanted, buffer.size);
        }
        int device = -1;
        const Access access = check_access(buffer.data, wanted, &device);
        if (access == Access::ok && (device == model.device || device < 0)) continue;
        return fail(ACL_ERROR_RT_VECTOR_CORE_EXCEPTION,
                    "model %s: %s %zu (%s), %zu bytes at %p, %s. The device address is out of range.",
                    model.image.name.c_str(), side, i, ports[i].name.c_str(), wanted, buffer.data,
                    access == Access::freed     ? "was freed before the execution"
                    : access == Access::outside ? "is not inside one device allocation"
                                                : "lies on another device");
    }
    return 0;
}

// CANN_EMULATOR_LOSE_DEVICE=1:20: device 1 does not answer any more from its 20th model on, as when its board resets.
struct Loss {
    int device = -1;
    int model = 0;
    std::atomic<int> models{0};

    Loss() {
        const char* text = std::getenv("CANN_EMULATOR_LOSE_DEVICE");
        if (text && std::sscanf(text, "%d:%d", &device, &model) != 2) device = -1;
    }
};

int check_answers(int device) {
    static Loss loss;
    if (device != loss.device || ++loss.models < loss.model) return 0;
    return fail(ACL_ERROR_RT_LOST_HEARTBEAT,
                "device %d lost its heartbeat and was given up (CANN_EMULATOR_LOSE_DEVICE).", device);
}

int execute(uint32_t id, const aclmdlDataset* input, aclmdlDataset* output, void* stream, const char* call) {
    const std::shared_ptr<Model> model = find_model(id, call);
    if (!model) return ACL_ERROR_GE_EXEC_MODEL_ID_INVALID;
    if (!input || !output) return fail(ACL_ERROR_INVALID_PARAM, "%s: a dataset is null.", call);
    if (const int code = stream_drain(stream)) return code;
    const int device = stream_device(stream);
    if (device != model->device) {
        return fail(ACL_ERROR_RT_STREAM_CONTEXT,
                    "%s: model %u was loaded on device %d and the stream belongs to device %d. Load the model once on "
                    "each device.",
                    call, id, model->device, device);
    }
    if (const int code = check_answers(device)) return code;
    const ModelImage& image = model->image;
    void* few[2 * kFew];
    std::vector<void*> many;
    void** inputs = few;
    if (image.inputs.size() + image.outputs.size() > 2 * kFew) {
        many.resize(image.inputs.size() + image.outputs.size());
        inputs = many.data();
    }
    void** outputs = inputs + image.inputs.size();
    if (const int code = addresses(*model, image.inputs, *input, false, inputs)) return code;
    if (const int code = addresses(*model, image.outputs, *output, true, outputs)) return code;
    const int64_t start = now_ns();
    {
        std::unique_lock running(model->running, std::try_to_lock);
        if (!running) {
            const GilPause pause;
            running.lock();
        }
        if (const int code = model->backend->execute(model->prepared, inputs, outputs)) return code;
    }
    record(model->counter, device, stream_id(stream), start, now_ns(), 0);
    return 0;
}

}  // namespace
}  // namespace emu

ACL_API aclmdlDataset* aclmdlCreateDataset() { return new aclmdlDataset; }
ACL_API int aclmdlDestroyDataset(const aclmdlDataset* dataset) {
    delete dataset;
    return 0;
}
ACL_API int aclmdlAddDatasetBuffer(aclmdlDataset* dataset, aclDataBuffer* buffer) {
    if (!dataset || !buffer) return emu::fail(ACL_ERROR_INVALID_PARAM, "aclmdlAddDatasetBuffer: null argument.");
    dataset->buffers.push_back(buffer);
    return 0;
}
ACL_API size_t aclmdlGetDatasetNumBuffers(const aclmdlDataset* dataset) { return dataset ? dataset->buffers.size() : 0; }
ACL_API aclDataBuffer* aclmdlGetDatasetBuffer(const aclmdlDataset* dataset, size_t index) {
    return dataset && index < dataset->buffers.size() ? dataset->buffers[index] : nullptr;
}

ACL_API int aclmdlExecuteAsync(uint32_t id, const aclmdlDataset* input, aclmdlDataset* output, void* stream) {
    return emu::execute(id, input, output, stream, "aclmdlExecuteAsync");
}
ACL_API int aclmdlExecute(uint32_t id, const aclmdlDataset* input, aclmdlDataset* output) {
    return emu::execute(id, input, output, nullptr, "aclmdlExecute");
}
ACL_API int aclmdlExecuteAsyncV2(uint32_t id, const aclmdlDataset* input, aclmdlDataset* output, void* stream,
                                 const aclmdlExecConfigHandle*) {
    return emu::execute(id, input, output, stream, "aclmdlExecuteAsyncV2");
}
ACL_API int aclmdlExecuteV2(uint32_t id, const aclmdlDataset* input, aclmdlDataset* output, void* stream,
                            const aclmdlExecConfigHandle*) {
    return emu::execute(id, input, output, stream, "aclmdlExecuteV2");
}
ACL_API aclmdlExecConfigHandle* aclmdlCreateExecConfigHandle() { return new aclmdlExecConfigHandle; }
ACL_API int aclmdlDestroyExecConfigHandle(const aclmdlExecConfigHandle* handle) {
    delete handle;
    return 0;
}

// Dynamic shapes: a model has the shapes it was compiled for.
namespace {
int not_dynamic(const char* call) {
    return emu::fail(ACL_ERROR_MODEL_NOT_DYNAMIC,
                     "%s: the emulator's models have the shapes they were compiled for; compile one for each shape.", call);
}
}  // namespace
ACL_API int aclmdlSetInputDynamicDims(uint32_t, aclmdlDataset*, size_t, const void*) {
    return not_dynamic("aclmdlSetInputDynamicDims");
}
ACL_API int aclmdlSetDynamicBatchSize(uint32_t, aclmdlDataset*, size_t, uint64_t) {
    return not_dynamic("aclmdlSetDynamicBatchSize");
}
ACL_API int aclmdlSetDynamicHWSize(uint32_t, aclmdlDataset*, size_t, uint64_t, uint64_t) {
    return not_dynamic("aclmdlSetDynamicHWSize");
}
ACL_API int aclmdlSetDatasetTensorDesc(aclmdlDataset*, aclTensorDesc*, size_t) {
    return not_dynamic("aclmdlSetDatasetTensorDesc");
}
