#include "image.h"

#include <cstring>

#include "acl_constants.h"

namespace emu {
namespace {

constexpr uint32_t kMagic = 0x444F4D49;  // "IMOD"
constexpr uint32_t kHeaderBytes = 256;
constexpr uint32_t kVersion = 0x20000000;   // of the file's format; CANN's is the same
constexpr uint32_t kProgramVersion = 1;     // of what the emulator's partitions hold
constexpr size_t kMaxPorts = 1 << 20;

// CANN's header: offsets of the fields that are read.
constexpr size_t kMagicAt = 0, kHeadAt = 4, kVersionAt = 8, kChecksumAt = 12, kNameAt = 84, kIrVersionAt = 152;
constexpr size_t kLengthAt = 184, kNameBytes = 32;

enum Partition : uint32_t { kProgram = 0, kWeights = 1, kPorts = 8 };

// Reads little-endian numbers one after the other; stays at the end, with `ok` false, where there are too few bytes.
class Reader {
public:
    explicit Reader(std::string_view data) : data_(data) {}
    template <typename T>
    T number() {
        T value{};
        const std::string_view bytes = take(sizeof(T));
        if (ok) std::memcpy(&value, bytes.data(), sizeof(T));
        return value;
    }
    std::string_view take(size_t bytes) {
        if (bytes > data_.size()) ok = false;
        if (!ok) return {};
        const std::string_view taken = data_.substr(0, bytes);
        data_.remove_prefix(bytes);
        return taken;
    }
    bool ok = true;

private:
    std::string_view data_;
};

template <typename T>
T at(const char* data, size_t offset) {
    T value;
    std::memcpy(&value, data + offset, sizeof(T));
    return value;
}

// Adler-32, as zlib defines it.
uint32_t checksum(std::string_view data) {
    uint32_t a = 1, b = 0;
    for (size_t begin = 0; begin < data.size(); begin += 5552) {  // so many that the sums do not overflow
        for (const char byte : data.substr(begin, 5552)) {
            a += static_cast<unsigned char>(byte);
            b += a;
        }
        a %= 65521;
        b %= 65521;
    }
    return b << 16 | a;
}

bool read_ports(Reader& reader, std::vector<ModelPort>* ports) {
    const auto count = reader.number<uint32_t>();
    if (count > kMaxPorts) return false;
    for (uint32_t i = 0; i < count && reader.ok; ++i) {
        ModelPort port;
        port.dtype = static_cast<int>(reader.number<uint32_t>());
        port.format = static_cast<int>(reader.number<uint32_t>());
        port.bytes = reader.number<uint64_t>();
        const auto rank = reader.number<uint32_t>();
        if (rank > 128) return false;
        for (uint32_t d = 0; d < rank; ++d) port.dims.push_back(reader.number<int64_t>());
        port.name = std::string(reader.take(reader.number<uint32_t>()));
        ports->push_back(std::move(port));
    }
    return reader.ok;
}

}  // namespace

int read_image(const void* data, size_t bytes, ModelImage* image) {
    const auto* begin = static_cast<const char*>(data);
    if (!data) return fail(ACL_ERROR_GE_EXEC_MODEL_ADDR_INVALID, "the model's address is null.");
    if (bytes < kHeaderBytes) {
        return fail(ACL_ERROR_GE_EXEC_MODEL_DATA_SIZE_INVALID,
                    "a model has at least %u bytes of header; this one has %zu bytes in all.", kHeaderBytes, bytes);
    }
    if (at<uint32_t>(begin, kMagicAt) != kMagic || at<uint32_t>(begin, kHeadAt) != kHeaderBytes) {
        return fail(ACL_ERROR_GE_PARAM_INVALID,
                    "this is no offline model: its first bytes are 0x%08x, an .om begins with 0x%08x.",
                    at<uint32_t>(begin, kMagicAt), kMagic);
    }
    const auto version = at<uint32_t>(begin, kVersionAt), program_version = at<uint32_t>(begin, kIrVersionAt);
    if (version != kVersion || program_version != kProgramVersion) {
        return fail(ACL_ERROR_GE_PARAM_INVALID,
                    "the model's format is version 0x%x.%u and this CANN emulator reads 0x%x.%u: compile the model "
                    "again with the emulator that runs it. Models compiled by CANN hold code for the NPU, which the "
                    "emulator cannot run.",
                    version, program_version, kVersion, kProgramVersion);
    }
    const auto length = at<uint64_t>(begin, kLengthAt);
    if (length != bytes - kHeaderBytes) {
        return fail(ACL_ERROR_GE_EXEC_MODEL_DATA_SIZE_INVALID,
                    "the header promises %lu bytes of model, %zu are there: the file is cut off or damaged.",
                    static_cast<unsigned long>(length), bytes - kHeaderBytes);
    }
    const std::string_view body(begin + kHeaderBytes, length);
    if (at<uint32_t>(begin, kChecksumAt) != checksum(body)) {
        return fail(ACL_ERROR_GE_PARAM_INVALID, "the model's checksum is wrong: the file is damaged.");
    }
    image->name = std::string(begin + kNameAt, strnlen(begin + kNameAt, kNameBytes));
    Reader table(body);
    std::string_view ports;
    const auto count = table.number<uint64_t>();
    for (uint64_t i = 0; i < count && table.ok; ++i) {
        const auto kind = table.number<uint64_t>(), offset = table.number<uint64_t>(), size = table.number<uint64_t>();
        if (offset > length || size > length - offset) {
            return fail(ACL_ERROR_GE_EXEC_LOAD_MODEL_PARTITION_FAILED, "partition %lu lies outside the model.",
                        static_cast<unsigned long>(kind));
        }
        if (kind == kProgram) image->program = body.substr(offset, size);
        if (kind == kWeights) image->weights = body.substr(offset, size);
        if (kind == kPorts) ports = body.substr(offset, size);
    }
    Reader reader(ports);
    image->work_bytes = reader.number<uint64_t>();
    image->weight_bytes = reader.number<uint64_t>();
    if (!table.ok || !reader.ok || !read_ports(reader, &image->inputs) || !read_ports(reader, &image->outputs) ||
        image->program.empty() || image->weights.size() > image->weight_bytes) {
        return fail(ACL_ERROR_GE_EXEC_LOAD_MODEL_PARTITION_FAILED, "a partition of the model is missing or too short.");
    }
    return 0;
}

}  // namespace emu
