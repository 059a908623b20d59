// The contract between kernel images built by g++ and the driver library: descriptors, and what kernels call.
#pragma once
#include "hostsim/host_types.h"

#define FX_HOST_KERNEL_VERSION 1u
#define FX_HOST_ANYBLOCK 1u
#define FX_EXPORT __attribute__((visibility("default")))

extern "C" {

// What a block needs to run; one an OS thread, filled in by the engine.
struct fx_host_block {
    uint3 block_idx;
    dim3 block_dim, grid_dim;
    uint3 *thread_idx;      // the thread-local variable behind threadIdx
    const uint32_t *order;  // order in which threads start, or null: 0, 1, 2, ...
    uint32_t next;          // how many threads have been started
    uint32_t count;         // threads in the block
    uint32_t flat;          // 1: block_dim.y == block_dim.z == 1
    uint32_t waited;        // 1: some thread of the block has waited, so the engine wants to hear of exits
};

struct fx_host_kernel {
    uint32_t version, flags;
    uint32_t args_size, max_threads;
    const char *name;
    void (*run)(const void *args, fx_host_block *block);  // runs one block
};

extern FX_EXPORT __thread uint3 threadIdx __asm__("fx_host_threadIdx");
extern FX_EXPORT __thread uint3 blockIdx __asm__("fx_host_blockIdx");
extern FX_EXPORT __thread dim3 blockDim __asm__("fx_host_blockDim");
extern FX_EXPORT __thread dim3 gridDim __asm__("fx_host_gridDim");
extern FX_EXPORT __thread void *fx_host_dynamic_shared;

FX_EXPORT void fx_host_thread_exit(void);
FX_EXPORT void fx_host_syncthreads(void);
// The barrier that also counts the threads whose predicate is non-zero.
FX_EXPORT int fx_host_syncthreads_count(int predicate);
// Deposits a value for the calling lane, waits for the lanes of the mask that have not exited, and returns the 32
// values deposited. *present: the lanes that took part.
FX_EXPORT const uint64_t *fx_host_warp_gather(unsigned mask, uint64_t value, unsigned *present);
FX_EXPORT void fx_host_set_conditional(unsigned long long handle, unsigned value);
FX_EXPORT void fx_host_trap(void) __attribute__((noreturn));
FX_EXPORT unsigned long long fx_host_globaltimer(void);
FX_EXPORT long long fx_host_clock64(void);
}
