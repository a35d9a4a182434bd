#include "callback.h"

#include <atomic>
#include <set>
#include <shared_mutex>

#include "cann.h"

namespace npu {
namespace {
// The program's side: takes the addresses of operands and results in host memory; 0, or the reason in `error`.
using Handler = int(const char* target, const char* call, void** inputs, void** outputs, char* error, size_t capacity);
std::atomic<Handler*> handler{nullptr};

// Held by whoever is in the program's side; once it has ended nobody goes there.
std::shared_mutex inside;
std::atomic<bool> ended{false};

// Names of the functions that programs may call.
std::mutex targets_mutex;
std::set<std::string> targets;

Meeting::Results compute(const Step& step, const Loaded& loaded, const std::vector<Model::Span>& inputs,
                         const std::vector<Model::Span>& outputs) {
    Handler* function = handler.load();
    if (!function) {
        fail(PJRT_FAILED_PRECONDITION,
             "The program calls back into Python, but xla_npu.initialize() has not run in this process");
    }
    NPU_CALL(aclrtSynchronizeStream, loaded.device->compute->handle);
    Meeting::Results operands, results;
    std::vector<void*> from, to;
    for (const auto& input : inputs) {
        std::string& host = operands.emplace_back(input.bytes, '\0');
        if (input.bytes) NPU_CALL(aclrtMemcpy, host.data(), input.bytes, input.data, input.bytes, device_to_host);
    }
    for (const auto& output : outputs) results.emplace_back(output.bytes, '\0');
    for (auto& operand : operands) from.push_back(operand.data());
    for (auto& result : results) to.push_back(result.data());
    char error[8192] = "";
    const std::shared_lock<std::shared_mutex> lock(inside);
    if (ended) fail(PJRT_CANCELLED, "The program calls back into Python, which is ending");
    if (function(step.target.c_str(), step.call.c_str(), from.data(), to.data(), error, sizeof error) != 0) {
        fail(PJRT_INTERNAL, "A host function (%s) failed:\n%s", step.target.c_str(), error);
    }
    return results;
}
}  // namespace

std::vector<std::string> host_targets() {
    std::lock_guard<std::mutex> lock(targets_mutex);
    return {targets.begin(), targets.end()};
}

void check_host_targets(const std::vector<Step>& steps) {
    for (const Step& step : steps) {
        for (const auto& part : step.parts) check_host_targets(part);
        if (step.kind != Step::Kind::callback) continue;
        std::lock_guard<std::mutex> lock(targets_mutex);
        if (targets.count(step.target)) continue;
        fail(PJRT_NOT_FOUND,
             "The program calls the host function `%s`, which this process has not registered: call "
             "jax.ffi.register_ffi_target(\"%s\", FUNCTION, platform=\"npu\") before the program is loaded",
             step.target.c_str(), step.target.c_str());
    }
}

void Meeting::publish(size_t turn, Results results) {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        results_[turn] = std::move(results);
    }
    changed_.notify_all();
}

const Meeting::Results& Meeting::wait(size_t turn) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return failure_ || results_.count(turn); });
    if (const auto found = results_.find(turn); found != results_.end()) return found->second;
    throw *failure_;
}

void Meeting::abandon(const Failure& failure) {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!failure_) failure_ = failure;
    }
    changed_.notify_all();
}

void run_callback(const Step& step, const Loaded& loaded, Meeting& meeting, size_t turn,
                  const std::vector<Model::Span>& inputs, const std::vector<Model::Span>& outputs) {
    Meeting::Results own;
    const Meeting::Results* results = &own;
    if (step.once && loaded.logical_id != 0) {
        results = &meeting.wait(turn);
    } else {
        own = compute(step, loaded, inputs, outputs);
        if (step.once) meeting.publish(turn, own);
    }
    loaded.device->activate();  // the callback may have used another device
    for (size_t i = 0; i < outputs.size(); ++i) {
        const size_t bytes = outputs[i].bytes;
        if (bytes) NPU_CALL(aclrtMemcpy, outputs[i].data, bytes, (*results)[i].data(), bytes, host_to_device);
    }
}

}  // namespace npu

// Called once by the Python package.
extern "C" __attribute__((visibility("default"))) void npu_set_callback_handler(npu::Handler* function) {
    npu::handler.store(function);
}

// Called by the Python package when Python ends: waits for calls that run, and lets no other in. Python would end the
// thread of such a call, and with it the process.
extern "C" __attribute__((visibility("default"))) void npu_end_callbacks() {
    npu::ended = true;
    const std::unique_lock<std::shared_mutex> lock(npu::inside);
}

// Called by the Python package for every function that the handler knows.
extern "C" __attribute__((visibility("default"))) void npu_add_host_target(const char* name) {
    std::lock_guard<std::mutex> lock(npu::targets_mutex);
    npu::targets.insert(name);
}
