// Internal to libascendcl.so: what its files share. core.h is what the other libraries see.
#pragma once

#include "acl_constants.h"
#include "core.h"

// An entry point of CANN's C ABI.
#define ACL_API extern "C" EMU_API

namespace emu {

// ---- errors.cpp
int last_error_code();  // what the calling thread's last fail() returned

// ---- soc.cpp
struct Soc {
    const char* name;
    int cube_cores;
    int vector_cores;
    int64_t l2_bytes;
    int64_t ub_bytes;
    int npu_arch;
};
const Soc* wanted_soc();  // null where CANN_EMULATOR_SOC names none; device_ready() reports that
const Soc& soc();         // the wanted one, else the default: callers always have one
std::string soc_names();

// ---- devices.cpp
int physical_count();  // CANN_EMULATOR_DEVICES, or -1 where that is no number of devices
void mark_used();      // from here on a fork of this process may not use CANN
// 0, or the error that every use of a device meets: a forked child, a setting that cannot be understood.
int device_ready();
// This process is a fork of one that had used CANN; refuse_fork() is the error for that.
bool in_forked_child();
int refuse_fork();
// The thread's device in `device`, or an error that says to call aclrtSetDevice.
int need_device(int* device);
int check_device(int device);

// ---- memory.cpp
size_t hbm_limit();                                      // 0: CANN_EMULATOR_HBM_GB is no size
int charge(int device, size_t bytes, const char* what);  // 0, or 207001 with the sums in the message
void refund(int device, size_t bytes);
size_t hbm_used(int device);
size_t hbm_peak(int device);
enum class Origin { device, mapped, imported, pinned, registered };
void add_block(void* begin, size_t bytes, int device, Origin origin, size_t charged);
// Takes the block that begins at `begin` and has that origin out of the table; false where there is none.
bool take_block(void* begin, Origin origin, size_t* bytes, int* device, size_t* charged);
// The memory file of the device allocation around `pointer`, made on the first call; -1 with the thread's error set.
int share_block(void* pointer, size_t bytes, uintptr_t* begin);
// The bounds of the live block around an address; false where there is none.
bool find_block(const void* address, uintptr_t* begin, size_t* bytes, int* device, Origin* origin);

// ---- streams.cpp
struct Stream;
Stream* find_stream(void* handle);  // null, with the thread's error set, for a handle that is not a live stream
int drain_all(int device, int64_t timeout_ms);  // every stream of the device; -1: without limit

// ---- counters.cpp
void start_counters();  // on first use of a device

}  // namespace emu
