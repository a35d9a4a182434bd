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
    bool answered_ = false;  // by this process
};

class Workers {
public:
    // What the compiler does with a program: `compile` it, or show it as it was just before (`optimized`). Throws the
    // compiler's error.
    Answer ask(const char* what, const Source& source, const std::string& soc, int devices);

    // Ends all processes; the next program starts new ones.
    void stop();

private:
    std::shared_ptr<Worker> worker(const std::string& precision);

    std::mutex mutex_;
    std::map<std::string, std::shared_ptr<Worker>> workers_;
};

}  // namespace npu
