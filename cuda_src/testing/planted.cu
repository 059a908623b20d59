// Mistakes to be found: races in shared memory and between blocks, and barriers that threads do not meet at. The other plants are in conformance.cu: copy_element
// writes where it is told to, divergent_barrier leaves threads behind.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/testing.h"

FX_KERNEL(race_shared) {
    __shared__ float s[1024];
    const int i = (int)threadIdx.x;
    s[i] = a.x[i];
    // __syncthreads() is missing here
    a.y[i] = s[(i + 1) % a.n];
}

FX_KERNEL(race_blocks) {
    volatile float *y = a.y;  // else the compiler keeps the last store only
    for (int r = 0; r < a.rounds; ++r) y[0] = (float)(blockIdx.x + (unsigned)r);
}

// Every lane but lane 0 waits under a mask that does not name it.
FX_KERNEL(wrong_mask) {
    __syncwarp(1u);
    if (threadIdx.x == 0) a.y[0] = 1.0f;
}

// Odd and even threads of a warp wait at different barriers.
FX_KERNEL(split_barrier) {
    __shared__ float s[1024];
    const int i = (int)threadIdx.x;
    if (i & 1) {
        s[i] = 1.0f;
        __syncthreads();
        a.y[i] = s[i - 1];
    } else {
        s[i] = 2.0f;
        __syncthreads();
        a.y[i] = s[i + 1] * 3.0f;
    }
}
