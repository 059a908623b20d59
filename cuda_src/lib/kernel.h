// What every .cu file includes first. One kernel source serves two targets:
//
//   nvcc   real CUDA: FX_KERNEL(name) is  extern "C" __global__ void name(const __grid_constant__ name_args a)
//   g++    hostsim:   the same body becomes a function plus an exported descriptor (hostsim/cuda_on_host.h)
//
// Two kinds of kernel:
//   FX_KERNEL(name)           threads are what they are on a GPU (hostsim gives each a fiber once one synchronizes).
//   FX_KERNEL_ANYBLOCK(name)  correct for every blockDim.x, so hostsim runs it with ONE thread a block and no fibers,
//                             10 to 200 times faster. The only uses of threadIdx allowed are FX_FOR and lib/reduce.h;
//                             whatever crosses a __syncthreads() lives in __shared__ memory. On a GPU, blockDim.x must
//                             be a multiple of 32.
#pragma once

#ifdef __CUDACC__
#include <cuda_runtime.h>
#include <stdint.h>
#define FX_GPU 1
#define FX_KERNEL(name) extern "C" __global__ void name(const __grid_constant__ name##_args a)
#define FX_KERNEL_ANYBLOCK(name) FX_KERNEL(name)
// FX_LAUNCH_BOUNDS goes between, e.g. FX_KERNEL_BOUNDS(name, 128)
#define FX_KERNEL_BOUNDS(name, threads) \
    extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ name##_args a)
#define FX_DYNAMIC_SHARED(T, s)                             \
    extern __shared__ __align__(16) unsigned char fx_dyn[]; \
    T *s = reinterpret_cast<T *>(fx_dyn)
// A module-scope variable that cuModuleGetGlobal finds by name.
#define FX_GLOBAL(T, name) \
    extern "C" {           \
    __device__ T name;     \
    }
#define FX_DEVICE __device__ __forceinline__
#else
#define FX_HOST 1
#include "hostsim/cuda_on_host.h"  // defines the same macros, threadIdx, __shared__, shuffles, atomics, float4, ...
#endif

// The block-size agnostic loop: i runs over [0, n), shared out among the threads of the block.
#define FX_FOR(i, n) for (int i = (int)threadIdx.x; i < (int)(n); i += (int)blockDim.x)

namespace fx {

FX_DEVICE int ceil_div(int a, int b) { return (a + b - 1) / b; }

// Nanoseconds of a clock shared by all multiprocessors (H200: ticks every 32 ns).
FX_DEVICE unsigned long long globaltimer() {
#ifdef FX_GPU
    unsigned long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
#else
    return fx_host_globaltimer();
#endif
}

}  // namespace fx
