// Descriptions of tensors, buffers and attributes for the older, named operators (aclop...).
#include <map>

#include "data_buffer.h"
#include "runtime.h"

struct aclTensorDesc {
    int type;
    int format;
    std::vector<int64_t> dims;
    std::string name;
    int placement;
    int storage_format;
    std::vector<int64_t> storage_dims;
};

// Attributes as text: the few named operators that the emulator runs hardly need them.
struct aclopAttr {
    std::map<std::string, std::string> values;
};

ACL_API aclTensorDesc* aclCreateTensorDesc(int type, int count, const int64_t* dims, int format) {
    return new aclTensorDesc{type, format, std::vector<int64_t>(dims, dims + count), {}, 0, format, {}};
}
ACL_API void aclDestroyTensorDesc(const aclTensorDesc* desc) { delete desc; }
ACL_API int aclGetTensorDescType(const aclTensorDesc* desc) { return desc ? desc->type : -1; }
ACL_API int aclGetTensorDescFormat(const aclTensorDesc* desc) { return desc ? desc->format : -1; }
ACL_API size_t aclGetTensorDescNumDims(const aclTensorDesc* desc) { return desc ? desc->dims.size() : 0; }
ACL_API int aclGetTensorDescDimV2(const aclTensorDesc* desc, size_t index, int64_t* size) {
    if (!desc || index >= desc->dims.size())
        return emu::fail(ACL_ERROR_INVALID_PARAM, "dimension %zu does not exist.", index);
    *size = desc->dims[index];
    return 0;
}
ACL_API void aclSetTensorDescName(aclTensorDesc* desc, const char* name) {
    if (desc) desc->name = name ? name : "";
}
ACL_API int aclSetTensorFormat(aclTensorDesc* desc, int format) {
    desc->storage_format = format;
    return 0;
}
ACL_API int aclSetTensorPlaceMent(aclTensorDesc* desc, int placement) {
    desc->placement = placement;
    return 0;
}
ACL_API int aclSetTensorShape(aclTensorDesc* desc, int count, const int64_t* dims) {
    desc->storage_dims.assign(dims, dims + count);
    return 0;
}

ACL_API aclDataBuffer* aclCreateDataBuffer(void* data, size_t size) { return new aclDataBuffer{data, size}; }
ACL_API int aclDestroyDataBuffer(const aclDataBuffer* buffer) {
    delete buffer;
    return 0;
}

ACL_API int aclUpdateDataBuffer(aclDataBuffer* buffer, void* data, size_t size) {
    if (!buffer) return emu::fail(ACL_ERROR_INVALID_PARAM, "aclUpdateDataBuffer: the buffer is null.");
    buffer->data = data;
    buffer->size = size;
    return 0;
}
ACL_API size_t aclGetDataBufferSizeV2(const aclDataBuffer* buffer) { return buffer ? buffer->size : 0; }
ACL_API uint32_t aclGetDataBufferSize(const aclDataBuffer* buffer) {
    return buffer ? static_cast<uint32_t>(buffer->size) : 0;
}
ACL_API void* aclGetDataBufferAddr(const aclDataBuffer* buffer) { return buffer ? buffer->data : nullptr; }

ACL_API aclopAttr* aclopCreateAttr() { return new aclopAttr; }
ACL_API void aclopDestroyAttr(const aclopAttr* attr) { delete attr; }

namespace {
int set(aclopAttr* attr, const char* name, std::string value) {
    if (!attr || !name) return emu::fail(ACL_ERROR_INVALID_PARAM, "an operator attribute needs a name.");
    attr->values[name] = std::move(value);
    return 0;
}

template <typename T>
std::string list(int count, const T* values) {
    std::string text = "[";
    for (int i = 0; i < count; ++i) text += (i ? ", " : "") + std::to_string(values[i]);
    return text + "]";
}
}  // namespace

// The attribute's text, empty where it was not set. For libacl_op_compiler.so.
ACL_API const char* emu_attribute(const aclopAttr* attr, const char* name) {
    if (!attr) return "";
    const auto found = attr->values.find(name);
    return found == attr->values.end() ? "" : found->second.c_str();
}

ACL_API int aclopSetAttrBool(aclopAttr* attr, const char* name, uint8_t value) {
    return set(attr, name, value ? "true" : "false");
}
ACL_API int aclopSetAttrDataType(aclopAttr* attr, const char* name, int value) {
    return set(attr, name, std::to_string(value));
}
ACL_API int aclopSetAttrFloat(aclopAttr* attr, const char* name, float value) {
    return set(attr, name, std::to_string(value));
}
ACL_API int aclopSetAttrInt(aclopAttr* attr, const char* name, int64_t value) {
    return set(attr, name, std::to_string(value));
}
ACL_API int aclopSetAttrString(aclopAttr* attr, const char* name, const char* value) {
    return set(attr, name, value ? value : "");
}
ACL_API int aclopSetAttrListBool(aclopAttr* attr, const char* name, int count, const uint8_t* values) {
    return set(attr, name, list(count, values));
}
ACL_API int aclopSetAttrListFloat(aclopAttr* attr, const char* name, int count, const float* values) {
    return set(attr, name, list(count, values));
}
ACL_API int aclopSetAttrListInt(aclopAttr* attr, const char* name, int count, const int64_t* values) {
    return set(attr, name, list(count, values));
}
ACL_API int aclopSetAttrListListInt(aclopAttr* attr, const char* name, int lists, const int* counts,
                                    const int64_t* const* values) {
    std::string text = "[";
    for (int i = 0; i < lists; ++i) text += (i ? ", " : "") + list(counts[i], values[i]);
    return set(attr, name, text + "]");
}
