// Loading and unloading models.
#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>

#include "../ascendcl/runtime.h"
#include "model.h"

extern "C" int aclrtMalloc(void** pointer, size_t size, int policy);
extern "C" int aclrtFree(void* pointer);

namespace emu {
namespace {

std::mutex g_mutex;
uint32_t g_next_id = 1;

// Never destroyed: models that are still loaded when the process ends hold Python objects and tensors of torch, which
// are gone by then.
std::map<uint32_t, std::shared_ptr<Model>>& models() {
    static auto& loaded = *new std::map<uint32_t, std::shared_ptr<Model>>;
    return loaded;
}

// libopapi.so has the kernels. It lies beside this library, which does not link it: programs without models do not
// need it.
const ModelBackend* load_model_backend() {
    Dl_info self{};
    dladdr(reinterpret_cast<void*>(&load_model_backend), &self);
    std::string path(self.dli_fname);
    path = path.substr(0, path.rfind('/') + 1) + "libopapi.so";
    void* library = dlopen(path.c_str(), RTLD_NOW);
    if (!library) {
        fail(ACL_ERROR_GE_LOAD_MODEL, "the kernels cannot be loaded: %s", dlerror());
        return nullptr;
    }
    return reinterpret_cast<const ModelBackend* (*)()>(dlsym(library, "emu_model_backend"))();
}

int area(void* given, size_t given_bytes, uint64_t wanted, const char* what, void** owned, void** used) {
    if (!given) {
        if (wanted == 0) return 0;
        if (const int code = aclrtMalloc(owned, wanted, 0)) return code;
        *used = *owned;
        return 0;
    }
    if (given_bytes < wanted) {
        return fail(ACL_ERROR_GE_PARAM_INVALID, "the model's %s memory is %zu bytes; aclmdlQuerySizeFromMem says %lu.",
                    what, given_bytes, static_cast<unsigned long>(wanted));
    }
    *used = given;
    return 0;
}

int load(const void* data, size_t bytes, uint32_t* id, void* work, size_t work_bytes, void* weights,
         size_t weight_bytes) {
    if (!id) return fail(ACL_ERROR_INVALID_PARAM, "the pointer to the model's id is null.");
    auto model = std::make_shared<Model>();
    if (const int code = need_device(&model->device)) return code;
    if (const int code = read_image(data, bytes, &model->image)) return code;
    ModelImage& image = model->image;
    if (const int code = area(work, work_bytes, image.work_bytes, "work", &model->owned_work, &work)) return code;
    if (const int code = area(weights, weight_bytes, image.weight_bytes, "weight", &model->owned_weights, &weights)) {
        return code;
    }
    if (!image.weights.empty()) std::memcpy(weights, image.weights.data(), image.weights.size());
    const ModelBackend* backend = load_model_backend();
    if (!backend) return ACL_ERROR_GE_LOAD_MODEL;
    model->prepared = backend->prepare(image, weights, work);
    if (!model->prepared) return last_error_code();
    model->backend = backend;
    model->counter = counter_id(Kind::kernel, "aclmdlExecute");
    image.program = image.weights = {};  // the caller may free its memory now
    const std::lock_guard lock(g_mutex);
    *id = g_next_id++;
    models().emplace(*id, std::move(model));
    return 0;
}

int read_file(const char* path, std::string* content) {
    std::ifstream file(path ? path : "", std::ios::binary);
    if (!path || !file) {
        return fail(ACL_ERROR_GE_EXEC_MODEL_PATH_INVALID, "the model file %s cannot be read.", path ? path : "(null)");
    }
    content->assign(std::istreambuf_iterator<char>(file), {});
    return 0;
}

}  // namespace

Model::~Model() {
    if (prepared) backend->release(prepared);
    if (owned_weights) aclrtFree(owned_weights);
    if (owned_work) aclrtFree(owned_work);
}

std::shared_ptr<Model> find_model(uint32_t id, const char* call) {
    const std::lock_guard lock(g_mutex);
    const auto found = models().find(id);
    if (found != models().end()) return found->second;
    fail(ACL_ERROR_GE_EXEC_MODEL_ID_INVALID, "%s: %u is not the id of a loaded model.", call, id);
    return nullptr;
}

}  // namespace emu

// What aclmdlLoadWithConfig takes.
struct aclmdlConfigHandle {
    size_t load_type = 0;
    std::string path;
    const void* model = nullptr;
    size_t model_bytes = 0;
    void* weights = nullptr;
    size_t weight_bytes = 0;
    void* work = nullptr;
    size_t work_bytes = 0;
};

namespace {

enum ConfigAttr : int {
    ACL_MDL_PRIORITY_INT32 = 0,
    ACL_MDL_LOAD_TYPE_SIZET,
    ACL_MDL_PATH_PTR,
    ACL_MDL_MEM_ADDR_PTR,
    ACL_MDL_MEM_SIZET,
    ACL_MDL_WEIGHT_ADDR_PTR,
    ACL_MDL_WEIGHT_SIZET,
    ACL_MDL_WORKSPACE_ADDR_PTR,
    ACL_MDL_WORKSPACE_SIZET,
    ACL_MDL_WORKSPACE_MEM_OPTIMIZE = 13,
};
enum LoadType : size_t { kFromFile = 1, kFromFileWithMem = 2, kFromMem = 3, kFromMemWithMem = 4 };

template <typename T>
int take(T* field, const void* value, size_t bytes) {
    if (bytes != sizeof(T)) {
        return emu::fail(ACL_ERROR_INVALID_PARAM, "this option's value has %zu bytes, not %zu.", sizeof(T), bytes);
    }
    std::memcpy(field, value, bytes);
    return 0;
}

}  // namespace

ACL_API int aclmdlLoadFromMem(const void* model, size_t bytes, uint32_t* id) {
    return emu::load(model, bytes, id, nullptr, 0, nullptr, 0);
}

ACL_API int aclmdlLoadFromMemWithMem(const void* model, size_t bytes, uint32_t* id, void* work, size_t work_bytes,
                                     void* weights, size_t weight_bytes) {
    return emu::load(model, bytes, id, work, work_bytes, weights, weight_bytes);
}

ACL_API int aclmdlLoadFromFileWithMem(const char* path, uint32_t* id, void* work, size_t work_bytes, void* weights,
                                      size_t weight_bytes) {
    std::string content;
    if (const int code = emu::read_file(path, &content)) return code;
    return emu::load(content.data(), content.size(), id, work, work_bytes, weights, weight_bytes);
}

ACL_API int aclmdlLoadFromFile(const char* path, uint32_t* id) {
    return aclmdlLoadFromFileWithMem(path, id, nullptr, 0, nullptr, 0);
}

ACL_API int aclmdlUnload(uint32_t id) {
    std::shared_ptr<emu::Model> model = emu::find_model(id, "aclmdlUnload");
    if (!model) return ACL_ERROR_GE_EXEC_MODEL_ID_INVALID;
    const std::lock_guard lock(emu::g_mutex);
    emu::models().erase(id);
    return 0;
}

ACL_API int aclmdlQuerySizeFromMem(const void* model, size_t bytes, size_t* work_bytes, size_t* weight_bytes) {
    emu::ModelImage image;
    if (!work_bytes || !weight_bytes) return emu::fail(ACL_ERROR_INVALID_PARAM, "aclmdlQuerySizeFromMem: null result.");
    if (const int code = emu::read_image(model, bytes, &image)) return code;
    *work_bytes = image.work_bytes;
    *weight_bytes = image.weight_bytes;
    return 0;
}

ACL_API int aclmdlQuerySize(const char* path, size_t* work_bytes, size_t* weight_bytes) {
    std::string content;
    if (const int code = emu::read_file(path, &content)) return code;
    return aclmdlQuerySizeFromMem(content.data(), content.size(), work_bytes, weight_bytes);
}

ACL_API aclmdlConfigHandle* aclmdlCreateConfigHandle() { return new aclmdlConfigHandle; }
ACL_API int aclmdlDestroyConfigHandle(aclmdlConfigHandle* handle) {
    delete handle;
    return 0;
}

ACL_API int aclmdlSetConfigOpt(aclmdlConfigHandle* handle, int option, const void* value, size_t bytes) {
    if (!handle || !value) return emu::fail(ACL_ERROR_INVALID_PARAM, "aclmdlSetConfigOpt: null argument.");
    switch (option) {
        case ACL_MDL_LOAD_TYPE_SIZET: return take(&handle->load_type, value, bytes);
        case ACL_MDL_MEM_ADDR_PTR: return take(&handle->model, value, bytes);
        case ACL_MDL_MEM_SIZET: return take(&handle->model_bytes, value, bytes);
        case ACL_MDL_WEIGHT_ADDR_PTR: return take(&handle->weights, value, bytes);
        case ACL_MDL_WEIGHT_SIZET: return take(&handle->weight_bytes, value, bytes);
        case ACL_MDL_WORKSPACE_ADDR_PTR: return take(&handle->work, value, bytes);
        case ACL_MDL_WORKSPACE_SIZET: return take(&handle->work_bytes, value, bytes);
        case ACL_MDL_PATH_PTR: {
            const char* path = nullptr;
            if (const int code = take(&path, value, bytes)) return code;
            handle->path = path ? path : "";
            return 0;
        }
        case ACL_MDL_PRIORITY_INT32:
        case ACL_MDL_WORKSPACE_MEM_OPTIMIZE: return 0;  // nothing to choose here
        default:
            return emu::fail(ACL_ERROR_INVALID_PARAM, "aclmdlSetConfigOpt: the emulator has no option %d.", option);
    }
}

ACL_API int aclmdlLoadWithConfig(const aclmdlConfigHandle* handle, uint32_t* id) {
    if (!handle) return emu::fail(ACL_ERROR_INVALID_PARAM, "aclmdlLoadWithConfig: the handle is null.");
    switch (handle->load_type) {
        case kFromFile: return aclmdlLoadFromFile(handle->path.c_str(), id);
        case kFromMem: return aclmdlLoadFromMem(handle->model, handle->model_bytes, id);
        case kFromFileWithMem:
            return aclmdlLoadFromFileWithMem(handle->path.c_str(), id, handle->work, handle->work_bytes,
                                             handle->weights, handle->weight_bytes);
        case kFromMemWithMem:
            return aclmdlLoadFromMemWithMem(handle->model, handle->model_bytes, id, handle->work, handle->work_bytes,
                                            handle->weights, handle->weight_bytes);
        default:
            return emu::fail(ACL_ERROR_INVALID_PARAM,
                             "aclmdlLoadWithConfig: ACL_MDL_LOAD_TYPE_SIZET is %zu; 1 to 4 are known.",
                             handle->load_type);
    }
}
