// Writing the few protocol buffers that callers want.
#pragma once

#include <cstdint>
#include <string>

namespace npu::proto {

inline void put_varint(std::string& to, uint64_t value) {
    for (; value >= 0x80; value >>= 7) to += static_cast<char>(value | 0x80);
    to += static_cast<char>(value);
}
// A field of an integer, or of bytes, text or another message.
inline void put(std::string& to, int field, uint64_t value) {
    put_varint(to, static_cast<uint64_t>(field) << 3);
    put_varint(to, value);
}
inline void put(std::string& to, int field, const std::string& bytes) {
    put_varint(to, static_cast<uint64_t>(field) << 3 | 2);
    put_varint(to, bytes.size());
    to += bytes;
}

}  // namespace npu::proto
