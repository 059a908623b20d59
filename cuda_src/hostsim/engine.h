// Runs kernels of host images on the CPU: blocks over worker threads, the threads of a block as fibers.
#pragma once
#include <cuda.h>

#include <atomic>
#include <cstdint>

#define FX_HOST_ENGINE 1
#include "hostsim/kernel_abi.h"

namespace hostsim {

struct Launch {
    const fx_host_kernel *kernel = nullptr;
    const void *args = nullptr;
    uint3 grid{1, 1, 1};
    uint3 block{1, 1, 1};
    unsigned shared = 0;  // bytes of dynamic shared memory
};

// Runs a launch to its end. CUDA_SUCCESS, or the error that a GPU would report, with the finding in last_report().
CUresult run_launch(const Launch &launch);

// Not 0: launches run on the calling thread alone, and every one finds this clock, in nanoseconds, which moves only when it is
// read. So a launch on the same memory gives the same bits, timestamps included.
extern uint64_t frozen_ns;

// Called by the fault handler and by kernels that break a rule: ends the launch on this thread with the error.
[[noreturn]] void abort_block(CUresult error);
bool in_kernel();                // the calling thread executes kernel code
const Launch *current_launch();  // of the calling thread; null outside of kernels
const char *where_in_kernel();   // "kernel c51_loss, block (3,0,0), thread (17,0,0)"
void install_fault_handler();

void stop_workers();  // before the library is unloaded

}  // namespace hostsim
