// Kernels that a probe measures with: one that lasts, one with a stack frame, one that leaves a checksum of every step, one
// that does a little work.
#include "lib/kernel.h"
#include "lib/reduce.h"
#include "abi/types.h"
#include "abi/probe.h"

// One thread. Whoever queues it knows how long the device will be busy.
FX_KERNEL(spin) {
    unsigned long long start = fx::globaltimer();
    while (fx::globaltimer() - start < a.ns) {}
}

// 3840 bytes of local memory a thread, on purpose: the indices are not known when it is compiled, so no register holds it.
FX_KERNEL(walk_stack) {
    float frame[960];
    for (int i = 0; i < 960; ++i) frame[i] = a.x[i % a.n];
    unsigned k = threadIdx.x;
    float sum = 0.0f;
    for (int r = 0; r < a.rounds; ++r) {
        k = (k * 5 + 1) % 960;
        sum += frame[k];
        frame[k] = sum;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) a.y[0] = sum;
}

// One block, any size.
FX_KERNEL_ANYBLOCK(checksum) {
    float s = fx::block_sum(a.n, [&](int i) { return a.x[i]; });
    FX_FOR(only, 1) {
        uint32_t k = a.count[0];
        a.sums[k % (uint32_t)a.capacity] = s;
        a.count[0] = k + 1;
    }
}

// One thread a result, straight from memory: what a small kernel costs that does some work.
FX_KERNEL(naive_product) {
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= a.rows * a.cols) return;
    int row = i / a.cols, col = i % a.cols;
    float sum = 0.0f;
    for (int k = 0; k < a.inner; ++k) sum += a.x[row * a.inner + k] * a.w[k * a.cols + col];
    a.y[i] = sum;
}
