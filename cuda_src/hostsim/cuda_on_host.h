// The CUDA C++ subset that the project's kernels use, for g++: what lib/kernel.h includes when nvcc is not compiling.
//
// Self-contained (no cuda.h). A kernel becomes a function that runs one block, plus an exported descriptor
// `fx_host_kernel_<name>` that cuModuleGetFunction finds by dlsym. threadIdx and friends reach the body as by-value
// parameters, so that the compiler keeps them in registers; device functions that name them see thread-local
// variables of the driver library, which hold the same values.
//
// FX_KERNEL           a loop over the threads of the block. The first thread that has to wait (barrier, shuffle)
//                     becomes a fiber and the loop goes on upon a fresh stack (engine.cpp).
// FX_KERNEL_ANYBLOCK  one thread a block: threadIdx, blockDim are compile-time constants and __syncthreads() is empty.
//
// Absent on purpose: floating-point atomics (results would depend on order).
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define __device__
#define __host__
#define __global__
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict __restrict__
#define __align__(n) alignas(n)
#define __shared__ static thread_local
#define FX_DEVICE inline __attribute__((always_inline))

#include "hostsim/kernel_abi.h"

// ---------------------------------------------------------------- kernels
template <class Body>
FX_DEVICE void fx_host_each_thread(fx_host_block *b, Body body) {
    do {
        uint32_t k = b->next++, i = b->order ? b->order[k] : k;
        uint3 t = {i, 0, 0};
        if (!b->flat)
            t = {i % b->block_dim.x, i / b->block_dim.x % b->block_dim.y, i / (b->block_dim.x * b->block_dim.y)};
        *b->thread_idx = t;
        body(t);
        if (b->waited) fx_host_thread_exit();
    } while (b->next < b->count);
}

#define FX_HOST_DESCRIPTOR(kernel, flags, threads)                                             \
    extern "C" {                                                                               \
    FX_EXPORT fx_host_kernel fx_host_kernel_##kernel = {                                       \
        FX_HOST_KERNEL_VERSION, flags, sizeof(kernel##_args), threads, #kernel, kernel##_run}; \
    }

#define FX_KERNEL(name) FX_KERNEL_BOUNDS(name, 1024)

#define FX_KERNEL_BOUNDS(name, threads)                                                                          \
    static inline __attribute__((always_inline)) void name##_body(const name##_args &, const uint3, const uint3, \
                                                                  const dim3, const dim3);                       \
    static void name##_run(const void *args, fx_host_block *b) {                                                 \
        const name##_args a = *static_cast<const name##_args *>(args);                                           \
        const uint3 block = b->block_idx;                                                                        \
        const dim3 block_dim = b->block_dim, grid_dim = b->grid_dim;                                             \
        fx_host_each_thread(                                                                                     \
            b, [&](uint3 t) __attribute__((always_inline)) { name##_body(a, t, block, block_dim, grid_dim); });  \
    }                                                                                                            \
    FX_HOST_DESCRIPTOR(name, 0u, threads)                                                                        \
    static inline void name##_body(const name##_args &a, [[maybe_unused]] const uint3 threadIdx,                 \
                                   [[maybe_unused]] const uint3 blockIdx, [[maybe_unused]] const dim3 blockDim,  \
                                   [[maybe_unused]] const dim3 gridDim)

struct fx_host_thread_zero {
    static constexpr unsigned x = 0, y = 0, z = 0;
};
struct fx_host_one_thread {
    static constexpr unsigned x = 1, y = 1, z = 1;
};
struct fx_host_no_barrier {
    void operator()() const {}
};

#define FX_KERNEL_ANYBLOCK(name)                                                                                      \
    static inline __attribute__((always_inline)) void name##_body(                                                    \
        const name##_args &, fx_host_thread_zero, const uint3, fx_host_one_thread, const dim3, fx_host_no_barrier);   \
    static void name##_run(const void *args, fx_host_block *b) {                                                      \
        const name##_args a = *static_cast<const name##_args *>(args);                                                \
        name##_body(a, {}, b->block_idx, {}, b->grid_dim, {});                                                        \
    }                                                                                                                 \
    FX_HOST_DESCRIPTOR(name, FX_HOST_ANYBLOCK, 1024)                                                                  \
    static inline void name##_body(const name##_args &a, [[maybe_unused]] fx_host_thread_zero threadIdx,              \
                                   [[maybe_unused]] const uint3 blockIdx,                                             \
                                   [[maybe_unused]] fx_host_one_thread blockDim, [[maybe_unused]] const dim3 gridDim, \
                                   [[maybe_unused]] fx_host_no_barrier __syncthreads)

#define FX_DYNAMIC_SHARED(T, s) T *s = reinterpret_cast<T *>(fx_host_dynamic_shared)
// A module-scope variable that cuModuleGetGlobal finds.
#define FX_GLOBAL(T, name) \
    extern "C" {           \
    FX_EXPORT T name;      \
    }

#include "hostsim/host_intrinsics.h"
#include "hostsim/host_math.h"
