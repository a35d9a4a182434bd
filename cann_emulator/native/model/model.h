// Models that are loaded, and what runs them.
#pragma once

#include <memory>
#include <mutex>

#include "image.h"

namespace emu {

// What computes models: libcann_bridge.so, reached through libopapi.so. The GIL is not required of callers.
struct ModelBackend {
    // Makes a model ready to run, with its constants in `weights` and its activations in `work`. Null where that
    // failed, with the thread's error set.
    void* (*prepare)(const ModelImage& image, void* weights, void* work);
    // Computes. Returns 0 or an error code set with fail().
    int (*execute)(void* prepared, void* const* inputs, void* const* outputs);
    void (*release)(void* prepared);
};

struct Model {
    ~Model();
    ModelImage image;
    int device;
    void* prepared = nullptr;
    const ModelBackend* backend = nullptr;
    void* owned_weights = nullptr;  // what aclrtMalloc gave; null where the caller brought the memory
    void* owned_work = nullptr;
    int counter;
    std::mutex running;
};

// Null, with the thread's error set, for an id that is not a loaded model's.
std::shared_ptr<Model> find_model(uint32_t id, const char* call);

}  // namespace emu
