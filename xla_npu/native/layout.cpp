// Layouts, as far as callers ask: arrays on this platform are dense and row-major.
#include "api.h"
#include "cann.h"
#include "executable.h"

struct PJRT_Layouts_MemoryLayout {
    std::vector<int64_t> minor_to_major;
    std::string text;  // as XLA writes layouts: {1,0}
};

namespace npu {

PJRT_Layouts_MemoryLayout* dense_layout(size_t rank) {
    constexpr size_t highest = 64;
    static auto& layouts = *[] {
        auto* made = new std::vector<PJRT_Layouts_MemoryLayout>(highest + 1);
        for (size_t rank = 0; rank <= highest; ++rank) {
            auto& layout = (*made)[rank];
            for (size_t axis = rank; axis-- > 0;) {
                layout.text += (layout.text.empty() ? "" : ",") + std::to_string(axis);
                layout.minor_to_major.push_back(static_cast<int64_t>(axis));
            }
            layout.text = "{" + layout.text + "}";
        }
        return made;
    }();
    if (rank > highest) fail(PJRT_UNIMPLEMENTED, "Arrays of %zu dimensions: up to %zu are supported", rank, highest);
    return &layouts[rank];
}

namespace api {

void Buffer_GetMemoryLayout(PJRT_Buffer_GetMemoryLayout_Args& args) {
    const auto& order = dense_layout(args.buffer->shape.dims.size())->minor_to_major;
    args.layout = {};
    args.layout.struct_size = sizeof args.layout;
    args.layout.type = PJRT_LAYOUT_TILED;
    args.layout.tiled.struct_size = sizeof args.layout.tiled;
    args.layout.tiled.minor_to_major = order.data();
    args.layout.tiled.minor_to_major_size = order.size();
}

void Layouts_MemoryLayout_Destroy(PJRT_Layouts_MemoryLayout_Destroy_Args&) {}  // shared
void Layouts_MemoryLayout_Serialize(PJRT_Layouts_MemoryLayout_Serialize_Args& args) {
    args.serialized_bytes = args.layout->text.data();
    args.serialized_bytes_size = args.layout->text.size();
    args.serialized_layout = nullptr;
    args.serialized_layout_deleter = [](void*) {};
}
void Layouts_PJRT_Client_GetDefaultLayout(PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args& args) {
    args.layout = dense_layout(args.num_dims);
}
void Layouts_PJRT_Topology_GetDefaultLayout(PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args& args) {
    args.layout = dense_layout(args.num_dims);
}
void Layouts_PJRT_Buffer_MemoryLayout(PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args& args) {
    args.layout = dense_layout(args.buffer->shape.dims.size());
}
void Layouts_PJRT_Executable_GetOutputLayouts(PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args& args) {
    args.num_outputs = args.executable->output_layouts.size();
    args.layouts = args.executable->output_layouts.data();
}
void Layouts_PJRT_Executable_GetParameterLayouts(PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args& args) {
    args.num_parameters = args.executable->input_layouts.size();
    args.layouts = args.executable->input_layouts.data();
}

// ---- the Stream extension: other libraries' streams wait for buffers without the host
void Get_Stream_For_External_Ready_Events(PJRT_Get_Stream_For_External_Ready_Events_Args& args) {
    args.stream = static_cast<int64_t>(reinterpret_cast<intptr_t>(args.device->compute->handle));
}
void Wait_Until_Buffer_Ready_On_Stream(PJRT_Wait_Until_Buffer_Ready_On_Stream_Args& args) {
    args.buffer->device().activate();
    args.buffer->hold().defined->make_wait(reinterpret_cast<void*>(args.stream));
}

}  // namespace api
}  // namespace npu
