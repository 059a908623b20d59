// Kernels of the driver conformance suite (tests/driver): each does one thing that a driver must get right, and two do
// what a program must not do.
#include "lib/kernel.h"
#include "abi/types.h"
#include "abi/testing.h"

// The body of a WHILE node: runs while the counter is positive.
FX_KERNEL(countdown) {
    int left = a.counter[0] - 1;
    a.counter[0] = left;
    cudaGraphSetConditional((cudaGraphConditionalHandle)a.handle, left > 0);
}

FX_KERNEL(set_condition) { cudaGraphSetConditional((cudaGraphConditionalHandle)a.handle, a.value); }

FX_GLOBAL(int, bump_count)

FX_KERNEL(bump_global) { a.out[0] = ++bump_count; }

FX_KERNEL(copy_element) {
    if (threadIdx.x == 0 && blockIdx.x == 0) a.y[a.to] = a.x[a.from] + a.value;
}

FX_KERNEL(block_votes) {
    int yes = (int)threadIdx.x < a.limit;
    int count = __syncthreads_count(yes), any = __syncthreads_or(yes), all = __syncthreads_and(yes);
    if (threadIdx.x == 0) {
        a.out[3 * blockIdx.x] = count;
        a.out[3 * blockIdx.x + 1] = any != 0;
        a.out[3 * blockIdx.x + 2] = all != 0;
    }
}

// One warp.
FX_KERNEL(warp_votes) {
    int lane = (int)threadIdx.x;
    int vote = (int)(a.bits >> lane & 1u);
    a.out[lane] = (int)__ballot_sync(0xffffffffu, vote);
    a.out[32 + lane] = __shfl_up_sync(0xffffffffu, lane * 10, 1);
    a.out[64 + lane] = __shfl_down_sync(0xffffffffu, lane * 10, 1);
    a.out[96 + lane] = __shfl_sync(0xffffffffu, lane * 10, 3, 8);
    unsigned half = lane < 16 ? 0x0000ffffu : 0xffff0000u;
    if (lane < 16) {
        a.out[128 + lane] = (int)__ballot_sync(half, vote);
    } else {
        a.out[128 + lane] = (int)(__ballot_sync(half, vote) >> 16);
    }
}

FX_KERNEL(last_writer) {
    if (blockIdx.x >= gridDim.x) return;
    atomicExch(a.last, (int)(blockIdx.x * blockDim.x + threadIdx.x));
}

FX_KERNEL(divergent_barrier) {
    __shared__ float s[1024];
    s[threadIdx.x] = (float)threadIdx.x;
    if ((int)threadIdx.x < a.skip) return;
    __syncthreads();
    if (threadIdx.x + 1 == blockDim.x) a.y[0] = s[0] + s[threadIdx.x];
}

FX_KERNEL(publish_word) {
    *(volatile uint64_t *)a.payload = a.value;
    __threadfence_system();
    *(volatile uint64_t *)a.sequence = a.value;
}
