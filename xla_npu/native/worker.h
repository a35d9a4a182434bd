// The compiler: child processes that turn programs into models, one for each precision setting.
//
// A compiler may abort its process (MLIR and GE both can). Then the program that was being compiled gets the error, and
// the next one a new process.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "program.h"

namespace npu {

struct Answer {
    std::string text;  // the header as it came
    Json header;
    std::string payload;
};

class Worker {
public:
    // `precision` is the option of the compiler's command line that sets it, or empty.
    Worker(std::string python, std::string precision);
    ~Worker();
    // Sends a request and waits for the answer. Throws INTERNAL when the process dies over it.
    Answer ask(const std::string& header, std::string_view code, std::string_view options);

private:
    void start();
    std::string stop();  // how it ended

    const std::string python_, precision_;
    std::mutex mutex_;
    int socket_ = -1;
    int process_ = -1;
};

// The Python that runs the compiler: XLA_NPU_PYTHON, else what the package named, else python3.
std::string interpreter();
void set_interpreter(std::string python);

class Workers {
public:
    explicit Workers(std::string python) : python_(std::move(python)) {}
    // What the compiler does with a program: `compile` it, or show it as it was just before (`optimized`). Throws the
    // compiler's error.
    Answer ask(const char* what, const Source& source, const std::string& soc, int devices);

private:
    Worker& worker(const std::string& precision);

    const std::string python_;
    std::mutex mutex_;
    std::map<std::string, std::unique_ptr<Worker>> workers_;
};

}  // namespace npu
