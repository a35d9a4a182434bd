// What a model's inputs and outputs are.
#include <cstring>
#include <fstream>

#include "../ascendcl/runtime.h"
#include "model.h"

constexpr size_t kMaxDimCount = 128, kMaxNameBytes = 128;

struct aclmdlDesc {
    emu::ModelImage image;
};

struct aclmdlIODims {
    char name[kMaxNameBytes];
    size_t count;
    int64_t dims[kMaxDimCount];
};

namespace {

using Ports = std::vector<emu::ModelPort>;

const emu::ModelPort* port(const aclmdlDesc* desc, Ports emu::ModelImage::*side, size_t index, const char* call) {
    if (!desc) {
        emu::fail(ACL_ERROR_INVALID_PARAM, "%s: the description is null.", call);
        return nullptr;
    }
    const Ports& ports = desc->image.*side;
    if (index < ports.size()) return &ports[index];
    emu::fail(ACL_ERROR_INVALID_PARAM, "%s: index %zu; the model has %zu.", call, index, ports.size());
    return nullptr;
}

int dims(const aclmdlDesc* desc, Ports emu::ModelImage::*side, size_t index, aclmdlIODims* result, const char* call) {
    const emu::ModelPort* found = port(desc, side, index, call);
    if (!found) return ACL_ERROR_INVALID_PARAM;
    if (!result) return emu::fail(ACL_ERROR_INVALID_PARAM, "%s: null result.", call);
    std::memset(result->name, 0, kMaxNameBytes);
    std::memcpy(result->name, found->name.data(), std::min(found->name.size(), kMaxNameBytes - 1));
    result->count = found->dims.size();
    std::copy(found->dims.begin(), found->dims.end(), result->dims);
    return 0;
}

int index_of(const aclmdlDesc* desc, Ports emu::ModelImage::*side, const char* name, size_t* index, const char* call) {
    if (!desc || !name || !index) return emu::fail(ACL_ERROR_INVALID_PARAM, "%s: null argument.", call);
    const Ports& ports = desc->image.*side;
    for (size_t i = 0; i < ports.size(); ++i) {
        if (ports[i].name == name) {
            *index = i;
            return 0;
        }
    }
    return emu::fail(ACL_ERROR_INVALID_PARAM, "%s: the model has no %s.", call, name);
}

constexpr auto kIn = &emu::ModelImage::inputs;
constexpr auto kOut = &emu::ModelImage::outputs;

}  // namespace

ACL_API aclmdlDesc* aclmdlCreateDesc() { return new aclmdlDesc{}; }
ACL_API int aclmdlDestroyDesc(aclmdlDesc* desc) {
    delete desc;
    return 0;
}

ACL_API int aclmdlGetDesc(aclmdlDesc* desc, uint32_t id) {
    if (!desc) return emu::fail(ACL_ERROR_INVALID_PARAM, "aclmdlGetDesc: the description is null.");
    const auto model = emu::find_model(id, "aclmdlGetDesc");
    if (!model) return ACL_ERROR_GE_EXEC_MODEL_ID_INVALID;
    desc->image = model->image;
    return 0;
}

ACL_API int aclmdlGetDescFromMem(aclmdlDesc* desc, const void* model, size_t bytes) {
    if (!desc) return emu::fail(ACL_ERROR_INVALID_PARAM, "aclmdlGetDescFromMem: the description is null.");
    desc->image = {};
    return emu::read_image(model, bytes, &desc->image);
}

ACL_API int aclmdlGetDescFromFile(aclmdlDesc* desc, const char* path) {
    std::ifstream file(path ? path : "", std::ios::binary);
    if (!file) return emu::fail(ACL_ERROR_GE_EXEC_MODEL_PATH_INVALID, "the model file cannot be read.");
    const std::string content(std::istreambuf_iterator<char>(file), {});
    return aclmdlGetDescFromMem(desc, content.data(), content.size());
}

ACL_API size_t aclmdlGetNumInputs(aclmdlDesc* desc) { return desc ? desc->image.inputs.size() : 0; }
ACL_API size_t aclmdlGetNumOutputs(aclmdlDesc* desc) { return desc ? desc->image.outputs.size() : 0; }
ACL_API size_t aclmdlGetInputSizeByIndex(aclmdlDesc* desc, size_t index) {
    const auto* found = port(desc, kIn, index, "aclmdlGetInputSizeByIndex");
    return found ? found->bytes : 0;
}
ACL_API size_t aclmdlGetOutputSizeByIndex(aclmdlDesc* desc, size_t index) {
    const auto* found = port(desc, kOut, index, "aclmdlGetOutputSizeByIndex");
    return found ? found->bytes : 0;
}
ACL_API int aclmdlGetInputDims(const aclmdlDesc* desc, size_t index, aclmdlIODims* result) {
    return dims(desc, kIn, index, result, "aclmdlGetInputDims");
}
ACL_API int aclmdlGetInputDimsV2(const aclmdlDesc* desc, size_t index, aclmdlIODims* result) {
    return dims(desc, kIn, index, result, "aclmdlGetInputDimsV2");
}
ACL_API int aclmdlGetOutputDims(const aclmdlDesc* desc, size_t index, aclmdlIODims* result) {
    return dims(desc, kOut, index, result, "aclmdlGetOutputDims");
}
ACL_API int aclmdlGetCurOutputDims(const aclmdlDesc* desc, size_t index, aclmdlIODims* result) {
    return dims(desc, kOut, index, result, "aclmdlGetCurOutputDims");
}
ACL_API int aclmdlGetInputDataType(const aclmdlDesc* desc, size_t index) {
    const auto* found = port(desc, kIn, index, "aclmdlGetInputDataType");
    return found ? found->dtype : -1;
}
ACL_API int aclmdlGetOutputDataType(const aclmdlDesc* desc, size_t index) {
    const auto* found = port(desc, kOut, index, "aclmdlGetOutputDataType");
    return found ? found->dtype : -1;
}
ACL_API int aclmdlGetInputFormat(const aclmdlDesc* desc, size_t index) {
    const auto* found = port(desc, kIn, index, "aclmdlGetInputFormat");
    return found ? found->format : -1;
}
ACL_API int aclmdlGetOutputFormat(const aclmdlDesc* desc, size_t index) {
    const auto* found = port(desc, kOut, index, "aclmdlGetOutputFormat");
    return found ? found->format : -1;
}
ACL_API const char* aclmdlGetInputNameByIndex(const aclmdlDesc* desc, size_t index) {
    const auto* found = port(desc, kIn, index, "aclmdlGetInputNameByIndex");
    return found ? found->name.c_str() : "";
}
ACL_API const char* aclmdlGetOutputNameByIndex(const aclmdlDesc* desc, size_t index) {
    const auto* found = port(desc, kOut, index, "aclmdlGetOutputNameByIndex");
    return found ? found->name.c_str() : "";
}
ACL_API int aclmdlGetInputIndexByName(const aclmdlDesc* desc, const char* name, size_t* index) {
    return index_of(desc, kIn, name, index, "aclmdlGetInputIndexByName");
}
ACL_API int aclmdlGetOutputIndexByName(const aclmdlDesc* desc, const char* name, size_t* index) {
    return index_of(desc, kOut, name, index, "aclmdlGetOutputIndexByName");
}
