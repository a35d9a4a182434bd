// The older, named operators (aclop...). None is compiled: those with which torch_npu copies between devices copy one
// strided view into another and run as that, every other one is refused with its name.
#include <dlfcn.h>

#include <algorithm>
#include <string>

#include "../opapi/objects.h"
#include "acl_constants.h"
#include "core.h"

#define ACL_API extern "C" EMU_API

struct aclTensorDesc;
struct aclDataBuffer;
struct aclopAttr;
extern "C" int aclGetTensorDescType(const aclTensorDesc* desc);
extern "C" size_t aclGetTensorDescNumDims(const aclTensorDesc* desc);
extern "C" int aclGetTensorDescDimV2(const aclTensorDesc* desc, size_t index, int64_t* size);
extern "C" void* aclGetDataBufferAddr(const aclDataBuffer* buffer);
extern "C" const char* emu_attribute(const aclopAttr* attr, const char* name);

namespace {
constexpr int ACL_INT64 = 9;

struct Call {
    const char* name;
    int input_count;
    const aclTensorDesc* const* input_descs;
    const aclDataBuffer* const* inputs;
    int output_count;
    const aclTensorDesc* const* output_descs;
    aclDataBuffer* const* outputs;
    const aclopAttr* attr;
};

using Numbers = std::vector<int64_t>;

Numbers shape(const aclTensorDesc* desc) {
    Numbers dims(aclGetTensorDescNumDims(desc));
    for (size_t i = 0; i < dims.size(); ++i) aclGetTensorDescDimV2(desc, i, &dims[i]);
    return dims;
}

int64_t count(const Numbers& dims) {
    int64_t product = 1;
    for (int64_t size : dims) product *= size;
    return product;
}

int malformed(const Call& call, const char* what) {
    return emu::fail(ACL_ERROR_INVALID_PARAM, "the named operator %s: %s.", call.name, what);
}

// The numbers in an input. They lie on the host, or on the device, which the host reads as well.
int read_numbers(const Call& call, int input, Numbers* numbers) {
    const aclTensorDesc* desc = call.input_descs[input];
    const auto* data = static_cast<const int64_t*>(aclGetDataBufferAddr(call.inputs[input]));
    const int64_t length = count(shape(desc));
    if (aclGetTensorDescType(desc) != ACL_INT64 || (!data && length > 0)) {
        return malformed(call, "the inputs that describe a view must be tensors of int64");
    }
    numbers->assign(data, data + length);
    return 0;
}

// How a view lies in its storage. It begins as the whole of the storage, without gaps.
struct Layout {
    Numbers dims, strides;
    int64_t offset = 0;
};

Layout dense(Numbers dims) {
    Layout layout{std::move(dims), {}, 0};
    layout.strides.resize(layout.dims.size());
    int64_t stride = 1;
    for (size_t i = layout.dims.size(); i-- > 0; stride *= layout.dims[i]) layout.strides[i] = stride;
    return layout;
}

// Changes the layout as the inputs from `first` on say.
using Describe = int (*)(const Call& call, int first, Layout* layout);

int whole(const Call&, int, Layout*) { return 0; }

int strided(const Call& call, int first, Layout* layout) {  // size, stride, offset
    Numbers offset;
    if (int code = read_numbers(call, first, &layout->dims)) return code;
    if (int code = read_numbers(call, first + 1, &layout->strides)) return code;
    if (int code = read_numbers(call, first + 2, &offset)) return code;
    if (layout->dims.size() != layout->strides.size() || offset.size() != 1) {
        return malformed(call, "it needs a stride for every size and one offset");
    }
    layout->offset = offset[0];
    return 0;
}

int permuted(const Call& call, int first, Layout* layout) {  // the order of the dimensions
    Numbers order;
    if (int code = read_numbers(call, first, &order)) return code;
    const Layout old = *layout;
    if (order.size() != old.dims.size()) return malformed(call, "it needs a number for every dimension");
    for (size_t i = 0; i < order.size(); ++i) {
        if (order[i] < 0 || order[i] >= static_cast<int64_t>(order.size())) {
            return malformed(call, "a dimension that does not exist");
        }
        layout->dims[i] = old.dims[order[i]];
        layout->strides[i] = old.strides[order[i]];
    }
    return 0;
}

int sliced(const Call& call, int first, Layout* layout) {  // offsets, sizes
    Numbers begin;
    const size_t rank = layout->dims.size();
    if (int code = read_numbers(call, first, &begin)) return code;
    if (int code = read_numbers(call, first + 1, &layout->dims)) return code;
    if (begin.size() != rank || layout->dims.size() != rank) {
        return malformed(call, "it needs an offset and a size for every dimension");
    }
    for (size_t i = 0; i < rank; ++i) layout->offset += begin[i] * layout->strides[i];
    return 0;
}

int stepped(const Call& call, int first, Layout* layout) {  // begin, end, step
    for (const char* mask : {"begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask"}) {
        const std::string value = emu_attribute(call.attr, mask);
        if (!value.empty() && value != "0") return malformed(call, "the CANN emulator runs it without masks only");
    }
    Numbers begin, end, step;
    if (int code = read_numbers(call, first, &begin)) return code;
    if (int code = read_numbers(call, first + 1, &end)) return code;
    if (int code = read_numbers(call, first + 2, &step)) return code;
    const size_t rank = layout->dims.size();
    if (begin.size() != rank || end.size() != rank || step.size() != rank) {
        return malformed(call, "it needs begin, end and step for every dimension");
    }
    for (size_t i = 0; i < rank; ++i) {
        if (begin[i] < 0 || step[i] <= 0) return malformed(call, "begin must not be negative, nor step less than 1");
        const int64_t last = std::min(end[i], layout->dims[i]);
        layout->offset += begin[i] * layout->strides[i];
        layout->dims[i] = std::max<int64_t>(0, (last - begin[i] + step[i] - 1) / step[i]);
        layout->strides[i] *= step[i];
    }
    return 0;
}

// One side of a copy: the input that is its storage (or kOutput), and the first of the inputs that describe the view.
constexpr int kOutput = -1;
struct Side {
    int storage;
    Describe describe;
    int first;
};
struct Copy {
    const char* name;
    int inputs;
    Side to, from;
};
constexpr Side output = {kOutput, whole, 0};
constexpr Copy copies[] = {
    {"AsStrided", 4, output, {0, strided, 1}},    {"BroadcastTo", 2, output, {0, whole, 0}},
    {"Cast", 1, output, {0, whole, 0}},           {"Slice", 3, output, {0, sliced, 1}},
    {"StridedSlice", 4, output, {0, stepped, 1}}, {"Transpose", 2, output, {0, permuted, 1}},
    {"ViewCopy", 8, {0, strided, 1}, {4, strided, 5}},
};

int make_view(const Call& call, const Side& side, aclTensor* made) {
    const bool is_output = side.storage == kOutput;
    const aclTensorDesc* desc = is_output ? call.output_descs[0] : call.input_descs[side.storage];
    Layout layout = dense(shape(desc));
    if (int code = side.describe(call, side.first, &layout)) return code;
    if (layout.dims.size() > kMaxDims) return malformed(call, "too many dimensions");
    made->rank = static_cast<int32_t>(layout.dims.size());
    made->dtype = aclGetTensorDescType(desc);
    made->format = 2;  // ND
    made->data = aclGetDataBufferAddr(is_output ? call.outputs[0] : call.inputs[side.storage]);
    made->offset = layout.offset;
    std::copy(layout.dims.begin(), layout.dims.end(), made->dims);
    std::copy(layout.strides.begin(), layout.strides.end(), made->strides);
    return 0;
}

// An output may lack dimensions of size 1 that the input has (StridedSlice): with as many elements, take the input's.
void reshape_like(const aclTensor& from, aclTensor* to) {
    const Numbers dims(from.dims, from.dims + from.rank);
    if (count(dims) != count(Numbers(to->dims, to->dims + to->rank))) return;
    const Layout layout = dense(dims);
    to->rank = from.rank;
    std::copy(layout.dims.begin(), layout.dims.end(), to->dims);
    std::copy(layout.strides.begin(), layout.strides.end(), to->strides);
}

// libopapi.so depends on nothing here and is loaded by torch_npu; it is looked for when it is first needed.
using CopyViews = int (*)(const aclTensor* to, const aclTensor* from, void* stream);
CopyViews copy_views() {
    static const auto function = [] {
        void* library = dlopen("libopapi.so", RTLD_LAZY);
        return reinterpret_cast<CopyViews>(library ? dlsym(library, "emu_copy_views") : nullptr);
    }();
    return function;
}

int run_copy(const Call& call, const Copy& copy, void* stream) {
    if (call.input_count != copy.inputs || call.output_count != 1) {
        return malformed(call, "it has another number of inputs or outputs");
    }
    if (int code = emu::stream_drain(stream)) return code;
    aclTensor to, from;
    if (int code = make_view(call, copy.to, &to)) return code;
    if (int code = make_view(call, copy.from, &from)) return code;
    if (copy.to.storage == kOutput) reshape_like(from, &to);
    if (!copy_views()) {
        return emu::fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT,
                         "%s: libopapi.so cannot be loaded. Source the emulator's set_env.sh.", call.name);
    }
    return copy_views()(&to, &from, stream);
}

int refuse(const char* function, const char* name) {
    std::string known;
    for (const Copy& copy : copies) known += (known.empty() ? "" : ", ") + std::string(copy.name);
    return emu::fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT,
                     "%s: %s is an operator of the older, named interface (aclop), which torch_npu takes where an "
                     "operation has no aclnn operator. The CANN emulator has no kernels for it (only for %s). Use an "
                     "operation that has an aclnn operator, or do this one on the CPU (tensor.cpu()).",
                     function, name ? name : "(null)", known.c_str());
}

int run(const char* function, const Call& call, void* stream) {
    for (const Copy& copy : copies) {
        if (call.name && std::string(call.name) == copy.name) return run_copy(call, copy, stream);
    }
    return refuse(function, call.name);
}
}  // namespace

ACL_API int aclopCompileAndExecute(const char* name, int input_count, const aclTensorDesc* const* input_descs,
                                   const aclDataBuffer* const* inputs, int output_count,
                                   const aclTensorDesc* const* output_descs, aclDataBuffer* const* outputs,
                                   const aclopAttr* attr, int, int, const char*, void* stream) {
    return run("aclopCompileAndExecute",
               {name, input_count, input_descs, inputs, output_count, output_descs, outputs, attr}, stream);
}

// Its outputs' shapes are found while it runs, which is not so with any copy.
ACL_API int aclopCompileAndExecuteV2(const char* name, int, void**, void**, int, void**, void**, void*, int, int,
                                     const char*, void*) {
    return refuse("aclopCompileAndExecuteV2", name);
}

ACL_API void* aclCreateGraphDumpOpt() { return new int(0); }
ACL_API int aclDestroyGraphDumpOpt(const void* option) {
    delete static_cast<const int*>(option);
    return 0;
}
ACL_API int aclGenGraphAndDumpForOp(const char* name, int, const void* const*, const void* const*, int,
                                    const void* const*, void* const*, const void*, int, const char*, const void*) {
    return refuse("aclGenGraphAndDumpForOp", name);
}
