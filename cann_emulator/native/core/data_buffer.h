// A buffer as the named operators and the models take it.
#pragma once

#include <cstddef>

struct aclDataBuffer {
    void* data;
    size_t size;
};
